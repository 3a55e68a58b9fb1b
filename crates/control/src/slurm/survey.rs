//! What a check of the site asks Slurm for beyond the state: jobs as they declare themselves, and
//! what lies outside of the pools. It changes nothing.

use std::collections::BTreeMap;

use tidegate_autopilot::target::TargetError;
use tidegate_slurm::JobPhase;

use super::ask::unanswered;
use super::declare::Declaration;
use super::{SlurmTarget, inventory, notes, probe, queue, satellites};

/// A Slurm as a check of the site finds it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Survey {
    /// User that asked.
    pub user: String,
    /// What Slurm or our rights on it lack here and would not lack elsewhere.
    pub lacking: Vec<String>,
    /// Open jobs that hold or ask for GPUs, without our own.
    pub jobs: Vec<SurveyedJob>,
    /// GPUs by partition, without those that have none.
    pub partitions: BTreeMap<String, u32>,
}

/// An open job.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct SurveyedJob {
    pub id: String,
    pub account: String,
    /// Its owner; that of the account's name if no owner maps it.
    pub owner: String,
    /// Partitions that it was submitted to.
    pub partitions: Vec<String>,
    /// Whether its comment declares anything.
    pub declares: bool,
    /// What is wrong with its comment.
    pub problem: Option<String>,
    /// It asks to be notified before it is disturbed.
    pub wants_notice: bool,
    pub has_time_limit: bool,
    /// What it waits for, if no GPU gives it that: then it is not planned for.
    pub waits_for: Option<String>,
}

impl SlurmTarget {
    /// Asks Slurm for all of it.
    ///
    /// # Errors
    /// Slurm does not answer, or not so that it can be read.
    pub(crate) fn survey(&self) -> Result<Survey, TargetError> {
        let records = self.slurm.client.jobs().map_err(unanswered)?;
        let limits: BTreeMap<String, bool> =
            records.iter().map(|job| (job.id.clone(), job.time_limit_ms.is_some())).collect();
        let mut partitions: BTreeMap<String, u32> = BTreeMap::new();
        for node in inventory::nodes(&self.slurm)?.values().filter(|node| node.gpus > 0) {
            for partition in &node.partitions {
                *partitions.entry(partition.clone()).or_default() += node.gpus;
            }
        }
        let is_ours =
            |job: &queue::QueueJob| job.name == notes::NAME || satellites::read(&job.name).is_some();
        let jobs = queue::from_records(records)?.into_iter();
        let jobs = jobs.filter(|job| job.is_open() && !is_ours(job) && job.asked_gpus != Some(0));
        let lacking = self.setup.lacking.iter().filter(|lacking| !probe::NEVER.contains(&lacking.as_str()));
        Ok(Survey {
            user: self.setup.user.clone(),
            lacking: lacking.cloned().collect(),
            jobs: jobs.map(|job| self.surveyed(job, &limits)).collect(),
            partitions,
        })
    }

    fn surveyed(&self, job: queue::QueueJob, limits: &BTreeMap<String, bool>) -> SurveyedJob {
        let declared = Declaration::parse(&job.comment);
        let waits = job.phase == JobPhase::Waiting && job.waits_for_others;
        SurveyedJob {
            owner: self.config.owner_of(&job.account),
            declares: declared != Declaration::default(),
            problem: Declaration::problem(&job.comment),
            wants_notice: declared.notice,
            has_time_limit: limits.get(&job.id).copied().unwrap_or(false),
            partitions: job.partition.split(',').map(str::to_owned).collect(),
            waits_for: waits.then_some(job.reason),
            id: job.id,
            account: job.account,
        }
    }
}
