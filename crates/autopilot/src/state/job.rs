//! Jobs: what they are, where they run, and what it would cost to disturb them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{LoanId, NodeName, OwnerName, PoolName, ScalingCurve};

/// A job that waits or runs, or a service.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Job {
    /// Whose it is.
    pub owner: OwnerName,
    /// Pool it was submitted to.
    pub pool: PoolName,
    /// Queue, QOS or partition it waits in, where pools have several.
    pub queue: Option<String>,
    /// Priority: greater goes first.
    pub priority: i64,
    /// What kind of work it is.
    pub kind: JobKind,
    /// GPUs it asked for; of an elastic job the size it is guaranteed, of a service what it holds.
    pub gpus: u32,
    /// Whether it waits or runs.
    pub state: JobState,
    /// GPUs it holds, by node; empty while it waits.
    pub placement: BTreeMap<NodeName, u32>,
    /// Node that cannot be taken from it: on Slurm the batch host.
    pub anchor_node: Option<NodeName>,
    /// Starts so far less one: tells a requeued job from the one before.
    pub restarts: u32,
    /// Loan it runs on, where the scheduler tells.
    pub loan: Option<LoanId>,
    /// It may be stopped for others: spot, low tier. Others are never preempted.
    pub preemptible: bool,
    /// Times it was stopped for others in the last 24 hours, by whomever.
    pub preemptions_24h: u32,
    /// Its checkpoints and what starting again costs.
    pub checkpoint: Checkpoint,
    /// How its throughput depends on its size; `None`: not known.
    pub curve: Option<ScalingCurve>,
    /// Work left, milliseconds on one GPU of the curve (rate 1); `None`: not known.
    pub remaining_work_ms: Option<i64>,
    /// When it will end, expected; `None`: not known.
    pub expected_end_us: Option<i64>,
    /// When its size last changed.
    pub resized_us: Option<i64>,
    /// Its owner let the autopilot change it.
    pub opt_in: bool,
    /// Its owner marked it as not to be touched; stronger than `opt_in`.
    pub do_not_disrupt: bool,
}

/// What kind of work a job is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum JobKind {
    /// All of its GPUs at once or none; its size is fixed.
    Gang,
    /// Its size may change while it runs.
    Elastic {
        /// Least GPUs it runs with.
        min_gpus: u32,
        /// Most GPUs it can use.
        max_gpus: u32,
        /// Sizes it declared, rising; empty: any from least to most.
        sizes: Vec<u32>,
        /// How it is made larger.
        grow: GrowBy,
    },
    /// Answers requests; never ends.
    Service {
        /// GPUs it needs for its load now; `None`: not known.
        needed_gpus: Option<u32>,
    },
}

/// How an elastic job is made larger.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GrowBy {
    /// In place.
    Resize,
    /// It is stopped and starts again at the new size, from its last checkpoint.
    Requeue,
    /// Jobs of one node join it.
    Satellites,
    /// Not at all.
    Never,
}

/// Whether a job waits or runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum JobState {
    /// It waits.
    Pending {
        /// Since when.
        since_us: i64,
    },
    /// It runs.
    Running {
        /// Since when: start of this attempt.
        since_us: i64,
    },
    /// It is being stopped, started or changed: it may not be touched.
    Changing {
        /// Since when.
        since_us: i64,
    },
    /// Nobody knows.
    Unknown,
}

/// A job's checkpoints and what an interruption costs. Durations are measured for the job's family.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Checkpoint {
    /// When the last one was complete; `None`: none since it started, or not known.
    pub last_us: Option<i64>,
    /// How long one takes to write.
    pub save_ms: Option<i64>,
    /// From being started to doing useful work.
    pub restart_ms: Option<i64>,
    /// From being stopped to being started where there is room, as far as the scheduler makes it
    /// wait.
    pub requeue_ms: Option<i64>,
    /// A change of size while it runs, without useful work.
    pub resize_ms: Option<i64>,
    /// It writes one when it is told, and says when it has.
    pub on_notice: bool,
}

impl Job {
    /// GPUs it holds.
    pub fn held_gpus(&self) -> u32 {
        self.placement.values().sum()
    }

    /// Since when it runs; `None`: it does not, or nobody knows.
    pub fn running_since_us(&self) -> Option<i64> {
        match self.state {
            JobState::Running { since_us } => Some(since_us),
            _ => None,
        }
    }

    /// Since when it waits; `None`: it does not, or nobody knows.
    pub fn pending_since_us(&self) -> Option<i64> {
        match self.state {
            JobState::Pending { since_us } => Some(since_us),
            _ => None,
        }
    }

    /// Sizes it may have, rising; its own only where it is not elastic.
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
