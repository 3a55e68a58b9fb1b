//! Instants at which a crash leaves another state on the disk than a moment before, told to whoever
//! watches.
//!
//! Nobody does but tests of crashes, which copy the folder as it is then, or end the process there.
//! Else an instant costs one atomic load.

use std::path::Path;
use std::sync::OnceLock;

/// Hears what was just done, and to which file or folder, on the thread that did it. If it panics,
/// that thread goes no further.
pub type Watcher = Box<dyn Fn(&'static str, &Path) + Send + Sync>;

static WATCHER: OnceLock<Watcher> = OnceLock::new();

/// Something durable was just done.
pub fn point(done: &'static str, place: &Path) {
    if let Some(watcher) = WATCHER.get() {
        watcher(done, place);
    }
}

/// From now on the watcher hears of every instant of this process.
///
/// # Panics
/// If somebody watches already.
pub fn watch(watcher: Watcher) {
    assert!(WATCHER.set(watcher).is_ok(), "one watcher of crash points is enough");
}
