//! What is asked of a site's tables: rows as they stand there. Times are µs since 1970; `None` is
//! what nobody told.

use serde::Deserialize;

/// A stretch of a job's life, as table `attempts` has it: a wait and the run behind it, or a wait
/// alone.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
pub struct Attempt {
    /// The job.
    pub job_id: String,
    /// Its team.
    pub team: Option<String>,
    /// Its partition, queue or node pool.
    pub pool: Option<String>,
    /// Model of GPU that it held or asked for.
    pub gpu_model: Option<String>,
    /// Thousandths of a GPU that it held, or asked for where it has not started.
    pub gpus_milli: Option<i64>,
    /// Thousandths of a GPU that it asked for.
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
    /// How it ended.
    pub final_state: Option<String>,
    /// While it is open: up to when the cluster was observed.
    pub as_of_us: Option<i64>,
    /// Scheduler's priority, the least that was told of the job.
    pub priority: Option<i64>,
    /// Run time that the scheduler allows it, ms.
    pub time_limit_ms: Option<i64>,
}

/// A node that jobs could use at some time between the two.
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

/// A quota or limit of a team in force when the time begins, over all pools for jobs.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
pub struct Quota {
    /// The team.
    pub owner: String,
    /// Thousandths of a GPU.
    pub gpus_milli: i64,
}

/// What the owner of a pool held and asked for over some time.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
pub struct Sample {
    /// The pool.
    pub pool: String,
    /// From when on.
    pub at_us: i64,
    /// For how long, ms.
    pub interval_ms: i64,
    /// Thousandths of a GPU held and waited for.
    pub gpus_milli: i64,
}

/// What was held and waited for in a pool in an hour before the time that is looked at.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
pub struct Hour {
    /// The pool.
    pub pool: String,
    /// When the hour began, µs since 1970.
    pub at_us: i64,
    /// Thousandths of a GPU, its mean.
    pub gpus_milli: i64,
}

/// All of it, of one cluster.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct History {
    /// Name of the cluster.
    pub cluster: String,
    /// The time that is looked at.
    pub from_us: i64,
    /// See `from_us`.
    pub to_us: i64,
    /// Every stretch that ended after `from_us`, of jobs submitted before `to_us`.
    pub attempts: Vec<Attempt>,
    /// Nodes; empty where the log knows none.
    pub nodes: Vec<Node>,
    /// Quotas and limits.
    pub quotas: Vec<Quota>,
    /// Samples of pools that serve.
    pub samples: Vec<Sample>,
    /// Hours of pools that serve, before `from_us`, in order; where nothing was held or waited for
    /// there may be none.
    pub past: Vec<Hour>,
    /// What a GPU cost an hour then, millionths of the currency, mean over nodes; `None` is not
    /// known.
    pub price_micros: Option<i64>,
}
