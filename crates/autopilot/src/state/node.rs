//! Nodes: what they are, how well they are, and who took them out of service.

use serde::{Deserialize, Serialize};

use super::PoolName;

/// A node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Node {
    /// Pool it belongs to. A loan does not change it.
    pub pool: PoolName,
    /// Failure domain: rack or switch. Nodes without one are a domain each.
    pub rack: Option<String>,
    /// Model of its GPUs, as the scheduler or the driver spells it.
    pub gpu_model: String,
    /// GPUs it has.
    pub gpus: u32,
    /// What the scheduler says.
    pub state: NodeState,
    /// What its devices say.
    pub health: Health,
    /// Who drained it, if it is drained or draining.
    pub drain: Option<Drain>,
    /// Somebody marked it as not to be touched.
    pub do_not_disrupt: bool,
}

/// What the scheduler says of a node, drains aside.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NodeState {
    /// It takes or runs jobs.
    Up,
    /// It does not answer, or was set down.
    Down,
    /// Nobody knows; never read as up, drained or free.
    Unknown,
}

/// What is known of a node's health. See `tidegate_insight::health`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Health {
    /// Probability that the node is bad, millionths; `None`: not observed.
    pub bad_ppm: Option<u32>,
    /// Kinds of evidence that speak for it (`xid`, `ecc`, `link`, `thermal`, `straggler`,
    /// `job_failures`), each once, sorted.
    pub families: Vec<String>,
    /// One signal that alone means that it does no work, e.g. XID 79.
    pub fatal: bool,
    /// How much slower it makes the gang it works in, millionths of the gang's rate; `None`: not
    /// measured.
    pub slowdown_ppm: Option<u32>,
    /// Since when it has been found well again after a drain: a check passed.
    pub checked_good_us: Option<i64>,
}

/// A drain: no new jobs, running ones go on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Drain {
    /// Whose it is.
    pub by: DrainedBy,
    /// Since when, where it is known.
    pub since_us: Option<i64>,
    /// What is written at the node.
    pub reason: String,
}

/// Who drained a node.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DrainedBy {
    /// We did, and our marker is still there unchanged.
    Autopilot {
        /// The action.
        action: String,
        /// Generation written into the marker.
        generation: u64,
    },
    /// Somebody else did, or changed what we wrote: it is theirs.
    Other,
}

impl Node {
    /// Whether the scheduler gives it new jobs.
    pub fn takes_jobs(&self) -> bool {
        self.state == NodeState::Up && self.drain.is_none()
    }
}
