//! A synthetic day whose truth is known: generates it, runs the pipelines, compares every table.

mod bottleneck;
mod class;
mod compare;
mod day;
mod emit;
mod facts;
mod fleet;
mod loads;
mod readings;
mod scenes;
#[cfg(test)]
mod tests;
mod training;
mod truth;

use std::path::PathBuf;

use clap::Args;
use serde::Serialize;
use tidegate_lake::runner::Pace;
use tidegate_server::{QueryLimits, QueryService};

use super::{Scratch, Stopwatch, peak_rss_mib};
use compare::{Check, Compared, Fact};
use day::Day;
use emit::{Damage, Emitted};
use facts::Facts;
use fleet::WHOLE;
use tidegate_workspace::{CommandError, LogArgs, Workspace, block_on_one_thread};
use truth::Truth;

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  tidegate bench ledger --json
  tidegate bench ledger --hours 2 --nodes 3 --json
  tidegate bench ledger --hours 2 --late 20000 --duplicate 20000 --missing 1000 --json
  tidegate bench ledger --hours 1 --truth truth.json --keep day && tidegate sql --data day 'SELECT * FROM jobs'

A generator decides what every GPU does in every millisecond, emits events as agents, prologs,
training jobs and Slurm's watcher would, and runs the pipelines. The same options give the same day.
The command fails if a table differs from the emitted events or, if nothing is missing, from the
truth by more than the tolerance of the fact.")]
pub struct LedgerArgs {
    /// Seed of the generated input
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Length of the day
    #[arg(long, default_value_t = 24, value_parser = clap::value_parser!(u32).range(1..=168))]
    hours: u32,
    /// Nodes of 8 GPUs, two thirds of them for training; one more is reserved and joins late
    #[arg(long, default_value_t = 6, value_parser = clap::value_parser!(u32).range(3..=64))]
    nodes: u32,
    /// Sample batches that arrive up to an hour late, per million
    #[arg(long, value_name = "PPM", default_value_t = 0, value_parser = clap::value_parser!(u32).range(..=1_000_000))]
    late: u32,
    /// Sample batches that arrive twice, per million
    #[arg(long, value_name = "PPM", default_value_t = 0, value_parser = clap::value_parser!(u32).range(..=1_000_000))]
    duplicate: u32,
    /// Sample batches that never arrive, per million
    #[arg(long, value_name = "PPM", default_value_t = 0, value_parser = clap::value_parser!(u32).range(..=1_000_000))]
    missing: u32,
    /// Write the truth of the day here as JSON: time by class and job, waits, tokens, operations
    /// and energy of each job
    #[arg(long, value_name = "FILE")]
    truth: Option<PathBuf>,
    /// Create the data folder here and keep it
    #[arg(long, value_name = "DIR")]
    keep: Option<PathBuf>,
    #[command(flatten)]
    log: LogArgs,
    /// Print JSON (the default; the flag is accepted for scripts)
    #[arg(long)]
    json: bool,
}

/// Report of the bench.
#[derive(Debug, Serialize)]
pub struct Report {
    bench: &'static str,
    seed: u64,
    hours: u32,
    nodes: u32,
    gpus: usize,
    jobs: usize,
    /// Paid GPU-ms.
    paid_ms: i64,
    job_events: u64,
    node_events: u64,
    capacity_events: u64,
    step_reports: i64,
    batches: u64,
    late_batches: u64,
    duplicate_batches: u64,
    missing_batches: u64,
    samples: u64,
    /// Wall and CPU seconds of generating the day into the log, and from there to the tables.
    produce_s: f64,
    produce_cpu_s: f64,
    pipelines_s: f64,
    pipelines_cpu_s: f64,
    peak_rss_mib: f64,
    /// Counts in tables and as emitted. The bench fails unless all are equal.
    checks: Vec<Check>,
    /// Facts in tables and in truth.
    facts: Vec<Fact>,
    #[serde(flatten)]
    compared: Compared,
}

pub fn run(args: &LedgerArgs) -> Result<Report, CommandError> {
    if args.log.kafka().is_some() {
        return Err("this bench uses the embedded log; leave out --log".into());
    }
    let scratch = Scratch::new("ledger")?;
    let data = args.keep.clone().unwrap_or_else(|| scratch.path().join("data"));
    let watch = Stopwatch::start()?;
    let workspace = Workspace::open(&data, &args.log)?;
    workspace.create_topics()?;
    let day = scenes::generate(args.seed, args.hours, args.nodes as usize);
    let damage = Damage { late_ppm: args.late, duplicate_ppm: args.duplicate, missing_ppm: args.missing };
    let emitted = emit::emit(&day, damage, workspace.log.as_ref())?;
    let truth = Truth::new(&day, &emitted.unseen);
    if let Some(file) = &args.truth {
        serde_json::to_writer(std::fs::File::create(file)?, &Facts::new(&day, &truth))?;
    }
    let (produce_cpu_s, produce_s) = watch.read()?;
    let watch = Stopwatch::start()?;
    let (report, facts) = block_on_one_thread(async {
        let mut runner = workspace.runner(tidegate_lake::pipeline::shipped(), Pace::default()).await?;
        runner.catch_up(&mut |_| {}).await?;
        let (pipelines_cpu_s, pipelines_s) = watch.read()?;
        let service = QueryService::new(runner.catalog(), QueryLimits::default())?;
        let checks = compare::check(&service, &day, &emitted).await?;
        let facts = compare::facts(&service, &day, &truth, &emitted.unseen).await?;
        let compared = compare::compare(&service, &day, &truth).await?;
        if let Some(wrong) = checks.iter().find(|check| check.found != check.expected) {
            return Err(format!("{}: {}, expected {}", wrong.what, wrong.found, wrong.expected).into());
        }
        let report = report(args, &day, &emitted, compared)?;
        let report = Report { checks, produce_s, produce_cpu_s, pipelines_s, pipelines_cpu_s, ..report };
        Ok::<_, CommandError>((report, facts))
    })??;
    let off: Vec<String> = facts.iter().filter(|fact| fact.is_off()).map(Fact::to_string).collect();
    if args.missing == 0 && !off.is_empty() {
        return Err(off.join("\n").into());
    }
    Ok(Report { facts, ..report })
}

fn report(
    args: &LedgerArgs,
    day: &Day,
    emitted: &Emitted,
    compared: Compared,
) -> Result<Report, CommandError> {
    Ok(Report {
        bench: "ledger",
        seed: args.seed,
        hours: args.hours,
        nodes: args.nodes,
        gpus: day.fleet.nodes.iter().map(|node| node.gpus.len()).sum(),
        jobs: day.jobs.len(),
        paid_ms: day.paid() / WHOLE,
        job_events: emitted.job_events,
        node_events: emitted.node_events,
        capacity_events: emitted.capacity_events,
        step_reports: emitted.steps.reports,
        batches: emitted.batches,
        late_batches: emitted.late_batches,
        duplicate_batches: emitted.duplicate_batches,
        missing_batches: emitted.missing_batches,
        samples: emitted.samples,
        produce_s: 0.0,
        produce_cpu_s: 0.0,
        pipelines_s: 0.0,
        pipelines_cpu_s: 0.0,
        peak_rss_mib: peak_rss_mib()?,
        checks: Vec::new(),
        facts: Vec::new(),
        compared,
    })
}
