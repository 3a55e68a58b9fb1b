//! A cluster that is not there: deterministic, with a virtual clock, for trying policies and for
//! proving that the autopilot keeps its promises.
//!
//! [`Sim`] is the engine: nodes, gangs, queues, services, and what every change takes. GPU time is
//! counted in integers of GPU-µs and every GPU is in exactly one class at each moment. Nothing here
//! reads a clock or draws chance by itself: the same description, jobs and seed give the same
//! result.

mod accessors;
mod audit;
pub mod backtest;
mod control;
mod curve;
mod event;
pub mod forecast_fault;
pub mod generate;
mod job;
mod ledger;
mod nodes;
pub mod observe;
mod outcome;
pub mod pilot;
mod queue;
pub mod scenario;
mod schedule;
pub mod schedulers;
mod sim;
pub mod soak;
mod spec;
pub mod target;
mod units;

pub use control::ControlError;
pub use curve::{amdahl, measured};
pub use event::{AttemptEnd, Recording, SimEvent};
pub use job::{Job, JobState};
pub use ledger::{Class, Ledger};
pub use nodes::{Held, Node, Place};
pub use outcome::Outcome;
pub use sim::Sim;
pub use spec::{
    Backfill, Checkpoint, ClusterSpec, Elastic, JobSpec, Latency, NodeSpec, PoolSpec, Schedule, ServiceSpec,
    TeamSpec, padded_estimate_us,
};
pub use units::{DAY_US, HOUR_US, MINUTE_US, PPM, SECOND_US, gpu_hours};

/// What makes a simulation impossible.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SimError {
    /// The description does not fit together.
    #[error("the simulated cluster does not fit together: {what}")]
    Spec {
        /// What does not, and how to mend it.
        what: String,
    },
}
