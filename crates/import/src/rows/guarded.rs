//! Calls into the Parquet library, which panics on some damaged files: a panic there is an error.

use std::any::Any;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, set_hook, take_hook};
use std::sync::Once;

/// Bytes of a panic's message that are shown.
const SHOWN_BYTES: usize = 200;

thread_local! {
    static IS_GUARDED: Cell<bool> = const { Cell::new(false) };
}

/// Runs `read`. A panic in it is not printed and becomes what it says. What `read` has changed may
/// be half changed then, so the caller reads no more of the file.
pub(super) fn guarded<T>(read: impl FnOnce() -> T) -> Result<T, String> {
    static QUIET: Once = Once::new();
    QUIET.call_once(|| {
        let print = take_hook();
        set_hook(Box::new(move |info| {
            if !IS_GUARDED.get() {
                print(info);
            }
        }));
    });
    IS_GUARDED.set(true);
    let read = catch_unwind(AssertUnwindSafe(read));
    IS_GUARDED.set(false);
    read.map_err(|panic| {
        let said = said(panic.as_ref());
        let shown: String = said.chars().flat_map(char::escape_debug).take(SHOWN_BYTES).collect();
        format!("its data is damaged ({shown})")
    })
}

/// The message of a panic.
fn said(panic: &dyn Any) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no reason given")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_becomes_a_short_text_and_the_next_one_outside_is_printed() {
        let long = "x".repeat(1_000);
        let error = guarded(|| panic!("line\n{long}")).unwrap_err();
        assert!(error.contains("(line\\nxxx") && error.len() < 300, "{error}");
        assert_eq!(guarded(|| 7), Ok(7));
        assert!(!IS_GUARDED.get());
    }
}
