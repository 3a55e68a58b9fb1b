//! What a cluster looks like at one time: plain data in a fixed order, as a target observes it and
//! the log tells it.
//!
//! Times are microseconds since 1970 (UTC), durations milliseconds, GPUs whole devices. What nobody
//! knows is `None`.

mod capacity;
mod curve;
mod forecast_origin;
mod job;
mod loss;
mod node;
mod occupancy;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

pub use capacity::{Loan, Owner, Pool, Reservation, Share, Writer};
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
    /// Teams and services by name, with what each may use of which pool.
    pub owners: BTreeMap<OwnerName, Owner>,
    /// Jobs that wait or run, and services.
    pub jobs: BTreeMap<JobId, Job>,
    /// Loans that are open.
    pub loans: BTreeMap<LoanId, Loan>,
    /// Reservations of the scheduler, of now and of times to come.
    pub reservations: BTreeMap<ReservationName, Reservation>,
    /// Where all of this comes from, and how fresh it is.
    pub sources: BTreeMap<String, Source>,
    /// Where log and target tell different things.
    pub disagreements: Vec<Disagreement>,
    /// What foresees the demand of each owner for each pool; none: nobody said.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub foreseen: BTreeMap<OwnerName, BTreeMap<PoolName, ForecastOrigin>>,
}

/// A source of what is known: a watcher, an agent, the load balancer of a service.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Source {
    /// Event time of the last event it told; `None`: it never told one.
    pub last_event_us: Option<i64>,
}

/// What an object is, for modes, limits and refusals.
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

/// Log and target tell different things about an object.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Disagreement {
    /// Of what.
    pub object: Object,
    /// What the log tells.
    pub log: String,
    /// What the target tells.
    pub target: String,
}

impl ClusterState {
    /// GPUs of `pool` that `owner` lends, reclaims under way included.
    pub fn lent_gpus(&self, owner: &str, pool: &str) -> u32 {
        let ours = self.loans.values().filter(|loan| loan.from == owner && loan.pool == pool);
        ours.map(|loan| loan.gpus).sum()
    }

    /// Whether `job` runs on capacity that is lent: whoever uses a loan agreed to give it back.
    pub fn on_loan(&self, job: &Job) -> bool {
        let on_lent_node = |node: &NodeName| self.loans.values().any(|loan| loan.nodes.contains(node));
        job.loan.is_some() || job.placement.keys().any(on_lent_node)
    }

    /// Share of `owner` in `pool`.
    pub fn share(&self, owner: &str, pool: &str) -> Option<&Share> {
        self.owners.get(owner)?.shares.get(pool)
    }
}
