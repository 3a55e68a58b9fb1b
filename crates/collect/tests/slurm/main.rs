//! The watcher on a real Slurm: slurmctld and five slurmd on this machine
//! (`tests/slurm/cluster.sh`).
//!
//! Without Slurm these tests are skipped; with `CI=true` Slurm is installed, or they fail.
//! `TIDEGATE_SLURM_JOBS` is the number of jobs of the long one.

#![allow(clippy::unwrap_used)]

mod accounting;
mod bare;
mod hostile;
mod inventory;
mod recorded;
mod watching;
mod workload;
