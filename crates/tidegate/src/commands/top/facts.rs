//! What a frame shows, from the tables.

use serde::Deserialize;

use crate::commands::{CommandError, Committed, ask};

/// Rows of a table that can be scrolled.
const ROWS: usize = 100;

/// One state of the tables.
#[derive(Debug, Default)]
pub struct Facts {
    /// Time up to which the cluster was observed, as RFC 3339.
    pub as_of: Option<String>,
    pub pools: Vec<Pool>,
    pub teams: Vec<Team>,
    pub classes: Vec<Class>,
    pub waits: Vec<Wait>,
    pub stragglers: Vec<Straggler>,
    pub unhealthy: Vec<Unhealthy>,
    pub decisions: Vec<Decision>,
}

#[derive(Debug, Deserialize)]
pub struct Pool {
    pub pool: Option<String>,
    pub gpus: f64,
    pub held: f64,
    pub free: f64,
    /// GPUs of nodes that take no jobs.
    pub unusable: f64,
    /// Share of the sampled time with a kernel running; `None` without samples.
    pub active: Option<f64>,
}

#[derive(Debug, Deserialize)]
pub struct Team {
    pub team: Option<String>,
    pub running: Option<u64>,
    pub held: Option<f64>,
    pub waiting: Option<u64>,
    pub wanted: Option<f64>,
}

/// GPU time of one class in the newest hour of the ledger.
#[derive(Debug, Deserialize)]
pub struct Class {
    pub class: String,
    pub gpu_hours: f64,
    pub cost: Option<f64>,
}

#[derive(Debug, Deserialize)]
pub struct Wait {
    pub job_id: String,
    pub team: Option<String>,
    pub pool: Option<String>,
    pub gpus: f64,
    pub waited_min: Option<i64>,
    pub constraint: Option<String>,
    pub starts_when: Option<String>,
}

#[derive(Debug, Deserialize)]
pub struct Straggler {
    pub job_id: String,
    pub node: Option<String>,
    pub rank: Option<u32>,
    pub class: Option<String>,
    pub state: String,
    pub percent: Option<f64>,
    pub lost_gpu_hours: Option<f64>,
}

#[derive(Debug, Deserialize)]
pub struct Unhealthy {
    pub node: String,
    pub state: String,
}

#[derive(Debug, Deserialize)]
pub struct Decision {
    /// `MM-DD HH:MM`, UTC.
    pub at: String,
    pub decision_kind: String,
    pub object: String,
    pub gpus: Option<i64>,
    pub mode: String,
    pub state: String,
    pub why: Option<String>,
}

#[derive(Debug, Deserialize)]
struct Newest {
    samples: Option<String>,
    as_of: Option<String>,
}

const NEWEST: &str = "
    SELECT (SELECT CAST(max(window_start) AS TEXT) FROM gpu_1m) AS samples,
           (SELECT CAST(max(as_of) AS TEXT) FROM jobs WHERE end_time IS NULL) AS as_of";

const TEAMS: &str = "
    WITH runs AS (
        SELECT team, count(DISTINCT cluster || ' ' || job_id) AS running, sum(gpus_milli) / 1000.0 AS held
        FROM allocations WHERE to_time IS NULL GROUP BY team
    ), queue AS (
        SELECT team, count(*) AS waiting, sum(gpus_milli) / 1000.0 AS wanted
        FROM pending WHERE until IS NULL GROUP BY team
    )
    SELECT coalesce(r.team, q.team) AS team, r.running, r.held, q.waiting, q.wanted
    FROM runs r FULL JOIN queue q ON r.team IS NOT DISTINCT FROM q.team
    ORDER BY coalesce(r.held, 0) + coalesce(q.wanted, 0) DESC, 1";

const CLASSES: &str = "
    SELECT class, sum(gpu_ms) / 3600000.0 AS gpu_hours, sum(cost_micros) / 1000000.0 AS cost
    FROM ledger_1h WHERE window_start = (SELECT max(window_start) FROM ledger_1h)
    GROUP BY class ORDER BY gpu_hours DESC";

const WAITS: &str = "
    SELECT job_id, team, pool, gpus_milli / 1000.0 AS gpus, \"constraint\", starts_when,
           CAST((extract(epoch FROM as_of) - extract(epoch FROM waited_from)) / 60 AS BIGINT) AS waited_min
    FROM pending WHERE until IS NULL ORDER BY gpus_milli DESC, waited_from, job_id";

const STRAGGLERS: &str = "
    SELECT job_id, node, rank, class, state, slowdown_ppm / 10000.0 AS percent,
           lost_gpu_ms / 3600000.0 AS lost_gpu_hours
    FROM stragglers WHERE cleared_time IS NULL AND state IN ('SUSPECT', 'CONFIRMED')
    ORDER BY lost_gpu_ms DESC NULLS LAST, job_id";

const UNHEALTHY: &str = "SELECT node, state FROM node_health WHERE state <> 'HEALTHY' ORDER BY state, node";

/// What only suggests is decided anew as long as it holds: its newest decision stands for all.
const DECISIONS: &str = "
    WITH newest AS (
        SELECT *, row_number() OVER (
            PARTITION BY cluster, decision_kind, object, mode, CASE mode WHEN 'suggest' THEN '' ELSE action END
            ORDER BY decided_time DESC) AS nth
        FROM decisions WHERE role = 'base'
    )
    SELECT substr(CAST(decided_time AS TEXT), 6, 5) || ' ' || substr(CAST(decided_time AS TEXT), 12, 5) AS at,
           decision_kind, object, gpus, mode, state, coalesce(refused_why, why) AS why
    FROM newest WHERE nth = 1 ORDER BY decided_time DESC, action";

/// The query for pools, with the activity of their GPUs in the five minutes before `newest`.
///
/// Just after midnight a node may have two open rows, because yesterday's last row has no end yet.
/// The query uses the later one.
fn pools(newest: Option<&str>) -> String {
    let since = newest.map_or_else(
        || "false".to_owned(),
        |newest| format!("window_start > TIMESTAMP '{newest}' - INTERVAL '5 minutes'"),
    );
    format!(
        "WITH activity AS (
             SELECT cluster, node, sum(active_us) AS active_us, sum(us_sampled) AS us_sampled
             FROM gpu_1m WHERE {since} GROUP BY cluster, node
         ), open AS (
             SELECT *, row_number() OVER (PARTITION BY cluster, node ORDER BY from_time DESC) AS nth
             FROM node_free WHERE to_time IS NULL
         )
         SELECT n.pool, sum(n.gpus_milli) / 1000.0 AS gpus,
                sum(n.held_gpus_milli + n.assumed_gpus_milli) / 1000.0 AS held,
                sum(n.free_gpus_milli) / 1000.0 AS free,
                sum(CASE n.is_usable WHEN 0 THEN n.gpus_milli ELSE 0 END) / 1000.0 AS unusable,
                CAST(sum(a.active_us) AS DOUBLE) / nullif(sum(a.us_sampled), 0) AS active
         FROM open n LEFT JOIN activity a ON a.cluster = n.cluster AND a.node = n.node
         WHERE n.nth = 1 AND n.gpus_milli > 0
         GROUP BY n.pool ORDER BY gpus DESC, n.pool"
    )
}

impl Facts {
    /// # Errors
    /// A table cannot be queried.
    pub async fn read(tables: &Committed) -> Result<Self, CommandError> {
        let service = tables.service();
        let newest: Option<Newest> = ask(service, NEWEST).await?.pop();
        let (samples, as_of) = newest.map_or((None, None), |newest| (newest.samples, newest.as_of));
        let some = |sql: &str| format!("{sql} LIMIT {ROWS}");
        Ok(Self {
            as_of,
            pools: ask(service, &pools(samples.as_deref())).await?,
            teams: ask(service, TEAMS).await?,
            classes: ask(service, CLASSES).await?,
            waits: ask(service, &some(WAITS)).await?,
            stragglers: ask(service, &some(STRAGGLERS)).await?,
            unhealthy: ask(service, &some(UNHEALTHY)).await?,
            decisions: ask(service, &some(DECISIONS)).await?,
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use datafusion::arrow::util::pretty::pretty_format_batches;
    use datafusion::prelude::SessionContext;

    use super::pools;

    #[tokio::test]
    async fn a_node_whose_day_before_has_no_end_yet_counts_once() {
        let ctx = SessionContext::new();
        let rows = "
            CREATE TABLE node_free AS SELECT column1 AS cluster, column2 AS node, 'train' AS pool, 8000 AS gpus_milli,
                column3 AS held_gpus_milli, 0 AS assumed_gpus_milli, 8000 - column3 AS free_gpus_milli, 1 AS is_usable,
                CAST(column4 AS TIMESTAMP) AS from_time, CAST(column5 AS TIMESTAMP) AS to_time
            FROM (VALUES ('c', 'n1', 8000, '2026-01-01T20:00:00', NULL), ('c', 'n1', 2000, '2026-01-02T00:00:00', NULL),
                         ('c', 'n2', 4000, '2026-01-01T10:00:00', '2026-01-02T00:00:00'),
                         ('c', 'n2', 1000, '2026-01-02T00:00:00', NULL), ('d', 'n1', 0, '2026-01-01T10:00:00', NULL))";
        ctx.sql(rows).await.unwrap();
        let samples =
            "CREATE TABLE gpu_1m AS SELECT 'c' AS cluster, 'n1' AS node, 1 AS active_us, 1 AS us_sampled";
        ctx.sql(samples).await.unwrap();
        let shown = ctx.sql(&pools(None)).await.unwrap().collect().await.unwrap();
        let shown = pretty_format_batches(&shown).unwrap().to_string();
        let cells: Vec<&str> = shown.lines().nth(3).unwrap().split('|').map(str::trim).collect();
        assert_eq!(cells[1..6], ["train", "24.0", "3.0", "21.0", "0.0"], "{shown}");
    }
}
