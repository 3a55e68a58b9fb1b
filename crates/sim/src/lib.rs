//! Deterministic discrete-event cluster simulator.
//!
//! [`Sim`] is the engine: nodes, gangs, queues, online services, and the time that each change
//! takes. GPU time is counted in whole GPU-µs, and every GPU is in exactly one class at each
//! moment. [`target::SimTarget`] puts the autopilot's scheduler port in front of it, with faults.
//! [`backtest`] compares schedulers on the same jobs and demand. [`soak`] runs the product on
//! random clusters with random faults and checks invariants.
//!
//! Nothing here reads a clock or a random source: the same description, jobs and seed give the same
//! result, byte for byte. Design: `docs/design/simulator.md`.
//!
//! ```
//! use tidegate_sim::{ClusterSpec, HOUR_US, JobSpec, Sim};
//!
//! // One node of 8 GPUs, two jobs of 8 GPUs and one hour each.
//! let jobs = vec![JobSpec::plain(0, 8, HOUR_US), JobSpec::plain(0, 8, HOUR_US)];
//! let mut sim = Sim::new(ClusterSpec::uniform(&[1], 8), jobs, vec![])?;
//! assert!(sim.run_to_end(24 * HOUR_US));
//! assert_eq!(sim.outcome().done, 2);
//! # Ok::<(), tidegate_sim::SimError>(())
//! ```

#![warn(missing_docs)]

mod accessors;
mod audit;
mod backfill;
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
mod reports;
mod reservation;
mod reserve;
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
pub use outcome::{Outcome, TeamOutcome};
pub use reports::Reports;
pub use reservation::Reservation;
pub use sim::Sim;
pub use spec::{
    Backfill, Checkpoint, ClusterSpec, Elastic, JobSpec, Latency, NodeSpec, PoolSpec, Schedule, ServiceSpec,
    TeamSpec, padded_estimate_us,
};
pub use units::{DAY_US, HOUR_US, MINUTE_US, PPM, SECOND_US, gpu_hours};

/// An error in the description of a simulation.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SimError {
    /// The description is inconsistent.
    #[error("the simulated cluster does not fit together: {what}")]
    Spec {
        /// The inconsistency, and how to fix it.
        what: String,
    },
}
