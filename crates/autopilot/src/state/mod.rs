//! Snapshot of a cluster: plain data in a fixed order, from the target and the log.
//!
//! Times are microseconds since 1970 (UTC), durations milliseconds, GPUs whole devices. Unknown is
//! `None`.

mod capacity;
mod curve;
mod forecast_origin;
mod job;
mod loss;
mod node;
mod occupancy;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

pub use capacity::{Loan, Owner, OwnerPromise, Pool, Reservation, Share, Waits, Writer};
pub use curve::{CurveError, CurvePoint, ScalingCurve};
pub use forecast_origin::{BoundsDrift, ForecastOrigin};
pub use job::{Checkpoint, GrowBy, Job, JobKind, JobState};
pub use loss::{Interruption, interruption};
pub use node::{Drain, DrainedBy, Health, Node, NodeState};
pub use occupancy::Occupancy;

pub use crate::names::{JobId, LoanId, NodeName, OwnerName, PoolName, ReservationName};

/// A cluster as observed at one time.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ClusterState {
    /// Name of the cluster.
    pub cluster: String,
    /// When the target was observed.
    pub at_us: i64,
    /// Nodes by name.
    pub nodes: BTreeMap<NodeName, Node>,
    /// Pools by name.
    pub pools: BTreeMap<PoolName, Pool>,
    /// Owners by name, with their share of each pool.
    pub owners: BTreeMap<OwnerName, Owner>,
    /// Waiting and running jobs, and services.
    pub jobs: BTreeMap<JobId, Job>,
    /// Open loans.
    pub loans: BTreeMap<LoanId, Loan>,
    /// Scheduler reservations, current and future.
    pub reservations: BTreeMap<ReservationName, Reservation>,
    /// Data sources and their freshness.
    pub sources: BTreeMap<String, Source>,
    /// Objects on which log and target disagree.
    pub disagreements: Vec<Disagreement>,
    /// By kind of action: factor that its predicted benefits are multiplied by, millionths, learned
    /// from what came of earlier ones. Empty: nothing is known.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub corrections_ppm: BTreeMap<String, u32>,
    /// Forecast behind each owner's demand in each pool. Empty: not recorded.
    #[serde(rename = "foreseen", skip_serializing_if = "BTreeMap::is_empty")]
    pub forecast_origins: BTreeMap<OwnerName, BTreeMap<PoolName, ForecastOrigin>>,
}

/// A data source: a watcher, an agent, or a service's load balancer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Source {
    /// Event time of its last event. `None`: none yet.
    pub last_event_us: Option<i64>,
}

/// An object of the cluster, for modes, limits and refusals.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Object {
    /// A node.
    Node(NodeName),
    /// A job.
    Job(JobId),
    /// A team or service.
    Owner(OwnerName),
    /// A pool.
    Pool(PoolName),
    /// A loan.
    Loan(LoanId),
    /// A reservation.
    Reservation(ReservationName),
}

impl std::fmt::Display for Object {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Node(name) => write!(f, "node {name}"),
            Self::Job(name) => write!(f, "job {name}"),
            Self::Owner(name) => write!(f, "owner {name}"),
            Self::Pool(name) => write!(f, "pool {name}"),
            Self::Loan(name) => write!(f, "loan {name}"),
            Self::Reservation(name) => write!(f, "reservation {name}"),
        }
    }
}

/// Log and target disagree about an object.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Disagreement {
    /// The object.
    pub object: Object,
    /// What the log says.
    pub log: String,
    /// What the target says.
    pub target: String,
}

impl ClusterState {
    /// GPUs of `pool` that `owner` lends, including those being reclaimed.
    pub fn lent_gpus(&self, owner: &str, pool: &str) -> u32 {
        let ours = self.loans.values().filter(|loan| loan.from == owner && loan.pool == pool);
        ours.map(|loan| loan.gpus).sum()
    }

    /// Whether `job` runs on lent capacity. A borrower has agreed to give it back.
    pub fn on_loan(&self, job: &Job) -> bool {
        let on_lent_node = |node: &NodeName| self.loans.values().any(|loan| loan.nodes.contains(node));
        job.loan.is_some() || job.placement.keys().any(on_lent_node)
    }

    /// Share of `owner` in `pool`.
    pub fn share(&self, owner: &str, pool: &str) -> Option<&Share> {
        self.owners.get(owner)?.shares.get(pool)
    }
}
