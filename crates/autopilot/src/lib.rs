//! Autopilot: decides what to change on a GPU cluster, whether it may be changed now, and what the
//! change achieved.
//!
//! The crate is pure: time and randomness are arguments, the same input gives the same bytes, and
//! nothing here reads a file, a clock or the network. A [`target::Target`] (Slurm or the simulator)
//! observes a [`state::ClusterState`] and applies each [`action::Action`]. The [`planner`] decides
//! under a [`policy::Policy`], the [`guard`] allows or refuses, an [`intent`] is the state machine
//! of one decision, and the [`executor`] ties them together over a journal.
//!
//! ```
//! use tidegate_autopilot::forecast::RecordedForecast;
//! use tidegate_autopilot::planner::plan;
//! use tidegate_autopilot::policy::Policy;
//! use tidegate_autopilot::state::ClusterState;
//!
//! let (state, forecast) = (ClusterState::default(), RecordedForecast::default());
//! let (made, report) = plan(&Policy::shipped(), &state, &forecast, None, 0, 7);
//! assert!(made.decisions.is_empty(), "an empty cluster calls for nothing");
//! assert_eq!(report.plan, made.id);
//! ```
#![warn(missing_docs)]

pub mod action;
pub mod dry_run;
pub mod executor;
mod fingerprint;
#[cfg(test)]
mod fixture;
pub mod forecast;
pub mod guard;
pub mod impact;
pub mod intent;
pub mod names;
pub mod pairs;
pub mod planner;
pub mod policy;
pub mod promise;
pub mod rollout;
pub mod scorecard;
pub mod slo;
pub mod state;
pub mod target;
