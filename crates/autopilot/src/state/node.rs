//! Nodes: identity, health, and drains.

use serde::{Deserialize, Serialize};

use super::PoolName;

/// A node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Node {
    /// Pool it belongs to. A loan does not change it.
    pub pool: PoolName,
    /// Failure domain: rack or switch. A node without one is its own domain.
    pub rack: Option<String>,
    /// GPU model as the scheduler or driver spells it.
    pub gpu_model: String,
    /// GPUs it has.
    pub gpus: u32,
    /// State reported by the scheduler.
    pub state: NodeState,
    /// Health of its devices.
    pub health: Health,
    /// Its drain, if it is drained or draining.
    pub drain: Option<Drain>,
    /// Marked do-not-disrupt.
    pub do_not_disrupt: bool,
}

/// Scheduler state of a node, apart from drains.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NodeState {
    /// Takes or runs jobs.
    Up,
    /// Does not respond, or was set down.
    Down,
    /// Unknown. Never read as up, drained or free.
    Unknown,
}

/// Health evidence of a node. See `tidegate_insight::health`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Health {
    /// Probability that the node is bad, millionths. `None`: not observed.
    pub bad_ppm: Option<u32>,
    /// Kinds of evidence against it (`xid`, `ecc`, `link`, `thermal`, `straggler`, `job_failures`),
    /// unique and sorted.
    pub families: Vec<String>,
    /// A single signal that proves it does no work, such as XID 79.
    pub fatal: bool,
    /// Slowdown it causes in its gang, millionths of the gang's rate. `None`: not measured.
    pub slowdown_ppm: Option<u32>,
    /// Since when a check has found it healthy again after a drain.
    pub checked_good_us: Option<i64>,
}

/// A drain: no new jobs; running jobs continue.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Drain {
    /// Who made it.
    pub by: DrainedBy,
    /// Since when, if known.
    pub since_us: Option<i64>,
    /// Reason written at the node.
    pub reason: String,
}

/// Who drained a node.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DrainedBy {
    /// The autopilot, and its marker is unchanged.
    Autopilot {
        /// Action that drained it.
        action: String,
        /// Generation written into the marker.
        generation: u64,
    },
    /// Somebody else drained it or changed our marker. It is theirs.
    Other,
}

impl Node {
    /// Whether the scheduler places new jobs on it.
    pub fn takes_jobs(&self) -> bool {
        self.state == NodeState::Up && self.drain.is_none()
    }
}
