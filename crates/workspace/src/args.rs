//! Command-line arguments that several commands share: data folder, pace, retention, times, sizes.

use std::num::NonZeroU64;
use std::path::PathBuf;
use std::time::Duration;

use chrono::{DateTime, NaiveDate, NaiveTime};
use clap::Args;
use tidegate_lake::maintenance::Maintenance;
use tidegate_lake::maintenance::retention::Retention;
use tidegate_lake::pipeline::{Pipeline, Plan, gpu_peaks, load_folder};
use tidegate_lake::runner::Pace;

use crate::CommandError;

/// Parses a range of seeds: `A..B`, B excluded.
pub fn seeds(text: &str) -> Result<(u64, u64), String> {
    let bounds = text.split_once("..").and_then(|(from, to)| Some((from.parse().ok()?, to.parse().ok()?)));
    bounds.filter(|(from, to)| from < to).ok_or_else(|| "write A..B with A below B, e.g. 0..20".into())
}

/// Parses a date (00:00 UTC) or an RFC 3339 time; returns ms since the epoch.
pub fn time_ms(text: &str) -> Result<i64, CommandError> {
    let day = NaiveDate::parse_from_str(text, "%Y-%m-%d").map(|day| day.and_time(NaiveTime::MIN).and_utc());
    let time = day.or_else(|_| DateTime::parse_from_rfc3339(text).map(|time| time.to_utc()));
    let time = time.map_err(|_| {
        format!("the time is {text:?}; write 2026-01-31, which is 00:00 UTC, or 2026-01-31T12:00:00+01:00")
    })?;
    Ok(time.timestamp_millis())
}

/// The data folder, further pipelines and GPU peaks; the same for every command.
#[derive(Debug, Clone, Args)]
pub struct DataArgs {
    /// Data folder: the event log and the lake
    #[arg(long, value_name = "DIR", default_value = "tidegate-data", env = "TIDEGATE_DATA")]
    pub data: PathBuf,

    /// Folder with additional pipelines (*.sql, also in folders below it); may be given several
    /// times
    #[arg(long = "pipelines", value_name = "DIR", env = "TIDEGATE_PIPELINES", value_delimiter = ':')]
    pub pipelines: Vec<PathBuf>,

    /// CSV file of GPU peaks that override the shipped ones; same columns as schemas/gpu_peaks.csv,
    /// table gpu_peaks
    #[arg(long, value_name = "FILE", env = "TIDEGATE_PEAKS")]
    pub peaks: Option<PathBuf>,
}

impl DataArgs {
    /// Loads the shipped pipelines and the user's own.
    pub fn load_pipelines(&self) -> Result<Vec<Pipeline>, CommandError> {
        let mut pipelines = tidegate_lake::pipeline::shipped();
        if let Some(file) = &self.peaks {
            let text =
                std::fs::read_to_string(file).map_err(|e| format!("read peaks {}: {e}", file.display()))?;
            let own = gpu_peaks::with_file(&file.display().to_string(), &text)?;
            pipelines.retain(|shipped| shipped.name != gpu_peaks::TABLE);
            pipelines.push(own);
        }
        for folder in &self.pipelines {
            pipelines.extend(load_folder(folder)?);
        }
        Ok(pipelines)
    }
}

/// How often a process that follows the log commits.
#[derive(Debug, Clone, Args)]
pub struct CommitArgs {
    /// Tuning: commit received events after this many seconds at the latest (while the log is
    /// followed)
    #[arg(long, value_name = "SECONDS", default_value_t = Pace::default().flush_every.as_secs_f64(), hide_short_help = true,
          value_parser = seconds)]
    flush_every: f64,
    /// Tuning: commits an hour to all tables together. Each table that changed is a commit, so with
    /// many tables commits come less often than --flush-every says
    #[arg(long, value_name = "COMMITS", default_value_t = Pace::default().commits_per_hour.get(), hide_short_help = true,
          value_parser = clap::value_parser!(u64).range(60..=1_000_000))]
    commits_per_hour: u64,
}

impl CommitArgs {
    /// A pace that differs from the default one in this only.
    pub fn pace(&self) -> Pace {
        let pace = Pace::default();
        Pace {
            flush_every: Duration::from_secs_f64(self.flush_every),
            commits_per_hour: NonZeroU64::new(self.commits_per_hour).unwrap_or(pace.commits_per_hour),
            ..pace
        }
    }
}

/// How often a command that works through history commits.
#[derive(Debug, Clone, Args)]
pub struct PaceArgs {
    /// Tuning: commit the tables about every N events (5 samples count as one). Fewer events need
    /// less memory and more time
    #[arg(long, value_name = "EVENTS", default_value_t = Pace::default().flush_events, hide_short_help = true,
          value_parser = clap::value_parser!(u64).range(1..))]
    flush_events: u64,
    #[command(flatten)]
    commits: CommitArgs,
}

impl PaceArgs {
    /// The pace as the runner takes it.
    pub fn pace(&self) -> Pace {
        let pace = self.commits.pace();
        // One read is committed as a whole. No event is smaller than 64 bytes.
        let read_bytes = usize::try_from(self.flush_events.saturating_mul(64)).unwrap_or(usize::MAX);
        Pace { flush_events: self.flush_events, read_bytes: pace.read_bytes.min(read_bytes), ..pace }
    }
}

fn seconds(text: &str) -> Result<f64, String> {
    text.parse().ok().filter(|s| (0.01..=3600.0).contains(s)).ok_or_else(|| "write 0.01 to 3600".into())
}

/// Retention of tables, of their replaced files and of their logs.
#[derive(Debug, Clone, Args)]
pub struct KeepArgs {
    /// Drop rows of a table that are older than DAYS, counted from its newest row, e.g.
    /// gpu_samples=30; may be given several times. Stored hourly and daily rows stay; late events
    /// no longer change them
    #[arg(long, value_name = "TABLE=DAYS", value_parser = table_and_days)]
    keep: Vec<(String, u32)>,
    /// Tuning: delete data files this many hours after they were replaced. Queries of this process
    /// keep theirs in any case; raise it if queries of other processes take longer
    #[arg(long, value_name = "HOURS", default_value_t = hours(Maintenance::default().keep_replaced), hide_short_help = true,
          value_parser = clap::value_parser!(u32).range(1..=8_760))]
    keep_replaced: u32,
    /// Tuning: keep this many hours of each table's Delta log. A shorter log makes commits cheaper;
    /// other readers of the tables can look back as far as it and --keep-replaced reach
    #[arg(long, value_name = "HOURS", default_value_t = hours(Maintenance::default().keep_log), hide_short_help = true,
          value_parser = clap::value_parser!(u32).range(1..=8_760))]
    keep_delta_log: u32,
}

impl KeepArgs {
    /// Maintenance with this retention.
    pub async fn maintenance(&self, pipelines: &[Pipeline]) -> Result<Maintenance, CommandError> {
        let days = |(table, days): &(String, u32)| (table.clone(), chrono::Duration::days((*days).into()));
        let retention = match self.keep.is_empty() {
            true => Retention::default(),
            false => {
                let plan = Plan::compile(pipelines.to_vec()).await?;
                Retention::new(self.keep.iter().map(days).collect(), &plan)?
            }
        };
        Ok(Maintenance {
            retention,
            keep_replaced: chrono::Duration::hours(self.keep_replaced.into()),
            keep_log: chrono::Duration::hours(self.keep_delta_log.into()),
            ..Maintenance::default()
        })
    }
}

fn hours(duration: chrono::Duration) -> u32 {
    duration.num_hours().unsigned_abs() as u32
}

fn table_and_days(text: &str) -> Result<(String, u32), String> {
    let (table, days) = text.split_once('=').ok_or("write TABLE=DAYS, e.g. gpu_samples=30")?;
    let days = days.parse().ok().filter(|days| (1..=36_500).contains(days));
    Ok((table.into(), days.ok_or("days are a whole number from 1 to 36500")?))
}

/// Smallest memory limit of queries: planning a shipped view already takes some of it.
const LEAST_QUERY_MEMORY: usize = 16 << 20;

/// Parses a memory limit of queries, e.g. `512M`; returns bytes.
pub fn query_memory(text: &str) -> Result<usize, String> {
    let split = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let shift = match unit.to_ascii_uppercase().trim_end_matches('B').trim_end_matches('I') {
        "" => 0,
        "K" => 10,
        "M" => 20,
        "G" => 30,
        _ => return Err(format!("{text:?} is not a size; write a number and K, M or G, e.g. 512M")),
    };
    let number: usize = number.parse().map_err(|_| format!("{text:?} is not a size; write e.g. 512M"))?;
    let bytes = number.checked_mul(1 << shift);
    let bytes = bytes.ok_or_else(|| format!("{text:?} is more than this machine can address"))?;
    match bytes < LEAST_QUERY_MEMORY {
        true => Err(format!("{text:?} is too little to plan a query in; the least is 16M")),
        false => Ok(bytes),
    }
}
