//! One session of the driver's library: the handle, and the threads that use it.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use nvml_wrapper::Nvml;
use tidegate_events::v1::{NodeEvent, NodeEventKind};

use super::shared::{Shared, locked};
use crate::ticker::wall_ms;

/// Stack of each thread. NVML's largest structure is 8 KiB; the driver's own needs are
/// undocumented.
pub(super) const STACK: usize = 256 << 10;
/// Stack of the thread that loads the library, whose hundreds of symbols pass through it by value.
pub(super) const LOADING_STACK: usize = 2 << 20;
/// How long a new session waits for threads of the old one that hang in the driver.
const JOIN: Duration = Duration::from_secs(3);
/// State shared by the threads of a session. The library is unloaded when the last of them drops
/// it.
pub(super) struct Session {
    pub nvml: Nvml,
    pub over: AtomicBool,
    /// Set when a device returned, so that events must be registered again.
    pub events_stale: AtomicBool,
    /// Counts changes of MIG instances.
    pub layout_changed: AtomicU64,
    failed: AtomicBool,
    running: Arc<Running>,
}

/// Number of threads of a session. Kept apart from the session, so that the last thread is counted
/// out after it dropped the session.
#[derive(Default)]
struct Running {
    count: Mutex<usize>,
    ended: Condvar,
}

impl Session {
    pub(super) fn new(nvml: Nvml) -> Self {
        Self {
            nvml,
            over: AtomicBool::new(false),
            events_stale: AtomicBool::new(false),
            layout_changed: AtomicU64::new(0),
            failed: AtomicBool::new(false),
            running: Arc::default(),
        }
    }

    pub(super) fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Acquire)
    }

    /// Starts a thread of the session. If that fails, its device is not read.
    pub(super) fn spawn(&self, name: String, run: impl FnOnce() + Send + 'static) {
        *locked(&self.running.count) += 1;
        let guard = ThreadGuard(Arc::clone(&self.running));
        let thread = thread::Builder::new().name(name.clone()).stack_size(STACK).spawn(move || {
            let guard = guard;
            run();
            drop(guard);
        });
        if let Err(error) = thread {
            tracing::error!(%error, name, "cannot start a thread; this device is not read");
        }
    }

    /// Ends the session's threads. Threads that hang in the driver are left behind, and end when
    /// the driver returns.
    pub(super) fn end(&self, shared: &Shared) {
        self.over.store(true, Ordering::Release);
        shared.clock.wake();
        let count = locked(&self.running.count);
        let waited = self.running.ended.wait_timeout_while(count, JOIN, |count| *count > 0);
        let hang = *waited.unwrap_or_else(PoisonError::into_inner).0;
        if hang > 0 {
            tracing::warn!(hang, "threads hang in the driver and are left behind");
        }
    }
    /// Ends the session because the driver no longer works in this process. Another session
    /// follows.
    pub(super) fn fails(&self, shared: &Shared, why: &str) {
        if self.failed.swap(true, Ordering::AcqRel) {
            return;
        }
        let event = NodeEvent {
            description: Some(format!("the driver's library was refused: {why}; it is started again")),
            evidence: Some("nvml".into()),
            driver_version: shared.status().driver_version.clone(),
            ..NodeEvent::default()
        };
        shared.emitter.event(wall_ms(), NodeEventKind::DriverChanged, event);
        shared.clock.wake();
    }
}

/// Counts a thread out, however it ends.
struct ThreadGuard(Arc<Running>);

impl Drop for ThreadGuard {
    fn drop(&mut self) {
        *locked(&self.0.count) -= 1;
        self.0.ended.notify_all();
    }
}
