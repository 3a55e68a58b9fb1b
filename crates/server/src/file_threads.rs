//! Threads for file access, which a runtime moves out of its way.
//!
//! They are started at once and stay. At its memory limit a process is granted no thread, and what
//! needs one fails or stands still: reading a Delta log holds one thread and waits for another.

use std::ops::RangeInclusive;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;
use std::{io, iter};

use tokio::runtime::{Builder, Handle};
use tokio::task::JoinSet;

/// Threads that a runtime has, at least and at most.
const THREADS: RangeInclusive<usize> = 8..=32;
const THREADS_PER_QUERY: usize = 4;
const STAY: Duration = Duration::from_secs(365 * 24 * 60 * 60);
/// The system has this long to start them.
const START_WITHIN: Duration = Duration::from_secs(10);

/// Number of threads for so many queries at a time.
pub(crate) fn count(queries: usize) -> usize {
    queries.saturating_mul(THREADS_PER_QUERY).clamp(*THREADS.start(), *THREADS.end())
}

/// Sets how many threads a runtime has for files, and that they stay once started.
pub(crate) fn configure(runtime: &mut Builder, count: usize) -> &mut Builder {
    runtime.max_blocking_threads(count).thread_keep_alive(STAY)
}

/// Starts all threads of a runtime, which has `count`.
///
/// # Errors
/// The system does not grant them.
pub(crate) async fn start(runtime: &Handle, count: usize) -> io::Result<()> {
    let started = Arc::new((Mutex::new(0), Condvar::new()));
    // Each task holds its thread until all of them have one.
    let hold = |started: Arc<(Mutex<usize>, Condvar)>| {
        move || {
            let (number, changed) = &*started;
            let mut number = number.lock().unwrap_or_else(PoisonError::into_inner);
            *number += 1;
            changed.notify_all();
            let waited = changed.wait_timeout_while(number, START_WITHIN, |number| *number < count);
            !waited.unwrap_or_else(PoisonError::into_inner).1.timed_out()
        }
    };
    let mut tasks = JoinSet::new();
    for started in iter::repeat_n(started, count) {
        tasks.spawn_blocking_on(hold(started), runtime);
    }
    match tasks.join_all().await.into_iter().all(|in_time| in_time) {
        true => Ok(()),
        false => Err(io::Error::other(format!("the system does not grant {count} threads"))),
    }
}
