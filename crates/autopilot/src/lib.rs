//! Autopilot: what to change on a cluster, whether it may be changed, and what became of it. Pure:
//! time and randomness are arguments, the same input gives the same bytes, and nothing here reads a
//! file, a clock or the network.
//!
//! A [`target::Target`] (Slurm, Kubernetes, the simulator) tells the [`state::ClusterState`] and
//! carries out an [`action::Action`]; the [`executor`] is the one who asks it to.
#![warn(missing_docs)]

pub mod action;
pub mod executor;
mod fingerprint;
#[cfg(test)]
mod fixture;
pub mod forecast;
pub mod guard;
pub mod intent;
pub mod names;
pub mod planner;
pub mod policy;
pub mod rollout;
pub mod scorecard;
pub mod slo;
pub mod state;
pub mod target;
