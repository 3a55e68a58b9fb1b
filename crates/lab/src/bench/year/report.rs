//! The report of `bench year`, as JSON and as text.

use std::fmt;

use serde::Serialize;

use super::YearArgs;
use crate::bench::site::disk::Disk;
use crate::bench::site::phases::{Lived, Made, Restarted};
use crate::bench::site::questions::Asked;

const MIB: f64 = 1_048_576.0;

/// What the bench reports.
#[derive(Debug, Serialize)]
pub struct Report {
    bench: &'static str,
    seed: u64,
    gpus: u32,
    jobs_per_day: u32,
    watched_hours: u32,
    uptime_minutes: u32,
    live_minutes: u32,
    days: Vec<Day>,
    /// The figures of the text, by name: one value a day, and the last day's relative to the
    /// first's.
    figures: Vec<Figure>,
}

/// A site with a past of this many days.
#[derive(Debug, Serialize)]
pub struct Day {
    pub day: u32,
    /// `None` if the past was there already.
    pub made: Option<Made>,
    pub live: Lived,
    pub disk: Disk,
    pub asked: Asked,
    pub restart: Restarted,
}

/// One row of the table.
#[derive(Debug, Serialize)]
struct Figure {
    name: &'static str,
    unit: &'static str,
    values: Vec<f64>,
    last_to_first: Option<f64>,
}

/// How a figure follows from a day.
type Rule = (&'static str, &'static str, fn(&Day) -> f64);

/// A figure that was not measured.
const NONE: f64 = f64::NAN;

const RULES: [Rule; 22] = [
    ("pipelines, a minute of data", "CPU s", |d| d.live.cpu_s / d.live.data_s * 60.0),
    ("commit, p50", "CPU s", |d| d.live.flush_s.cpu.p50),
    ("commit, p99", "CPU s", |d| d.live.flush_s.cpu.p99),
    ("commit, p99", "s", |d| d.live.flush_s.wall.p99),
    ("joined tables, p99", "CPU s", |d| d.live.joined_s.cpu.p99),
    ("commits a minute", "", |d| d.live.commits as f64 / d.live.data_s * 60.0),
    ("written a minute", "MiB", |d| d.live.bytes as f64 / MIB / d.live.data_s * 60.0),
    ("peak memory, live", "MiB", |d| d.live.peak_rss_mib),
    ("disk: tables", "MiB", |d| d.disk.live_bytes as f64 / MIB),
    ("disk: replaced files", "MiB", |d| d.disk.dead_bytes as f64 / MIB),
    ("disk: Delta logs", "MiB", |d| d.disk.delta_log_bytes as f64 / MIB),
    ("disk: event log", "MiB", |d| d.disk.event_log_bytes as f64 / MIB),
    ("data files of the tables", "", |d| d.disk.live_files as f64),
    ("start to first answer", "CPU s", |d| d.restart.first_answer.cpu_s),
    ("start to first answer", "s", |d| d.restart.first_answer.wall_s),
    ("start to first signal", "CPU s", |d| d.restart.first_signal.map_or(NONE, |it| it.cpu_s)),
    ("start to first signal", "s", |d| d.restart.first_signal.map_or(NONE, |it| it.wall_s)),
    ("dashboards, p50", "CPU ms", |d| d.asked.dashboards_ms.cpu.p50),
    ("dashboards, p99", "CPU ms", |d| d.asked.dashboards_ms.cpu.p99),
    ("dashboards, p99", "ms", |d| d.asked.dashboards_ms.wall.p99),
    ("pending, p50", "CPU ms", |d| d.asked.pending_ms.cpu.p50),
    ("pending, p50", "ms", |d| d.asked.pending_ms.wall.p50),
];

impl Report {
    pub fn new(args: &YearArgs, days: Vec<Day>) -> Self {
        let figure = |(name, unit, value): &Rule| {
            let values: Vec<f64> = days.iter().map(value).collect();
            let last_to_first = match values[..] {
                [first, .., last] if first > 0.0 => Some(last / first),
                _ => None,
            };
            Figure { name, unit, values, last_to_first }
        };
        let is_known = |figure: &Figure| figure.values.iter().all(|value| value.is_finite());
        let figures = RULES.iter().map(figure).filter(is_known).collect();
        Self {
            bench: "year",
            seed: args.seed,
            gpus: args.gpus.div_ceil(8) * 8,
            jobs_per_day: args.jobs_per_day,
            watched_hours: args.watched_hours,
            uptime_minutes: args.uptime_minutes,
            live_minutes: args.live_minutes,
            days,
            figures,
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { gpus, jobs_per_day, watched_hours, live_minutes, .. } = self;
        writeln!(
            f,
            "{gpus} GPUs, {jobs_per_day} jobs a day, watched for {watched_hours} h; {live_minutes} minutes live"
        )?;
        write!(f, "{:<30}{:>7}", "", "")?;
        for day in &self.days {
            write!(f, "{:>12}", format!("day {}", day.day))?;
        }
        write!(f, "{:>14}", "last / first")?;
        for Figure { name, unit, values, last_to_first } in &self.figures {
            write!(f, "\n{name:<30}{unit:>7}")?;
            for value in values {
                write!(f, "{value:>12.prec$}", prec = if *value < 10.0 { 3 } else { 0 })?;
            }
            match last_to_first {
                Some(ratio) => write!(f, "{ratio:>14.2}")?,
                None => write!(f, "{:>14}", "-")?,
            }
        }
        Ok(())
    }
}
