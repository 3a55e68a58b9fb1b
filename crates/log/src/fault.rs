//! Crash points: instants at which a crash would leave a different state on disk than a moment
//! before.
//!
//! Crash tests register a watcher that copies the folder or ends the process there. Without a
//! watcher a point costs one atomic load.

use std::path::Path;
use std::sync::OnceLock;

/// Called with the operation and the file or folder, on the thread that performed it. If it panics,
/// that thread ends there.
pub type Watcher = Box<dyn Fn(&'static str, &Path) + Send + Sync>;

static WATCHER: OnceLock<Watcher> = OnceLock::new();

/// Marks a crash point: something durable was just done.
pub fn point(done: &'static str, place: &Path) {
    if let Some(watcher) = WATCHER.get() {
        watcher(done, place);
    }
}

/// Registers the process's watcher of crash points.
///
/// # Panics If a watcher is registered already.
pub fn watch(watcher: Watcher) {
    assert!(WATCHER.set(watcher).is_ok(), "one watcher of crash points is enough");
}
