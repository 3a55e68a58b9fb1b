//! The target on a real Slurm: slurmctld and eight slurmd on this machine
//! (`tests/slurm/cluster.sh`). Each call opens a target of its own, as after a crash.
//!
//! Without Slurm these tests are skipped; with `CI=true` Slurm is installed, or they fail.

#![allow(clippy::unwrap_used)]

mod backfill;
mod capacity;
mod day;
mod evening;
mod faults;
mod jobs;
mod killed;
mod levels;
mod limits;
mod loans;
mod nodes;
mod notices;
mod racks;
mod rights;
mod satellites;
mod site;
