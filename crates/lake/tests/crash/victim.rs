//! The victim: a process among others, run as a thread, that dies or hangs at an instant.
//!
//! Its work is recognised by the name of the thread. A dead victim does nothing durable any more:
//! each further step ends the thread that takes it. So what is left is what `kill -9` leaves, while
//! the other process keeps its memory.

use std::path::Path;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

use crate::snapshots::{describe, watch};

/// Name of its threads.
pub const VICTIM: &str = "victim";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// It dies.
    Dies,
    /// It stands still until [`resume`], like a process on a suspended machine.
    Hangs,
}

#[derive(Debug, Default)]
struct State {
    /// Its fate, and the instant.
    fate: Option<(Fate, usize)>,
    seen: usize,
    /// The last step before it met its fate.
    last_step: Option<String>,
    continues: bool,
}

static STATE: Mutex<State> = Mutex::new(State { fate: None, seen: 0, last_step: None, continues: false });
static CHANGED: Condvar = Condvar::new();

fn state() -> MutexGuard<'static, State> {
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The next victim meets its fate at the instant with this number.
pub fn schedule(fate: Fate, at: usize) {
    watch();
    *state() = State { fate: Some((fate, at)), ..State::default() };
}

/// Its last step before it met its fate, if it did.
pub fn last_step() -> Option<String> {
    state().last_step.clone()
}

/// Resumes a victim that hangs.
pub fn resume() {
    state().continues = true;
    CHANGED.notify_all();
}

/// Receives a fault point on this thread.
pub fn see(done: &str, place: &Path) {
    if thread::current().name() != Some(VICTIM) {
        return;
    }
    let mut state = state();
    let number = state.seen;
    state.seen += 1;
    let Some((fate, at)) = state.fate else { return };
    if number == at {
        state.last_step = Some(describe(done, place));
        CHANGED.notify_all();
    }
    match fate {
        Fate::Dies if number >= at => {
            drop(state);
            std::panic::resume_unwind(Box::new("died"));
        }
        // Its other threads stand still too.
        Fate::Hangs if number >= at => {
            drop(CHANGED.wait_while(state, |state| !state.continues));
        }
        _ => {}
    }
}
