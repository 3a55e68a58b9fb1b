//! The figures of `tidegate up`, all from SQL.

use serde::Deserialize;
use tidegate_server::QueryService;

use crate::commands::{CommandError, ask};

/// Jobs and GPU time of the whole data folder.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct Ledger {
    pub events: u64,
    /// Time of the newest report, RFC 3339.
    pub observed_to: Option<String>,
    pub finished: u64,
    pub running: u64,
    pub waiting: u64,
    pub gpu_ms_held: i64,
    /// Part of it in attempts that were followed by another.
    pub gpu_ms_lost: i64,
    /// Exact quantiles of the time from submission to first start.
    pub queue_ms_p50: Option<i64>,
    pub queue_ms_p95: Option<i64>,
    #[serde(skip)]
    pub teams: Vec<Team>,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct Team {
    pub team: Option<String>,
    pub gpu_ms_held: i64,
}

/// A job with GPUs is running; a job that has not ended and has none is waiting.
const TOTALS: &str = "
    SELECT e.*, j.finished, a.running, greatest(j.jobs - j.finished - a.running, 0) AS waiting,
           j.gpu_ms_held, j.gpu_ms_lost, j.queue_ms_p50, j.queue_ms_p95
    FROM (SELECT count(*) AS events, max(event_time) AS observed_to FROM job_events) AS e
    CROSS JOIN (SELECT count(*) AS running FROM allocations WHERE to_time IS NULL) AS a
    CROSS JOIN (
        SELECT count(*) AS jobs, count(end_time) AS finished,
               coalesce(sum(gpu_ms_held), 0) AS gpu_ms_held,
               coalesce(sum(gpu_ms_lost), 0) AS gpu_ms_lost,
               CAST(percentile_cont(0.5) WITHIN GROUP (ORDER BY queue_ms) AS BIGINT) AS queue_ms_p50,
               CAST(percentile_cont(0.95) WITHIN GROUP (ORDER BY queue_ms) AS BIGINT) AS queue_ms_p95
        FROM jobs
    ) AS j";

/// Groups by cluster if there are no teams.
const TEAMS: &str = "
    SELECT coalesce(team, cluster) AS team, sum(gpu_ms_held) AS gpu_ms_held
    FROM jobs GROUP BY 1 HAVING sum(gpu_ms_held) > 0 ORDER BY 2 DESC, 1 LIMIT 8";

impl Ledger {
    pub async fn read(service: &QueryService) -> Result<Self, CommandError> {
        let mut totals: Vec<Self> = ask(service, TOTALS).await?;
        let mut ledger = totals.pop().ok_or("the totals have no row")?;
        ledger.teams = ask(service, TEAMS).await?;
        Ok(ledger)
    }

    /// Share of the GPU time held that was lost, 0 to 1.
    pub fn lost_share(&self) -> f64 {
        self.gpu_ms_lost as f64 / self.gpu_ms_held.max(1) as f64
    }
}
