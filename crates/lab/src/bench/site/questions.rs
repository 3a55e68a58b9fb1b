//! What dashboards ask of a site: the examples of ten tables, as their pipelines give them.

use std::path::Path;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tidegate_lake::catalog::{CatalogSource, committed_catalog};
use tidegate_lake::engine::Limits;
use tidegate_lake::pipeline::{Pipeline, Plan, shipped};
use tidegate_server::{QueryLimits, QueryService};
use tidegate_workspace::{CommandError, ask, block_on, folder_url};

use super::spread::{Times, Took};
use crate::bench::Stopwatch;

/// The tables whose examples a dashboard shows.
pub const DASHBOARD: [&str; 10] = [
    "allocations",
    "attempts",
    "queue_delay_1d",
    "usage_1h",
    "usage_1d",
    "ledger_1h",
    "ledger_1d",
    "gpu_1m",
    "gpu_1h",
    "nodes",
];
/// Asked apart: why jobs wait, which is computed when it is asked for.
const APART: &str = "pending";

/// How long a question may take: longer than a server allows, since how long is what is asked.
const LONGEST: Duration = Duration::from_secs(1_800);

/// Answers of one site.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Asked {
    /// Over the ten questions together.
    pub dashboards_ms: Times,
    pub pending_ms: Times,
    pub questions: Vec<Answered>,
}

/// One question.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Answered {
    pub table: String,
    pub rows: usize,
    pub ms: Times,
}

/// Asks every question `repeat` times after once that does not count. `now_ms` is the site's
/// present.
pub fn ask_all(data: &Path, now_ms: i64, repeat: u32) -> Result<Asked, CommandError> {
    block_on(async {
        let plan = Plan::compile(shipped()).await?;
        let catalog = committed_catalog(&folder_url(&data.join("lake"))?, &plan, Limits::default()).await?;
        let limits = QueryLimits { time_max: LONGEST, ..QueryLimits::default() };
        let service = QueryService::new(CatalogSource::fixed(catalog), limits)?;
        let mut asked = Asked::default();
        let mut all = Vec::new();
        for table in DASHBOARD.into_iter().chain([APART]) {
            let sql = example(table)?.replace("now()", &format!("to_timestamp_millis({now_ms})"));
            let rows = ask::<serde_json::Value>(&service, &sql).await?.len();
            let mut took = Vec::new();
            for _ in 0..repeat {
                let watch = Stopwatch::start()?;
                ask::<serde_json::Value>(&service, &sql).await?;
                let (cpu_s, wall_s) = watch.read()?;
                took.push(Took { cpu: cpu_s * 1e3, wall: wall_s * 1e3 });
            }
            let ms = Times::of(&took);
            match table == APART {
                true => asked.pending_ms = ms,
                false => all.extend(took),
            }
            asked.questions.push(Answered { table: table.into(), rows, ms });
        }
        asked.dashboards_ms = Times::of(&all);
        Ok(asked)
    })?
}

fn example(table: &str) -> Result<String, CommandError> {
    let named = |pipeline: &Pipeline| pipeline.name == table;
    let found = shipped().into_iter().find(named).and_then(|pipeline| pipeline.example);
    found.ok_or_else(|| format!("no shipped pipeline {table} has an example").into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_question_has_an_example() {
        for table in DASHBOARD.into_iter().chain([APART]) {
            assert!(example(table).is_ok_and(|sql| sql.contains(table)), "{table}");
        }
    }
}
