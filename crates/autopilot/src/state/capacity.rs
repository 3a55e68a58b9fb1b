//! Capacity and entitlement: pools, owners, loans, reservations.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::{JobId, NodeName, OwnerName, PoolName};

/// A pool of nodes.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Pool {
    /// GPUs that must always stay in service.
    pub floor_gpus: u32,
    /// Price per GPU-hour, millionths of the currency unit. `None`: unknown.
    pub price_micros_per_gpu_hour: Option<u64>,
    /// Price at which GPUs of its model are rented by the hour. `None`: unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub on_demand_micros_per_gpu_hour: Option<u64>,
}

/// A team or service.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Owner {
    /// Entitlement by pool.
    pub shares: BTreeMap<PoolName, Share>,
    /// Teams of its jobs in events. Empty: the one of its name.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub teams: BTreeSet<String>,
    /// How long its jobs waited for capacity in the last thirty days. `None`: unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waits: Option<Waits>,
    /// What it was promised, and how that stands. `None`: nothing yet.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub promise: Option<OwnerPromise>,
}

/// Waits of an owner's jobs, from when they could start until they started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Waits {
    /// 95th percentile, ms.
    pub p95_ms: i64,
    /// Number of waits.
    pub jobs: u32,
}

/// The journal's side of a promise to an owner: [`crate::promise`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct OwnerPromise {
    /// Its waits in the thirty days before the autopilot first acted. `None`: too few were known.
    pub before: Option<Waits>,
    /// Time of the last thirty days in which it lacked GPUs that it had lent, ms.
    pub unmet_ms: i64,
}

/// An owner's entitlement to a pool.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Share {
    /// GPUs it is entitled to.
    pub quota_gpus: u32,
    /// Most GPUs it may use, loans to it excluded. `None`: no limit.
    pub limit_gpus: Option<u32>,
    /// GPUs of its quota that are never lent.
    pub floor_gpus: u32,
    /// Whether any of it may be lent.
    pub lendable: bool,
    /// GPUs it could use now: running and waiting work together, or what a service needs for its
    /// load. `None`: unknown, so nothing may be lent.
    pub demand_gpus: Option<u32>,
    /// Measured reclaim time of GPUs in use, from the decision until they were free, 99th
    /// percentile, ms. `None`: too few measurements, so the promised time applies.
    pub reclaim_took_ms: Option<i64>,
}

/// Who last wrote an object in the target.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Writer {
    /// The autopilot, and it is unchanged since.
    Autopilot {
        /// Generation written with it.
        generation: u64,
    },
    /// Somebody else, or somebody changed it after us. It is theirs.
    Other,
}

/// An open loan.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Loan {
    /// Lender.
    pub from: OwnerName,
    /// Borrower.
    pub to: OwnerName,
    /// Pool of the GPUs.
    pub pool: PoolName,
    /// GPUs lent, including those being reclaimed that are not free yet.
    pub gpus: u32,
    /// Nodes lent whole. Empty: a number of GPUs on no particular nodes.
    pub nodes: BTreeSet<NodeName>,
    /// When it began.
    pub since_us: i64,
    /// When it ends by itself.
    pub expires_us: i64,
    /// Promise to the lender: time from the decision to reclaim until the GPUs are free, ms.
    pub reclaim_within_ms: i64,
    /// When the reclaim in progress began. `None`: there is none.
    pub reclaiming_since_us: Option<i64>,
    /// GPUs being reclaimed and not free yet.
    pub reclaiming_gpus: u32,
    /// Nodes being reclaimed and not free yet.
    pub reclaiming_nodes: BTreeSet<NodeName>,
    /// Who wrote it last.
    pub writer: Writer,
    /// Jobs that run on it, where the scheduler reports them.
    pub jobs: BTreeSet<JobId>,
}

/// A scheduler reservation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reservation {
    /// Owner who may use it.
    pub owner: OwnerName,
    /// Pool it belongs to.
    pub pool: PoolName,
    /// GPUs reserved.
    pub gpus: u32,
    /// Its nodes. Empty: the scheduler chooses.
    pub nodes: BTreeSet<NodeName>,
    /// When it begins.
    pub start_us: i64,
    /// When it ends by itself. `None`: never.
    pub end_us: Option<i64>,
    /// Who wrote it last.
    pub writer: Writer,
}
