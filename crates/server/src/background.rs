//! Threads of a worker, which run in the background once queries have used up their allowance.
//!
//! The kernel runs a thread of the policy `SCHED_IDLE` where no other one wants the processor, and
//! takes the processor from it at once when one does. A process without privileges cannot go back,
//! so its worker is replaced when queries may have their share again.

use std::io;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Mutex, PoisonError};

use thread_priority::unix::{
    NormalThreadSchedulePolicy, ThreadSchedulePolicy, set_thread_priority_and_policy, thread_native_id,
    thread_schedule_policy_param,
};
use thread_priority::{ThreadId, ThreadPriority};

const IDLE: ThreadSchedulePolicy = ThreadSchedulePolicy::Normal(NormalThreadSchedulePolicy::Idle);

/// Threads that compute for queries. They live as long as the process.
static THREADS: Mutex<Vec<ThreadId>> = Mutex::new(Vec::new());

/// Counts the calling thread among those that compute for queries.
pub(crate) fn enlist_thread() {
    THREADS.lock().unwrap_or_else(PoisonError::into_inner).push(thread_native_id());
}

/// Moves the threads of this worker to the background, once the serving process says so.
#[derive(Debug, Clone)]
pub(crate) struct Background(Sender<()>);

impl Background {
    /// Starts a thread for it, which is there when the process is granted no more.
    ///
    /// # Errors
    /// The system grants no thread.
    pub(crate) fn start() -> io::Result<Self> {
        let (enter, entered) = channel();
        std::thread::Builder::new().name("background".into()).spawn(move || {
            while entered.recv().is_ok() {
                let threads = THREADS.lock().unwrap_or_else(PoisonError::into_inner).clone();
                let failed = threads.into_iter().filter(|thread| !lower(*thread)).count();
                if failed > 0 {
                    tracing::warn!(failed, "threads of a query could not be moved to the background");
                }
            }
        })?;
        Ok(Self(enter))
    }

    /// From now on the process runs where nobody else wants a processor.
    pub(crate) fn enter(&self) {
        self.0.send(()).ok();
    }
}

/// Gives a thread the policy; whether it has it now.
pub(crate) fn lower(thread: ThreadId) -> bool {
    // The policy of `thread` is set first. Then the library sets the niceness of the calling
    // thread, which may be refused and does not matter here.
    set_thread_priority_and_policy(thread, ThreadPriority::Min, IDLE).ok();
    thread_schedule_policy_param(thread).is_ok_and(|(policy, _)| policy == IDLE)
}
