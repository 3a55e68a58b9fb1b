//! Jobs: what they are, where they run, and the cost of disturbing them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{LoanId, NodeName, OwnerName, PoolName, ScalingCurve};

/// A waiting or running job, or a service.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Job {
    /// Owner.
    pub owner: OwnerName,
    /// Pool it was submitted to.
    pub pool: PoolName,
    /// Queue, QOS or partition, where a pool has several.
    pub queue: Option<String>,
    /// Priority; higher goes first.
    pub priority: i64,
    /// Kind of workload.
    pub kind: JobKind,
    /// GPUs requested. Elastic job: its guaranteed size. Service: what it holds.
    pub gpus: u32,
    /// Whether it waits or runs.
    pub state: JobState,
    /// GPUs held, by node. Empty while it waits.
    pub placement: BTreeMap<NodeName, u32>,
    /// Node that cannot be taken from it: the batch host on Slurm.
    pub anchor_node: Option<NodeName>,
    /// Starts so far minus one. Distinguishes a requeued job from its earlier attempt.
    pub restarts: u32,
    /// Loan it runs on, where the scheduler reports it.
    pub loan: Option<LoanId>,
    /// It may be stopped for others (spot, low tier). Other jobs are never preempted.
    pub preemptible: bool,
    /// Times it was stopped for others in the last 24 hours, by anyone.
    pub preemptions_24h: u32,
    /// Checkpoints and restart costs.
    pub checkpoint: Checkpoint,
    /// Throughput by size. `None`: unknown.
    pub curve: Option<ScalingCurve>,
    /// Work left, ms on one GPU of the curve (rate 1). `None`: unknown.
    pub remaining_work_ms: Option<i64>,
    /// Expected end. `None`: unknown.
    pub expected_end_us: Option<i64>,
    /// When it ends in eight of ten cases. `None`: unknown, or certain.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end_within_us: Option<(i64, i64)>,
    /// When its size last changed.
    pub resized_us: Option<i64>,
    /// The owner allows the autopilot to change it.
    pub opt_in: bool,
    /// The owner forbids disturbing it. Overrides `opt_in`.
    pub do_not_disrupt: bool,
}

/// Kind of workload.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum JobKind {
    /// Needs all its GPUs at once; fixed size.
    Gang,
    /// Can change size while it runs.
    Elastic {
        /// Fewest GPUs it runs with.
        min_gpus: u32,
        /// Most GPUs it can use.
        max_gpus: u32,
        /// Sizes it supports, ascending. Empty: any between least and most.
        sizes: Vec<u32>,
        /// How it grows.
        grow: GrowBy,
    },
    /// Serves requests and never ends.
    Service {
        /// GPUs its load needs now. `None`: unknown.
        needed_gpus: Option<u32>,
    },
}

/// How an elastic job grows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GrowBy {
    /// In place.
    Resize,
    /// Stops and restarts at the new size from its last checkpoint.
    Requeue,
    /// Single-node jobs join it.
    Satellites,
    /// Not at all.
    Never,
}

/// Scheduling state of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum JobState {
    /// Waits.
    Pending {
        /// Since when.
        since_us: i64,
    },
    /// Runs.
    Running {
        /// Start of this attempt.
        since_us: i64,
    },
    /// Being stopped, started or resized; must not be touched.
    Changing {
        /// Since when.
        since_us: i64,
    },
    /// Unknown.
    Unknown,
}

/// A job's checkpoints, its steps, and what interrupting it costs. Durations other than that of a
/// step are measured for the job's family.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Checkpoint {
    /// When the last checkpoint completed. `None`: none since the start, or unknown.
    pub last_us: Option<i64>,
    /// Time to write one.
    pub save_ms: Option<i64>,
    /// Time from start to useful work.
    pub restart_ms: Option<i64>,
    /// Wait imposed by the scheduler between stop and restart, given free GPUs.
    pub requeue_ms: Option<i64>,
    /// Pause of a resize while it runs.
    pub resize_ms: Option<i64>,
    /// It writes a checkpoint on notice and acknowledges it.
    pub on_notice: bool,
    /// Whether jobs of its team resume where they were stopped, by how long restarted ones ran.
    /// `None`: too few have shown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resumes: Option<bool>,
    /// Time of a training step of this attempt, checkpoints apart, µs: the median of the last ones.
    /// `None`: it reports none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub step_us: Option<i64>,
}

impl Job {
    /// GPUs it holds.
    pub fn held_gpus(&self) -> u32 {
        self.placement.values().sum()
    }

    /// Start of the current run. `None`: not running or unknown.
    pub fn running_since_us(&self) -> Option<i64> {
        match self.state {
            JobState::Running { since_us } => Some(since_us),
            _ => None,
        }
    }

    /// Start of the current wait. `None`: not waiting or unknown.
    pub fn pending_since_us(&self) -> Option<i64> {
        match self.state {
            JobState::Pending { since_us } => Some(since_us),
            _ => None,
        }
    }

    /// Sizes it may take, ascending. A job that is not elastic has only its own.
    pub fn sizes(&self) -> Vec<u32> {
        match &self.kind {
            JobKind::Elastic { min_gpus, max_gpus, sizes, .. } => {
                let within = |size: &u32| *size >= *min_gpus && *size <= *max_gpus;
                if sizes.is_empty() {
                    (*min_gpus..=*max_gpus).collect()
                } else {
                    sizes.iter().copied().filter(within).collect()
                }
            }
            JobKind::Gang | JobKind::Service { .. } => vec![self.gpus],
        }
    }
}
