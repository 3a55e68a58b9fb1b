//! A simulated site: one coherent cluster, as its collectors report it.
//!
//! [`Site`] is a cluster of `tidegate-sim` with real arrivals and a real tide of serving, beside
//! a pool for notebooks. What it does becomes the answers of Slurm's programs, the readings of
//! agents and the lines of training jobs. From there on the product's own code makes the events:
//! the Slurm watcher, the agent's batches, the receiver of step reports. [`Pilot`] lets the
//! product's autopilot run it, and [`Feed`] appends what was observed to a log.
//!
//! Nothing here reads a clock: the same files, seed and times give the same site.
//! Design: `docs/design/simulator.md`.

#![warn(missing_docs)]

mod agent;
pub mod draw;
mod feed;
mod files;
mod habits;
pub mod levels;
mod pilot;
mod plan;
mod queue;
mod script;
mod site;
mod slurm;
mod training;

pub use feed::Feed;
pub use files::{prices, topology};
pub use pilot::Pilot;
pub use plan::{CLUSTER, GPUS, Times};
pub use site::Site;

/// The site cannot be made, or what it did cannot be passed on.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages describe the variants")]
pub enum DemoError {
    #[error(transparent)]
    Trace(#[from] tidegate_evaluation::trace::TraceError),
    #[error(transparent)]
    Sim(#[from] tidegate_sim::SimError),
    #[error(transparent)]
    Slurm(#[from] tidegate_slurm::CommandError),
    #[error("a step report of the simulated site is refused: {0}")]
    Step(String),
    #[error(transparent)]
    Event(#[from] tidegate_events::InvalidEvent),
    #[error(transparent)]
    Log(#[from] tidegate_log::LogError),
    #[error(transparent)]
    Journal(#[from] tidegate_autopilot::executor::JournalError),
}
