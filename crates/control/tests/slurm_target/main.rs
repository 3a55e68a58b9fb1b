//! The Slurm target against a real Slurm: slurmctld and eight slurmd on this machine
//! (`tests/slurm/cluster.sh`). Each call is made by a target that was opened for it, as after a
//! crash.
//!
//! Where Slurm is not installed these tests are skipped; with `CI=true` it is installed, or they
//! fail.

#![allow(clippy::unwrap_used)]

/// A real Slurm, of which not everything is used here.
#[allow(dead_code)]
#[path = "../../../collect/tests/slurm/cluster.rs"]
mod cluster;

mod capacity;
mod day;
mod faults;
mod jobs;
mod killed;
mod limits;
mod loans;
mod nodes;
mod rights;
mod satellites;
mod site;
