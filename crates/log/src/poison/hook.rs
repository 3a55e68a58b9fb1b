//! For tests of whole programs: a record that a reader dies of. In release builds there is none.

/// Dies if `TIDEGATE_TEST_POISON` is `READER:abort:KEY` or `READER:panic:KEY` for this reader and
/// the key of the event that it works on, and this is a debug build. With `READER:hang:KEY` it
/// waits there to be killed.
///
/// # Panics
/// If the variable asks for it.
pub fn die_for_test(reader: &str, key: impl FnOnce() -> String) {
    if !cfg!(debug_assertions) {
        return;
    }
    static WANTED: std::sync::LazyLock<Option<[String; 3]>> = std::sync::LazyLock::new(|| {
        let wanted = std::env::var("TIDEGATE_TEST_POISON").ok()?;
        let parts: Vec<String> = wanted.splitn(3, ':').map(str::to_owned).collect();
        parts.try_into().ok()
    });
    let Some([whose, how, what]) = WANTED.as_ref() else { return };
    if whose != reader || *what != key() {
        return;
    }
    match how.as_str() {
        "panic" => panic!("TIDEGATE_TEST_POISON asks for it"),
        "hang" => loop {
            std::thread::park();
        },
        _ => std::process::abort(),
    }
}
