//! Reads jobs, nodes, quotas, demand and prices of the site's own log between two times.

use std::path::Path;

use chrono::DateTime;
use clap::Args;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use tidegate_evaluation::trace::site::History;
use tidegate_lake::runner::Pace;
use tidegate_server::QueryService;

use crate::commands::{
    CommandError, DataArgs, LogArgs, Workspace, ask, block_on, block_on_one_thread, committed,
    name_full_disk, quoted, time_ms,
};

/// The part of the log to use.
#[derive(Debug, Args)]
#[command(next_help_heading = "The site's own log")]
pub struct SiteArgs {
    /// Start: 2026-01-31 (00:00 UTC) or 2026-01-31T12:00:00+01:00. Uses the log instead of a trace
    #[arg(long, value_name = "TIME")]
    from: Option<String>,
    /// End [default: the end of the log]
    #[arg(long, value_name = "TIME")]
    to: Option<String>,
    /// Cluster, if the log has several
    #[arg(long, value_name = "NAME")]
    cluster: Option<String>,
    /// Pool that serves online demand and may lend its GPUs; may be given several times
    #[arg(long, value_name = "POOL")]
    serves: Vec<String>,
    #[command(flatten)]
    data: DataArgs,
    #[command(flatten)]
    log: LogArgs,
}

/// A month, of which a rehearsal takes the last.
pub const MONTH_US: i64 = 31 * 86_400_000_000;

/// History from the log, and the options that complete it.
pub struct SiteHistory {
    pub history: History,
    /// Pools that serve online demand.
    pub serves: Vec<String>,
}

/// A cluster and the period of its known jobs.
#[derive(Debug, Deserialize)]
struct Extent {
    cluster: String,
    from_us: i64,
    to_us: i64,
}

impl SiteArgs {
    /// The data folder that is read.
    pub fn folder(&self) -> &Path {
        &self.data.data
    }

    /// Reads the history; `None` without --from.
    pub fn history(&self) -> Result<Option<SiteHistory>, CommandError> {
        let is_of_log = self.to.is_some() || self.cluster.is_some() || !self.serves.is_empty();
        match &self.from {
            Some(_) => self.since(MONTH_US).map(Some),
            None if is_of_log => {
                Err("--to, --cluster and --serves choose of the site's own log: add --from TIME".into())
            }
            None => Ok(None),
        }
    }

    /// Reads the history from --from on, or of the last `most_us` of the period.
    pub fn since(&self, most_us: i64) -> Result<SiteHistory, CommandError> {
        let micros = |text: &str| time_ms(text).map(|ms| ms * 1_000);
        let from_us = self.from.as_deref().map(micros).transpose().map_err(|e| format!("--from: {e}"))?;
        let to_us = self.to.as_deref().map(micros).transpose().map_err(|e| format!("--to: {e}"))?;
        if self.log.kafka().is_some() {
            self.catch_up()?;
        }
        let history = block_on(async {
            let service = committed(&self.data).await?;
            let extent = self.extent(ask(&service, EXTENTS).await?)?;
            let last_us = to_us.unwrap_or(extent.to_us).saturating_sub(most_us).max(extent.from_us);
            let (from_us, to_us) = within(&extent, from_us.unwrap_or(last_us), to_us)?;
            let part = Part { cluster: quoted(&extent.cluster), from_us, to_us, serves: &self.serves };
            part.history(&service, extent).await
        })??;
        Ok(SiteHistory { history, serves: self.serves.clone() })
    }

    /// Updates the folder's tables to the end of the log.
    fn catch_up(&self) -> Result<(), CommandError> {
        let pipelines = self.data.load_pipelines()?;
        let workspace = Workspace::open(&self.data.data, &self.log)?;
        block_on_one_thread(async {
            let mut runner =
                workspace.runner(pipelines, Pace { refresh_every: None, ..Pace::default() }).await?;
            runner.catch_up(&mut |_| {}).await?;
            Ok::<_, CommandError>(())
        })?
        .map_err(|e| name_full_disk(e, &self.data.data))
    }

    fn extent(&self, mut clusters: Vec<Extent>) -> Result<Extent, CommandError> {
        let names: Vec<&str> = clusters.iter().map(|extent| extent.cluster.as_str()).collect();
        let place = match (&self.cluster, &names[..]) {
            (_, []) => {
                let data = self.data.data.display();
                return Err(format!(
                    "no job is in the tables of {data}; name the folder that has them with --data"
                )
                .into());
            }
            (Some(name), _) => names.iter().position(|known| known == name).ok_or_else(|| {
                format!("no job of cluster {name} is in the log; it has jobs of {}", names.join(", "))
            })?,
            (None, [_]) => 0,
            (None, _) => {
                return Err(format!(
                    "the log has several clusters; name one with --cluster: {}",
                    names.join(", ")
                )
                .into());
            }
        };
        Ok(clusters.swap_remove(place))
    }
}

/// Checks the requested period against the log.
fn within(extent: &Extent, from_us: i64, to_us: Option<i64>) -> Result<(i64, i64), CommandError> {
    let time = |us: i64| DateTime::from_timestamp_micros(us).unwrap_or_default().format("%FT%TZ");
    let Extent { cluster, from_us: begins, to_us: ends } = extent;
    let to_us = to_us.unwrap_or(*ends);
    let known = format!("the log knows jobs of {cluster} from {} to {}", time(*begins), time(*ends));
    let refuse = |what: &str| Err(format!("{what}; {known}").into());
    match () {
        () if from_us >= *ends || to_us <= *begins => refuse(&format!(
            "no job was submitted, ran or waited between {} and {}",
            time(from_us),
            time(to_us)
        )),
        () if to_us <= from_us => refuse("--to must be behind --from"),
        () if to_us > *ends => {
            refuse("--to is behind the end of the log: leave it out, or choose an earlier time")
        }
        () => Ok((from_us, to_us)),
    }
}

const EXTENTS: &str = "SELECT cluster, CAST(min(coalesce(submit_time, queued_from, from_time)) AS BIGINT) AS from_us, \
                       CAST(max(coalesce(as_of, to_time, queued_to, from_time, submit_time)) AS BIGINT) AS to_us \
                       FROM attempts GROUP BY cluster HAVING min(coalesce(submit_time, queued_from, from_time)) IS NOT NULL ORDER BY cluster";

/// One cluster and period, for queries.
struct Part<'a> {
    /// As an SQL literal.
    cluster: String,
    from_us: i64,
    to_us: i64,
    serves: &'a [String],
}

impl Part<'_> {
    async fn history(&self, service: &QueryService, of: Extent) -> Result<History, CommandError> {
        Ok(History {
            cluster: of.cluster,
            from_us: self.from_us,
            to_us: self.to_us,
            attempts: self.rows(service, ATTEMPTS).await?,
            nodes: self.rows(service, NODES).await?,
            quotas: self.rows(service, QUOTAS).await?,
            samples: match self.serves {
                [] => Vec::new(),
                _ => self.rows(service, SAMPLES).await?,
            },
            past: match self.serves {
                [] => Vec::new(),
                _ => self.rows(service, PAST).await?,
            },
            price_micros: self.price(service).await?,
        })
    }

    async fn rows<T: DeserializeOwned>(
        &self,
        service: &QueryService,
        sql: &str,
    ) -> Result<Vec<T>, CommandError> {
        let time = |us: i64| format!("to_timestamp_micros({us})");
        // An SQL list must not be empty; no pool has the empty name.
        let serves: Vec<String> = self.serves.iter().map(|pool| quoted(pool)).chain([quoted("")]).collect();
        let sql = sql.replace("{cluster}", &self.cluster).replace("{from}", &time(self.from_us));
        ask(service, &sql.replace("{to}", &time(self.to_us)).replace("{serves}", &serves.join(", "))).await
    }

    /// The price of all GPUs at the start, if there is just one.
    async fn price(&self, service: &QueryService) -> Result<Option<i64>, CommandError> {
        #[derive(Deserialize)]
        struct Price {
            price: i64,
        }
        let prices: Vec<Price> = self.rows(service, PRICES).await?;
        Ok(match &prices[..] {
            [one] => Some(one.price),
            _ => None,
        })
    }
}

const ATTEMPTS: &str = "
SELECT a.job_id, a.team, a.pool, a.gpu_model, a.gpus_milli, a.asked_gpus_milli,
       CAST(a.submit_time AS BIGINT) AS submit_us, CAST(a.queued_from AS BIGINT) AS queued_from_us,
       CAST(a.queued_to AS BIGINT) AS queued_to_us, CAST(a.from_time AS BIGINT) AS from_us, CAST(a.to_time AS BIGINT) AS to_us,
       a.final_state, CAST(a.as_of AS BIGINT) AS as_of_us, t.priority, t.time_limit_ms
FROM attempts a
LEFT JOIN (SELECT job_id, min(priority) AS priority, max(time_limit_ms) AS time_limit_ms FROM job_events
           WHERE cluster = {cluster} AND (priority IS NOT NULL OR time_limit_ms IS NOT NULL) GROUP BY job_id) t
       ON t.job_id = a.job_id
WHERE a.cluster = {cluster} AND coalesce(a.submit_time, a.queued_from, a.from_time) < {to}
      AND coalesce(coalesce(a.to_time, CASE WHEN a.from_time IS NULL THEN a.queued_to END, a.as_of) > {from}, true)
ORDER BY a.job_id, a.from_time, a.queued_from";

const NODES: &str = "
SELECT node, pool, gpu_model, gpus_milli
FROM (SELECT *, row_number() OVER (PARTITION BY node ORDER BY from_time) AS place FROM node_capacity
      WHERE cluster = {cluster} AND is_usable = 1 AND from_time < {to} AND coalesce(to_time > {from}, true))
WHERE place = 1
ORDER BY node";

const QUOTAS: &str = "
SELECT owner, min(gpus_milli) AS gpus_milli
FROM (SELECT owner, kind, sum(gpus_milli) AS gpus_milli FROM capacity
      WHERE cluster = {cluster} AND kind IN ('QUOTA_SET', 'LIMIT_SET') AND owner <> 'total' AND gpus_milli IS NOT NULL
            AND from_time <= {from} AND coalesce(to_time > {from}, true) AND coalesce(pool NOT IN ({serves}), true)
      GROUP BY owner, kind)
GROUP BY owner
ORDER BY owner";

/// A sample is valid for a day at most.
const SAMPLES: &str = "
SELECT coalesce(pool, owner) AS pool, CAST(event_time AS BIGINT) AS at_us, interval_ms,
       held_gpus_milli + coalesce(queued_gpus_milli, 0) AS gpus_milli
FROM pool_samples
WHERE cluster = {cluster} AND coalesce(pool, owner) IN ({serves}) AND held_gpus_milli IS NOT NULL
      AND event_time < {to} AND event_time > {from} - INTERVAL '1 day'
ORDER BY pool, event_time, owner";

/// The history that the autopilot would learn from.
const PAST: &str = "
SELECT pool, CAST(window_start AS BIGINT) AS at_us, sum(gpu_ms_held + gpu_ms_queued) / 3600 AS gpus_milli
FROM usage_1h
WHERE cluster = {cluster} AND pool IN ({serves}) AND window_start < {from} AND window_start >= {from} - INTERVAL '28 days'
GROUP BY pool, window_start
ORDER BY pool, window_start";

const PRICES: &str = "
SELECT DISTINCT price_micros_per_gpu_hour AS price, currency FROM price_of
WHERE cluster = {cluster} AND from_time <= {from} AND coalesce(to_time > {from}, true)";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_that_the_log_does_not_know_is_refused() {
        let extent = Extent { cluster: "c".into(), from_us: 1_000_000, to_us: 9_000_000 };
        assert_eq!(within(&extent, 2_000_000, None).unwrap(), (2_000_000, 9_000_000));
        assert_eq!(within(&extent, 0, Some(5_000_000)).unwrap(), (0, 5_000_000));
        for (from, to, said) in [
            (9_000_000, None, "no job was submitted, ran or waited between 1970-01-01T00:00:09Z"),
            (0, Some(1_000_000), "the log knows jobs of c from 1970-01-01T00:00:01Z"),
            (5_000_000, Some(4_000_000), "--to must be behind --from"),
            (5_000_000, Some(9_000_001), "behind the end of the log"),
        ] {
            let refused = within(&extent, from, to).unwrap_err().to_string();
            assert!(refused.contains(said), "{refused}");
        }
    }
}
