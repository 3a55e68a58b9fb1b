//! Slurm watcher: turns what slurmctld and slurmdbd show into events.
//!
//! The watcher asks slurmctld for all jobs (one `squeue --json` each [`SlurmOptions::interval`])
//! and, where there is a slurmdbd, accounting for the attempts that ended since (`sacct -D`). It
//! keeps no truth of its own that it could not find again: see [`Watcher`].
//!
//! An attempt is identified by its start, as in the `sacct` import: `attempt_id` is the start in
//! ms. A resize ends one attempt (`RESIZED`) and starts the next, as accounting has two records of
//! it.

mod answers;
mod events;
mod inventory;
mod observed;
mod state;
mod tracker;
mod watcher;

pub use answers::{AnswerWatcher, Capacity};
pub use watcher::{PollError, SlurmOptions, Watcher, WatcherHandle, start};
