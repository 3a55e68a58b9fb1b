//! The history of a run: generated from its seed, identical in every process.

use tidegate_lake::testing::histories::{History, Records};

use tidegate_workspace::CommandError;

/// Average minutes between submissions.
const MINUTES_PER_JOB: u32 = 20;
/// Shortest history that spans midnight, minutes.
const LEAST_MINUTES: u32 = 100;

/// Parameters of a run's history.
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
