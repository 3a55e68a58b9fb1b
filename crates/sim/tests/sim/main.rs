//! The simulator, and the autopilot on it.

#![allow(clippy::unwrap_used)]

mod dry_run;
mod engine;
mod executor;
mod fields;
mod observe;
mod processes;
mod promises;
mod rollout;
mod saved_state;
mod schedulers;
mod scores;
mod soak;
mod target;
