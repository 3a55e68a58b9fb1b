//! The history that a run appends: generated from its seed, the same in every process.

use tidegate_lake::testing::histories::{History, Records};

use tidegate_workspace::CommandError;

/// A job is submitted every so many minutes, about.
const MINUTES_PER_JOB: u32 = 20;
/// Not before midnight does a history have two days.
const LEAST_MINUTES: u32 = 100;

/// What a run's history follows from.
#[derive(Debug, Clone, Copy)]
pub struct Plan {
    pub seed: u64,
    pub jobs: u32,
    pub partitions: u32,
}

/// Records of every topic.
pub fn records(plan: Plan) -> Result<Records, CommandError> {
    let Plan { seed, jobs, partitions } = plan;
    Ok(History { seed, jobs, minutes: (jobs * MINUTES_PER_JOB).max(LEAST_MINUTES) }.records(partitions)?)
}
