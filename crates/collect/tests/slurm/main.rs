//! The watcher of Slurm against a real Slurm: slurmctld and five slurmd on this machine
//! (`tests/slurm/cluster.sh`).
//!
//! Where Slurm is not installed these tests are skipped; with `CI=true` it is installed, or they
//! fail. `TIDEGATE_SLURM_JOBS` is the number of jobs of the long one.

#![allow(clippy::unwrap_used)]

mod accounting;
mod bare;
mod cluster;
mod inventory;
mod told;
mod watching;
mod workload;
