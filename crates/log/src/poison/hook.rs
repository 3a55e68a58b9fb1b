//! For tests of whole programs: a record that a reader dies of. In release builds there is none.

/// Dies if `TIDEGATE_TEST_POISON` is `READER:abort:KEY` or `READER:panic:KEY` for this reader and
/// the key of the event that it works on, and this is a debug build.
///
/// # Panics
/// If told to.
pub fn die_if_told(reader: &str, key: impl FnOnce() -> String) {
    if !cfg!(debug_assertions) {
        return;
    }
    static TOLD: std::sync::LazyLock<Option<[String; 3]>> = std::sync::LazyLock::new(|| {
        let told = std::env::var("TIDEGATE_TEST_POISON").ok()?;
        let parts: Vec<String> = told.splitn(3, ':').map(str::to_owned).collect();
        parts.try_into().ok()
    });
    let Some([whose, how, what]) = TOLD.as_ref() else { return };
    if whose != reader || *what != key() {
        return;
    }
    match how.as_str() {
        "panic" => panic!("told to by TIDEGATE_TEST_POISON"),
        _ => std::process::abort(),
    }
}
