//! Tests of the simulator, and of the autopilot running on it.
//!
//! They are one program: each of these files on its own would compile the whole autopilot again.

#![allow(clippy::unwrap_used)]

mod backfill;
mod dry_run;
mod engine;
mod executor;
mod fields;
mod observe;
mod processes;
mod promises;
mod reservations;
mod rollout;
mod saved_state;
mod schedulers;
mod scores;
mod silent_sites;
mod soak;
mod target;
