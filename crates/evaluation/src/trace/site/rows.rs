//! Rows of a site's tables. Times are µs since 1970; `None` means unknown.

use serde::Deserialize;

/// A row of table `attempts`: a wait and the run after it, or a wait alone.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
pub struct Attempt {
    /// The job.
    pub job_id: String,
    /// Its team.
    pub team: Option<String>,
    /// Its partition, queue or node pool.
    pub pool: Option<String>,
    /// GPU model held or requested.
    pub gpu_model: Option<String>,
    /// Thousandths of a GPU held, or requested before the start.
    pub gpus_milli: Option<i64>,
    /// Thousandths of a GPU requested.
    pub asked_gpus_milli: Option<i64>,
    /// When the job was submitted.
    pub submit_us: Option<i64>,
    /// When this wait began and ended.
    pub queued_from_us: Option<i64>,
    /// See `queued_from_us`.
    pub queued_to_us: Option<i64>,
    /// When the run began and ended.
    pub from_us: Option<i64>,
    /// See `from_us`.
    pub to_us: Option<i64>,
    /// Final state.
    pub final_state: Option<String>,
    /// If open: time up to which the cluster was observed.
    pub as_of_us: Option<i64>,
    /// Lowest scheduler priority of the job.
    pub priority: Option<i64>,
    /// Time limit of the scheduler, ms.
    pub time_limit_ms: Option<i64>,
}

/// A node that was usable at some time of the period.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
pub struct Node {
    /// Its name.
    pub node: String,
    /// Pools it is in, comma separated.
    pub pool: Option<String>,
    /// Model of its GPUs.
    pub gpu_model: Option<String>,
    /// Its GPUs, thousandths.
    pub gpus_milli: i64,
}

/// A team's quota at the start of the period, over all pools for jobs.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
pub struct Quota {
    /// The team.
    pub owner: String,
    /// Thousandths of a GPU.
    pub gpus_milli: i64,
}

/// What the owner of a pool held and requested over some time.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
pub struct Sample {
    /// The pool.
    pub pool: String,
    /// Start.
    pub at_us: i64,
    /// Duration, ms.
    pub interval_ms: i64,
    /// Thousandths of a GPU held and waited for.
    pub gpus_milli: i64,
}

/// Demand of a pool in an hour before the period.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
pub struct Hour {
    /// The pool.
    pub pool: String,
    /// When the hour began, µs since 1970.
    pub at_us: i64,
    /// Mean, thousandths of a GPU.
    pub gpus_milli: i64,
}

/// History of one cluster.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct History {
    /// Name of the cluster.
    pub cluster: String,
    /// Start and end of the period.
    pub from_us: i64,
    /// See `from_us`.
    pub to_us: i64,
    /// All attempts that ended after `from_us`, of jobs submitted before `to_us`.
    pub attempts: Vec<Attempt>,
    /// Nodes; empty if unknown.
    pub nodes: Vec<Node>,
    /// Quotas and limits.
    pub quotas: Vec<Quota>,
    /// Samples of serving pools.
    pub samples: Vec<Sample>,
    /// Hours of serving pools before `from_us`, in order; hours without demand may be missing.
    pub past: Vec<Hour>,
    /// Mean price of a GPU-hour over nodes, millionths of the currency; `None` if unknown.
    pub price_micros: Option<i64>,
}
