//! Backlog: from a log full of GPU samples to the table, by one or several processes.

pub(super) mod children;

use std::path::Path;
use std::time::Instant;

use clap::Args;
use serde::Serialize;
use tidegate_lake::catalog::{CatalogSource, committed_catalog};
use tidegate_lake::engine::Limits;
use tidegate_lake::pipeline::Plan;
use tidegate_log::{EventLog, TopicPartition};

use super::fleet::{Fleet, SAMPLES_PER_MESSAGE};
use super::ingest::query;
use super::{Scratch, Stopwatch};
use tidegate_workspace::{CommandError, LogArgs, Workspace, block_on, folder_bytes, folder_url};

#[derive(Debug, Args)]
pub struct BacklogArgs {
    /// Seed of the generated input
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Samples in the log; a sample is all metrics of one GPU at one time
    #[arg(long, default_value_t = 10_000_000, value_parser = clap::value_parser!(u64).range(1..))]
    samples: u64,
    /// Nodes that send them, of 8 GPUs each
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..))]
    nodes: u32,
    /// Processes at once; several numbers are measured one after the other, each on a log of its
    /// own
    #[arg(long, value_name = "N,N", value_delimiter = ',', default_value = "1",
          value_parser = clap::value_parser!(u32).range(1..=64))]
    processes: Vec<u32>,
    #[command(flatten)]
    log: LogArgs,
    /// Print JSON (the default; the flag is accepted for scripts)
    #[arg(long)]
    json: bool,
}

/// What the bench reports.
#[derive(Debug, Serialize)]
pub struct Report {
    bench: &'static str,
    seed: u64,
    nodes: u32,
    partitions: u32,
    log: &'static str,
    measurements: Vec<Measurement>,
}

/// Result of one number of processes on one log.
#[derive(Debug, Serialize)]
struct Measurement {
    processes: u32,
    samples: u64,
    /// Wall and CPU seconds of making the samples and writing them to the log.
    produce_s: f64,
    produce_cpu_s: f64,
    produced_per_s: f64,
    /// Keys and payloads, uncompressed.
    payload_bytes_per_sample: f64,
    /// On disk; unknown on Kafka.
    log_bytes_per_sample: Option<f64>,
    /// From the start of the first process to the end of the last one.
    wall_s: f64,
    /// Of all processes, kernel included.
    cpu_s: f64,
    samples_per_s: f64,
    samples_per_core_s: f64,
    /// Of the largest process.
    peak_rss_mib: f64,
    lake_bytes_per_sample: f64,
    /// Rows and power in the table. The bench fails if they differ from the generator's.
    rows: i64,
    power_mw: i64,
}

pub fn run(args: &BacklogArgs) -> Result<Report, CommandError> {
    let on_kafka = args.log.kafka().is_some();
    if !on_kafka && args.processes.iter().any(|n| *n > 1) {
        return Err(
            "the embedded log has one process; to measure several, give --log kafka://HOST:PORT".into()
        );
    }
    let mut measurements = Vec::new();
    for (place, processes) in args.processes.iter().enumerate() {
        // A log and a group of its own, so that no earlier measurement leaves offsets.
        let log = args.log.in_fresh_prefix(&format!("bench-{:x}-{place}", fresh()?))?;
        measurements.push(measure(args, &log, *processes)?);
    }
    Ok(Report {
        bench: "backlog",
        seed: args.seed,
        nodes: args.nodes,
        partitions: args.log.topics().partitions,
        log: if on_kafka { "kafka" } else { "embedded" },
        measurements,
    })
}

/// A number unique to this run.
fn fresh() -> Result<u128, CommandError> {
    Ok(std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH)?.as_millis())
}

fn measure(args: &BacklogArgs, log: &LogArgs, processes: u32) -> Result<Measurement, CommandError> {
    let scratch = Scratch::new("backlog")?;
    let data = scratch.path().join("data");
    let watch = Stopwatch::start()?;
    let produced = {
        let workspace = Workspace::open(&data, log)?;
        workspace.create_topics()?;
        let rounds = args.samples.div_ceil(u64::from(args.nodes) * SAMPLES_PER_MESSAGE);
        Fleet::new(args.seed, args.nodes, rounds).produce(
            args.samples,
            workspace.log.as_ref(),
            log.topics().partitions,
        )?
    };
    let (produce_cpu_s, produce_s) = watch.read()?;
    let worked = children::run_pipelines(processes, &data, log)?;
    let (rows, power_mw) = in_table(&data.join("lake"))?;
    if (rows, power_mw) != (produced.samples as i64, produced.power_mw) {
        return Err(format!(
            "the table holds {rows} samples with power_mw {power_mw} in all, made were {} with {}: samples were lost or doubled",
            produced.samples, produced.power_mw
        )
        .into());
    }
    let samples = produced.samples as f64;
    let per_sample = |folder: &str| Ok::<_, CommandError>(folder_bytes(&data.join(folder))? as f64 / samples);
    let log_bytes_per_sample = log.kafka().is_none().then(|| per_sample("log")).transpose()?;
    let measurement = Measurement {
        processes,
        samples: produced.samples,
        produce_s,
        produce_cpu_s,
        produced_per_s: samples / produce_s,
        payload_bytes_per_sample: produced.payload_bytes as f64 / samples,
        log_bytes_per_sample,
        wall_s: worked.wall_s,
        cpu_s: worked.cpu_s,
        samples_per_s: samples / worked.wall_s,
        samples_per_core_s: samples / worked.cpu_s,
        peak_rss_mib: worked.peak_rss_mib,
        lake_bytes_per_sample: per_sample("lake/gpu_samples")?,
        rows,
        power_mw,
    };
    if let Some(url) = log.kafka() {
        drop_records(&log.place.open_kafka(url)?)?;
    }
    Ok(measurement)
}

/// Rows of the table and the sum of `power_mw`.
fn in_table(lake: &Path) -> Result<(i64, i64), CommandError> {
    block_on(async {
        let plan = Plan::compile(tidegate_lake::pipeline::shipped()).await?;
        let catalog = committed_catalog(&folder_url(lake)?, &plan, Limits::default()).await?;
        let catalog = CatalogSource::fixed(catalog);
        let (_, _, rows) = query(&catalog, "SELECT count(*) FROM gpu_samples").await?;
        let (_, _, power) = query(&catalog, "SELECT CAST(sum(power_mw) AS BIGINT) FROM gpu_samples").await?;
        Ok((rows, power))
    })?
}

/// Trims all records to free the broker's disk; the topics stay.
fn drop_records(log: &dyn EventLog) -> Result<(), CommandError> {
    let begun = Instant::now();
    for (topic, config) in log.topics()? {
        for partition in 0..config.partitions {
            let at = TopicPartition { topic: topic.clone(), partition };
            log.trim(&at, log.extent(&at)?.end)?;
        }
    }
    tracing::debug!(took = ?begun.elapsed(), "dropped the records of the measurement");
    Ok(())
}
