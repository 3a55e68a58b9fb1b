//! A process among others, as a thread of its own, that dies or hangs at an instant.
//!
//! Whoever does its work is known by the name of the thread. Dead it does nothing durable any more:
//! each further step ends the thread that takes it, so what is left is what kill -9 leaves, while
//! the other process has its memory still.

use std::path::Path;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

use crate::camera::{describe, watch};

/// Name of its threads.
pub const VICTIM: &str = "victim";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// It is gone.
    Dies,
    /// It stands still until [`go_on`], as one whose machine was frozen.
    Hangs,
}

#[derive(Debug, Default)]
struct State {
    /// What becomes of it, and at which instant.
    fate: Option<(Fate, usize)>,
    seen: usize,
    /// What was done last before it met its fate.
    met: Option<String>,
    goes_on: bool,
}

static STATE: Mutex<State> = Mutex::new(State { fate: None, seen: 0, met: None, goes_on: false });
static CHANGED: Condvar = Condvar::new();

fn state() -> MutexGuard<'static, State> {
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The next victim meets its fate at the instant of this number.
pub fn doom(fate: Fate, at: usize) {
    watch();
    *state() = State { fate: Some((fate, at)), ..State::default() };
}

/// What it had done last when it met its fate, if it did.
pub fn met() -> Option<String> {
    state().met.clone()
}

/// Lets one that hangs go on.
pub fn go_on() {
    state().goes_on = true;
    CHANGED.notify_all();
}

/// Hears of an instant on this thread.
pub fn see(done: &str, place: &Path) {
    if thread::current().name() != Some(VICTIM) {
        return;
    }
    let mut state = state();
    let number = state.seen;
    state.seen += 1;
    let Some((fate, at)) = state.fate else { return };
    if number == at {
        state.met = Some(describe(done, place));
        CHANGED.notify_all();
    }
    match fate {
        Fate::Dies if number >= at => {
            drop(state);
            std::panic::resume_unwind(Box::new("died"));
        }
        // Others of its threads stand still as well.
        Fate::Hangs if number >= at => {
            drop(CHANGED.wait_while(state, |state| !state.goes_on));
        }
        _ => {}
    }
}
