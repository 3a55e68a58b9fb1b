//! Who may use how much: pools, owners, loans, reservations.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::{JobId, NodeName, OwnerName, PoolName};

/// A pool of nodes.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Pool {
    /// Least GPUs that must stay in service in it, whatever happens.
    pub floor_gpus: u32,
    /// What a GPU of it costs, millionths of the currency's unit per hour; `None`: no price is
    /// known.
    pub price_micros_per_gpu_hour: Option<u64>,
}

/// A team or service.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Owner {
    /// What it may use, by pool.
    pub shares: BTreeMap<PoolName, Share>,
}

/// What an owner may use of a pool.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Share {
    /// GPUs it is entitled to.
    pub quota_gpus: u32,
    /// GPUs it may use at most, loans to it not counted; `None`: no limit.
    pub limit_gpus: Option<u32>,
    /// GPUs of its quota that are never lent.
    pub floor_gpus: u32,
    /// Whether any of it may be lent.
    pub lendable: bool,
    /// GPUs it could use now, running and waiting work together, or what a service needs for its
    /// load; `None`: not known, so nothing may be lent.
    pub demand_gpus: Option<u32>,
    /// How long it took lately to take lent GPUs back that were in use, from the decision until
    /// they were ready, milliseconds: what was enough 99 times in 100. `None`: too few were
    /// measured, and the promised time counts.
    pub reclaim_took_ms: Option<i64>,
}

/// Who wrote what stands in the target.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Writer {
    /// We, with this generation, and it is unchanged.
    Autopilot {
        /// Generation written with it.
        generation: u64,
    },
    /// Somebody else, or somebody changed it after us: it is theirs.
    Other,
}

/// A loan that is open.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Loan {
    /// Whose GPUs they are.
    pub from: OwnerName,
    /// Who may use them meanwhile.
    pub to: OwnerName,
    /// The pool they are of.
    pub pool: PoolName,
    /// GPUs lent and not taken back yet. Those of a reclaim count until they are free.
    pub gpus: u32,
    /// The nodes lent whole; empty where a number of GPUs is lent and no certain ones.
    pub nodes: BTreeSet<NodeName>,
    /// When it began.
    pub since_us: i64,
    /// When it ends by itself, with nobody doing anything.
    pub expires_us: i64,
    /// Promise to the owner: from the decision to take back until the GPUs are free.
    pub reclaim_within_ms: i64,
    /// When the reclaim that is under way began; `None`: none is.
    pub reclaiming_since_us: Option<i64>,
    /// GPUs of it that are being taken back and not free yet.
    pub reclaiming_gpus: u32,
    /// Nodes of it that are being taken back and not free yet.
    pub reclaiming_nodes: BTreeSet<NodeName>,
    /// Who wrote it last.
    pub writer: Writer,
    /// Jobs that use it, where the scheduler tells.
    pub jobs: BTreeSet<JobId>,
}

/// A reservation of the scheduler.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reservation {
    /// Who may use it.
    pub owner: OwnerName,
    /// The pool it is of.
    pub pool: PoolName,
    /// GPUs of it.
    pub gpus: u32,
    /// Its nodes; empty where the scheduler chooses them.
    pub nodes: BTreeSet<NodeName>,
    /// When it begins.
    pub start_us: i64,
    /// When it ends by itself; `None`: never.
    pub end_us: Option<i64>,
    /// Who wrote it last.
    pub writer: Writer,
}
