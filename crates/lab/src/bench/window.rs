//! Window: from a log of GPU samples, jobs and nodes to a committed lake with every shipped
//! pipeline.

use clap::Args;
use serde::Serialize;
use tidegate_lake::catalog::{CatalogSource, committed_catalog};
use tidegate_lake::engine::Limits;
use tidegate_lake::pipeline::Plan;

use super::backlog::children;
use super::fleet::{Fleet, Produced, ROUND_MS, SAMPLES_PER_MESSAGE, gpu_ms};
use super::ingest::query;
use super::{Scratch, Stopwatch};
use tidegate_workspace::{CommandError, LogArgs, Workspace, block_on, folder_bytes, folder_url};

#[derive(Debug, Args)]
pub struct WindowArgs {
    /// Seed of the generated input
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Nodes of 8 GPUs each; every GPU is sampled each second, 24 metrics
    #[arg(long, default_value_t = 1_250, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    nodes: u32,
    /// Observed time of the fleet
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=10_080))]
    minutes: u32,
    #[command(flatten)]
    log: LogArgs,
    /// Print JSON (the default; the flag is accepted for scripts)
    #[arg(long)]
    json: bool,
}

/// Report of the bench. A sample is all metrics of one GPU at one time.
#[derive(Debug, Serialize)]
pub struct Report {
    bench: &'static str,
    seed: u64,
    gpus: u32,
    minutes: u32,
    jobs_and_nodes_events: u64,
    samples: u64,
    produce_cpu_s: f64,
    log_bytes_per_sample: f64,
    /// Wall time of the pipeline process, start-up included.
    wall_s: f64,
    cpu_s: f64,
    samples_per_core_s: f64,
    peak_rss_mib: f64,
    /// Of the sample table, and of all tables.
    table_bytes_per_sample: f64,
    lake_bytes_per_sample: f64,
    /// Found by SQL. The bench fails if they differ from the fleet's.
    rows: i64,
    power_mw: i64,
    /// GPU-ms of the ledger over all classes, and the part held by jobs.
    ledger_gpu_ms: i64,
    ledger_held_ms: i64,
}

pub fn run(args: &WindowArgs) -> Result<Report, CommandError> {
    if args.log.kafka().is_some() {
        return Err("this bench uses the embedded log; leave out --log".into());
    }
    let scratch = Scratch::new("window")?;
    let data = scratch.path().join("data");
    let watch = Stopwatch::start()?;
    let made = fill_log(args.seed, args.nodes, args.minutes, &data, &args.log)?;
    let (produce_cpu_s, _) = watch.read()?;
    let worked = children::run_pipelines(1, &data, &args.log)?;
    let found = found(&data)?;
    let expected = [made.produced.samples as i64, made.produced.power_mw, made.gpu_ms, made.held_ms];
    if found != expected {
        return Err(format!(
            "samples, their power in mW, GPU-ms and GPU-ms held: the tables say {found:?}, the fleet was {expected:?}"
        )
        .into());
    }
    let samples = made.produced.samples as f64;
    let per_sample = |folder: &str| Ok::<_, CommandError>(folder_bytes(&data.join(folder))? as f64 / samples);
    let [rows, power_mw, ledger_gpu_ms, ledger_held_ms] = found;
    Ok(Report {
        bench: "window",
        seed: args.seed,
        gpus: args.nodes * 8,
        minutes: args.minutes,
        jobs_and_nodes_events: made.events,
        samples: made.produced.samples,
        produce_cpu_s,
        log_bytes_per_sample: per_sample("log")?,
        wall_s: worked.wall_s,
        cpu_s: worked.cpu_s,
        samples_per_core_s: samples / worked.cpu_s,
        peak_rss_mib: worked.peak_rss_mib,
        table_bytes_per_sample: per_sample("lake/gpu_samples")?,
        lake_bytes_per_sample: per_sample("lake")?,
        rows,
        power_mw,
        ledger_gpu_ms,
        ledger_held_ms,
    })
}

/// A log filled with the data of a fleet.
pub(super) struct FilledLog {
    pub produced: Produced,
    pub events: u64,
    pub gpu_ms: i64,
    pub held_ms: i64,
}

/// Writes `minutes` of a fleet to the log of a data folder.
pub(super) fn fill_log(
    seed: u64,
    nodes: u32,
    minutes: u32,
    data: &std::path::Path,
    log: &LogArgs,
) -> Result<FilledLog, CommandError> {
    let workspace = Workspace::open(data, log)?;
    workspace.create_topics()?;
    let length_ms = i64::from(minutes) * 60_000;
    let rounds = (length_ms / ROUND_MS) as u64;
    let mut fleet = Fleet::new(seed, nodes, rounds);
    let events = fleet.produce_jobs(length_ms, workspace.log.as_ref())?;
    let (gpu_ms, held_ms) = gpu_ms(&fleet, length_ms);
    let samples = rounds * u64::from(nodes) * SAMPLES_PER_MESSAGE;
    let produced = fleet.produce(samples, workspace.log.as_ref(), 1)?;
    Ok(FilledLog { produced, events, gpu_ms, held_ms })
}

/// Samples, the sum of their power, and GPU-ms of the ledger: total and held.
fn found(data: &std::path::Path) -> Result<[i64; 4], CommandError> {
    block_on(async {
        let plan = Plan::compile(tidegate_lake::pipeline::shipped()).await?;
        let catalog = committed_catalog(&folder_url(&data.join("lake"))?, &plan, Limits::default()).await?;
        let catalog = CatalogSource::fixed(catalog);
        let mut found = [0; 4];
        let asked = [
            "SELECT count(*) FROM gpu_samples",
            "SELECT CAST(sum(power_mw) AS BIGINT) FROM gpu_samples",
            "SELECT CAST(sum(gpu_ms) AS BIGINT) FROM ledger_1m",
            "SELECT CAST(sum(gpu_ms) AS BIGINT) FROM ledger_1m WHERE job_id IS NOT NULL",
        ];
        for (found, sql) in found.iter_mut().zip(asked) {
            *found = query(&catalog, sql).await?.2;
        }
        Ok(found)
    })?
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU64;
    use std::sync::Arc;

    use tidegate_lake::delta::DeltaStore;
    use tidegate_lake::runner::Pace;

    use super::*;

    /// Bytes a sample of the newest version of the table, and its number of files.
    async fn table_bytes(data: &std::path::Path, samples: u64) -> (f64, usize) {
        let plan = Plan::compile(tidegate_lake::pipeline::shipped()).await.unwrap();
        let spec = plan.tables().into_iter().find(|spec| spec.name == "gpu_samples").unwrap();
        let root = folder_url(&data.join("lake")).unwrap();
        let files = DeltaStore::open(&root, Arc::clone(&spec)).await.unwrap().unwrap().files().unwrap();
        (files.iter().map(|file| file.size as f64).sum::<f64>() / samples as f64, files.len())
    }

    /// Half an hour of 128 GPUs in fifty commits.
    #[test]
    fn samples_take_few_bytes_before_and_after_compaction() {
        let scratch = Scratch::new("bytes").unwrap();
        let data = scratch.path().join("data");
        let log = LogArgs::default();
        let made = fill_log(1, 16, 30, &data, &log).unwrap().produced.samples;
        block_on(async {
            let workspace = Workspace::open(&data, &log).unwrap();
            let mut pace =
                Pace { refresh_every: None, flush_events: 1, read_bytes: 300 << 10, ..Pace::default() };
            pace.maintenance.target_bytes = NonZeroU64::new(2 << 20).unwrap();
            pace.maintenance.small_files = 16;
            let pipelines = tidegate_lake::pipeline::shipped();
            let mut runner = workspace.runner(pipelines, pace).await.unwrap();
            runner.catch_up(&mut |_| {}).await.unwrap();
            let (before, files) = table_bytes(&data, made).await;
            assert!(files > 16 && before <= 43.0, "{files} files, {before} bytes a sample");
            runner.maintain().await.unwrap();
            let (after, files) = table_bytes(&data, made).await;
            assert!((2..=16).contains(&files) && after <= 30.4, "{files} files, {after} bytes a sample");
        })
        .unwrap();
    }
}
