//! Slurm: how it spells things, and a watcher that makes events of what slurmctld and slurmdbd say.
//!
//! Nothing outside this module knows Slurm's spellings. The watcher asks slurmctld for all jobs
//! (one `squeue --json` each [`SlurmOptions::interval`]) and, where there is slurmdbd, accounting
//! for the attempts that ended since (`sacct -D`). It keeps no truth of its own that it cannot find
//! again: see [`Watcher`].
//!
//! An attempt is told apart by its start, as in the `sacct` import: `attempt_id` is the start in
//! ms. A resize ends one attempt (`RESIZED`) and starts the next, as it is two records of
//! accounting.

mod accounting;
mod command;
mod inventory;
mod queue;
mod record;
mod spelling;
mod state;
mod states;
mod tracker;
mod values;
mod watcher;

/// Slurm's answers read, for others who ask it.
pub mod read {
    pub use super::command::Programs;
    pub use super::inventory::{fields, lines};
    pub use super::spelling::{
        JobId, NodeGpus, Task, TresGpus, array_tasks, exit_code, hosts, is_null, job_id, node_gpus,
        time_limit_ms, tres_gpus,
    };
    pub use super::states::{Phase, phase_in_queue};
    pub use super::values::{Number, Texts};
}

pub use command::CommandError;
pub use watcher::{PollError, SlurmOptions, Watcher, WatcherHandle, start};
