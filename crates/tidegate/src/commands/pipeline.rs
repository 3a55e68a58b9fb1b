//! `tidegate pipeline`: lists, draws, checks, runs and tests pipelines, and rebuilds their tables.

mod backfill;
mod cases;
mod graph;
mod json_events;

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use clap::{Args, Subcommand};
use tidegate_lake::pipeline::graph::duration;
use tidegate_lake::pipeline::{Pipeline, Plan, Shape};
use tidegate_lake::runner::{Pace, Progress};
use tidegate_server::audit::Auditor;
use tidegate_server::rehearsal::Rehearsal;
use tidegate_server::{Metrics, QueryLimits, serve};
use tidegate_telemetry::Telemetry;
use tokio::sync::watch;

use super::{
    CommandError, CommandResult, DataArgs, DoorArgs, KeepArgs, LogArgs, OtlpArgs, PaceArgs, Workspace,
    block_on, block_on_one_thread, name_full_disk, query_worker, stop_on_signals,
};

/// List, draw, check, run, backfill and test pipelines
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  tidegate pipeline list
  tidegate pipeline graph --subject jobs
  tidegate pipeline check my_pipelines/gpu_hours.sql
  tidegate pipeline run --data tidegate-data
  tidegate pipeline backfill --pipelines my_pipelines
  tidegate pipeline test my_pipelines/tests --pipelines my_pipelines")]
pub struct PipelineArgs {
    #[command(subcommand)]
    command: PipelineCommand,
}

impl PipelineArgs {
    /// Whether the command works through history and ends.
    pub fn works_through_history(&self) -> bool {
        !matches!(self.command, PipelineCommand::Run { follow: true, .. })
    }
}

#[derive(Debug, Subcommand)]
enum PipelineCommand {
    /// Show every pipeline: its sources, when it runs, and what it computes
    #[command(after_help = "Examples:
  tidegate pipeline list
  tidegate pipeline list --pipelines my_pipelines")]
    List {
        #[command(flatten)]
        data: DataArgs,
    },
    /// Draw which table is computed from which
    Graph(graph::GraphArgs),
    /// Check pipeline files against the rules that make results repeatable
    #[command(after_help = "Examples:
  tidegate pipeline check my_pipelines/gpu_hours.sql")]
    Check {
        /// Files to check, together with the shipped ones
        files: Vec<PathBuf>,
        #[command(flatten)]
        data: DataArgs,
    },
    /// Process the log up to its end, commit the tables, and exit
    #[command(after_help = "Examples:
  tidegate pipeline run --data tidegate-data
  tidegate pipeline run --log kafka://kafka-0:9092 --follow --listen 127.0.0.1:9000")]
    Run {
        #[command(flatten)]
        data: DataArgs,
        #[command(flatten)]
        log: LogArgs,
        /// Keep processing new events until Ctrl-C or SIGTERM
        #[arg(long)]
        follow: bool,
        /// With --follow: serve SQL and GET /metrics on this address
        #[arg(long, value_name = "HOST:PORT", requires = "follow")]
        listen: Option<String>,
        #[command(flatten)]
        door: Box<DoorArgs>,
        #[command(flatten)]
        pace: PaceArgs,
        #[command(flatten)]
        keep: KeepArgs,
        #[command(flatten)]
        otlp: OtlpArgs,
    },
    /// Rebuild every table from the log; queries see the old tables until the new ones are complete
    #[command(after_help = "Examples:
  tidegate pipeline backfill
  tidegate pipeline backfill --pipelines my_pipelines
  tidegate pipeline backfill --ratio-step 64")]
    Backfill {
        #[command(flatten)]
        data: DataArgs,
        #[command(flatten)]
        log: LogArgs,
        /// Rebuild even where the log no longer holds all records; tables then lack what they held
        /// of the others
        #[arg(long)]
        from_what_is_left: bool,
        /// Round ratios of GPU samples to multiples of PPM millionths: 64 saves a tenth of the
        /// bytes. The tables keep the setting; without it they are exact
        #[arg(long, value_name = "PPM", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=10_000))]
        ratio_step: u32,
    },
    /// Run cases with known results in five ways: at once, by windows, in pieces, with crashes,
    /// out of order
    Test(cases::TestArgs),
}

pub fn run(args: PipelineArgs) -> CommandResult {
    match args.command {
        PipelineCommand::List { data } => list(&data),
        PipelineCommand::Graph(args) => graph::run(&args),
        PipelineCommand::Check { files, data } => check(&files, &data),
        PipelineCommand::Run { data, log, follow, listen, door, pace, keep, otlp } => {
            if listen.is_none() {
                door.without_listener()?;
            }
            let metrics = Arc::new(Metrics::default());
            let export = otlp.settings()?.map(|otlp| Telemetry::start(otlp, metrics.page())).transpose()?;
            export.iter().for_each(|export| say!("otlp    {}", export.describe()));
            let listen = listen.as_deref().map(|listen| (listen, &*door));
            let ended = match follow {
                true => self::follow(&data, &log, listen, pace.pace(), &keep, metrics),
                false => catch_up(&data, &log, pace.pace(), &keep, &metrics),
            };
            if let Some(export) = export {
                export.end();
            }
            ended
        }
        PipelineCommand::Backfill { data, log, from_what_is_left, ratio_step } => {
            backfill::run(&data, &log, from_what_is_left, ratio_step)
        }
        PipelineCommand::Test(args) => cases::run(&args),
    }
}

fn list(data: &DataArgs) -> CommandResult {
    let plan = block_on(Plan::compile(data.load_pipelines()?))??;
    say!("{:<16} {:<22} {:<32} WHAT", "NAME", "RUN", "FROM");
    for planned in plan.pipelines() {
        let pipeline = &planned.pipeline;
        let when = match &pipeline.shape {
            Shape::Keyed { per } => format!("per {}", per.join(", ")),
            Shape::Windowed { width_ms, .. } | Shape::Joined { width_ms, .. } => {
                format!("per {} of event time", duration(*width_ms))
            }
            Shape::View => "when asked".into(),
        };
        say!("{:<16} {:<22} {:<32} {}", pipeline.name, when, pipeline.sources.join(", "), pipeline.doc);
    }
    Ok(ExitCode::SUCCESS)
}

fn check(files: &[PathBuf], data: &DataArgs) -> CommandResult {
    let mut pipelines = data.load_pipelines()?;
    let own = files.iter().map(|file| Pipeline::load(file)).collect::<Result<Vec<_>, _>>()?;
    pipelines.retain(|shipped| !own.iter().any(|p| p.name == shipped.name));
    pipelines.extend(own);
    let count = pipelines.len();
    block_on(Plan::compile(pipelines))??;
    say!("{count} pipelines, all repeatable");
    Ok(ExitCode::SUCCESS)
}

fn catch_up(data: &DataArgs, log: &LogArgs, pace: Pace, keep: &KeepArgs, metrics: &Metrics) -> CommandResult {
    let pipelines = data.load_pipelines()?;
    let maintenance = block_on(keep.maintenance(&pipelines))??;
    let workspace = Workspace::open(&data.data, log)?;
    let progress = block_on_one_thread(async {
        // No query is served before it ends.
        let pace = Pace { refresh_every: None, maintenance, ..pace };
        let mut runner = workspace.runner(pipelines, pace).await?;
        let progress = runner.catch_up(&mut |p| metrics.observe(p)).await?;
        runner.maintain().await?;
        Ok::<_, CommandError>(progress)
    })?
    .map_err(|e| name_full_disk(e, &data.data))?;
    report(&progress);
    Ok(ExitCode::SUCCESS)
}

fn follow(
    data: &DataArgs,
    log: &LogArgs,
    listen: Option<(&str, &DoorArgs)>,
    pace: Pace,
    keep: &KeepArgs,
    metrics: Arc<Metrics>,
) -> CommandResult {
    let pipelines = data.load_pipelines()?;
    let maintenance = block_on(keep.maintenance(&pipelines))??;
    let workspace = Workspace::open(&data.data, log)?;
    workspace.create_topics()?;
    let running = async {
        let (stop, stopped) = watch::channel(false);
        stop_on_signals(stop)?;
        // Without an address no query is served, so the catalog is never refreshed for one.
        let refresh_every = listen.and(pace.refresh_every);
        let mut runner = workspace.runner(pipelines, Pace { refresh_every, maintenance, ..pace }).await?;
        if let Some((listen, door)) = listen {
            let mut door = door.open(listen).await?;
            door.audit = Some(Auditor::start(Arc::clone(&workspace.log))?);
            door.rehearsal = Some(Rehearsal::file(&data.data));
            say!("SQL     {}://{}/v1/sql", door.scheme(), door.listener.local_addr()?);
            door.psql().iter().for_each(|psql| say!("psql    {psql}"));
            door.flight_uri().iter().for_each(|flight| say!("flight  {flight}"));
            let service = query_worker::workers(data, runner.catalog(), QueryLimits::default())?;
            let mut until = stopped.clone();
            let until = async move { until.wait_for(|stop| *stop).await.map_or((), |_| ()) };
            tokio::spawn(serve(door, service, Arc::clone(&metrics), None, until));
        }
        runner.run(stopped, &mut |p| metrics.observe(p)).await?;
        Ok::<_, CommandError>(runner.progress().clone())
    };
    // Other threads answer queries while this one waits for the log.
    let ended = if listen.is_some() { block_on(running)? } else { block_on_one_thread(running)? };
    let progress = ended.map_err(|e| name_full_disk(e, &data.data))?;
    report(&progress);
    Ok(ExitCode::SUCCESS)
}

fn report(progress: &Progress) {
    let Progress { records, commits, undecodable, misplaced, rebalances, fenced, .. } = progress;
    say!("{records} records taken in, {commits} commits, {undecodable} undecodable");
    if *misplaced > 0 {
        say!("{misplaced} records stood in another partition than their key's and were passed on to it");
    }
    if *rebalances > 1 || *fenced > 0 {
        say!("{rebalances} rebalances, {fenced} commits refused because another process had taken over");
    }
}
