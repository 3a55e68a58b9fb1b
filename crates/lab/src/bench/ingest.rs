//! Ingest and replay: from a year of Slurm accounting to tables, and from the log to tables.

use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::time::Instant;

use arrow::array::AsArray;
use arrow::datatypes::Int64Type;
use clap::Args;
use serde::Serialize;
use tidegate_import::generate::{self, SacctFile};
use tidegate_import::{ImportOptions, Mapping, Source, import};
use tidegate_lake::catalog::CatalogSource;
use tidegate_lake::engine::{self, Limits};
use tidegate_lake::runner::Pace;

use super::{Scratch, Stopwatch, peak_rss_mib};
use tidegate_workspace::{CommandError, LogArgs, Workspace, block_on_one_thread, folder_bytes};

#[derive(Debug, Args)]
pub struct IngestArgs {
    /// Seed of the generated input
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Jobs in the year of accounting
    #[arg(long, default_value_t = 300_000)]
    jobs: u64,
    /// GPUs of the cluster they ran on
    #[arg(long, default_value_t = 4096)]
    gpus: u32,
    /// Write the generated file here and keep it
    #[arg(long, value_name = "FILE")]
    keep: Option<PathBuf>,
    #[command(flatten)]
    log: LogArgs,
    /// Print JSON (the default; the flag is accepted for scripts)
    #[arg(long)]
    json: bool,
}

/// Report of both benches.
#[derive(Debug, Serialize)]
pub struct Report {
    bench: &'static str,
    seed: u64,
    jobs: u64,
    file_bytes: u64,
    events: u64,
    cpu_s: f64,
    wall_s: f64,
    /// Part of `cpu_s` that imports the file into the log.
    import_cpu_s: f64,
    events_per_cpu_s: f64,
    log_bytes_per_event: f64,
    lake_bytes_per_event: f64,
    /// Raw event table alone.
    raw_bytes_per_event: f64,
    commits: u64,
    peak_rss_mib: f64,
    /// Second run of a query by team and day.
    query_warm_ms: f64,
    query_rows: usize,
    /// GPU-ms held, from the tables and as generated; they must be equal.
    gpu_ms_held: i64,
    gpu_ms_generated: i64,
}

/// Imports a generated file into an empty data folder.
pub fn ingest(args: &IngestArgs) -> Result<Report, CommandError> {
    let scratch = Scratch::new("ingest")?;
    let (file, generated) = generate_file(args, scratch.path())?;
    let watch = Stopwatch::start()?;
    let workspace = Workspace::open(&scratch.path().join("data"), &args.log)?;
    append(args, &file, &workspace)?;
    let (import_cpu_s, _) = watch.read()?;
    let mut report = tables(args, "ingest", &scratch, &workspace, &watch, generated)?;
    report.import_cpu_s = import_cpu_s;
    report.file_bytes = std::fs::metadata(&file)?.len();
    Ok(report)
}

/// Builds the tables from an existing log.
pub fn replay(args: &IngestArgs) -> Result<Report, CommandError> {
    let scratch = Scratch::new("replay")?;
    let (file, generated) = generate_file(args, scratch.path())?;
    let workspace = Workspace::open(&scratch.path().join("data"), &args.log)?;
    append(args, &file, &workspace)?;
    let watch = Stopwatch::start()?;
    tables(args, "replay", &scratch, &workspace, &watch, generated)
}

fn generate_file(args: &IngestArgs, folder: &Path) -> Result<(PathBuf, i64), CommandError> {
    let path = args.keep.clone().unwrap_or_else(|| folder.join("jobs.sacct"));
    let mut out = BufWriter::new(std::fs::File::create(&path)?);
    let generated = generate::sacct(&mut out, &SacctFile::year(args.seed, args.jobs, args.gpus))?;
    out.flush()?;
    Ok((path, generated.gpu_ms_ended))
}

fn append(args: &IngestArgs, file: &Path, workspace: &Workspace) -> Result<(), CommandError> {
    let topics = args.log.topics();
    let options = ImportOptions { cluster: Some("bench".into()), topics, ..ImportOptions::default() };
    import(
        Source::File(file.to_owned()),
        &Mapping::load("sacct")?,
        &options,
        workspace.log.as_ref(),
        &mut |_| {},
    )?;
    Ok(())
}

fn tables(
    args: &IngestArgs,
    bench: &'static str,
    scratch: &Scratch,
    workspace: &Workspace,
    watch: &Stopwatch,
    gpu_ms_generated: i64,
) -> Result<Report, CommandError> {
    block_on_one_thread(async {
        let pace = Pace { refresh_every: None, ..Pace::default() };
        let mut runner = workspace.runner(tidegate_lake::pipeline::shipped(), pace).await?;
        let progress = runner.catch_up(&mut |_| {}).await?;
        let (cpu_s, wall_s) = watch.read()?;
        let peak_rss_mib = peak_rss_mib()?;
        let by_team_and_day = "SELECT window_start, team, sum(gpu_ms_held) FROM usage_1d GROUP BY window_start, team ORDER BY 1, 2";
        query(&runner.catalog(), by_team_and_day).await?;
        let (query_rows, query_warm_ms, _) = query(&runner.catalog(), by_team_and_day).await?;
        let held = "SELECT CAST(sum(gpu_ms_held) AS BIGINT) FROM usage_1h WHERE final_state IS NOT NULL";
        let (_, _, gpu_ms_held) = query(&runner.catalog(), held).await?;
        let events = progress.records;
        let per_event =
            |folder: &Path| Ok::<_, CommandError>(folder_bytes(folder)? as f64 / events.max(1) as f64);
        Ok(Report {
            bench,
            seed: args.seed,
            jobs: args.jobs,
            file_bytes: 0,
            events,
            cpu_s,
            wall_s,
            import_cpu_s: 0.0,
            events_per_cpu_s: events as f64 / cpu_s,
            log_bytes_per_event: per_event(&scratch.path().join("data/log"))?,
            lake_bytes_per_event: per_event(&scratch.path().join("data/lake"))?,
            raw_bytes_per_event: per_event(&scratch.path().join("data/lake/job_events"))?,
            commits: progress.commits,
            peak_rss_mib,
            query_warm_ms,
            query_rows,
            gpu_ms_held,
            gpu_ms_generated,
        })
    })?
}

/// Runs a query; returns rows, ms, and the first column of the first row as a number.
pub(super) async fn query(catalog: &CatalogSource, sql: &str) -> Result<(usize, f64, i64), CommandError> {
    let limits = Limits::default();
    let started = Instant::now();
    let ctx = engine::session(&engine::runtime(limits)?, limits);
    catalog.current().register(&ctx)?;
    let batches = ctx.sql(sql).await?.collect().await?;
    let ms = started.elapsed().as_secs_f64() * 1e3;
    let first = batches
        .iter()
        .find(|b| b.num_rows() > 0)
        .and_then(|b| b.column(0).as_primitive_opt::<Int64Type>().map(|c| c.value(0)));
    Ok((batches.iter().map(|b| b.num_rows()).sum(), ms, first.unwrap_or(0)))
}
