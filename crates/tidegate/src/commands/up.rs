//! `tidegate up`: log, pipelines, insight, SQL over HTTP and the demo in one process.

pub mod demo;
mod ledger;
mod view;

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use tidegate_control::PlanArchive;
use tidegate_control::service::{Service, ServiceConfig};
use tidegate_events::SchemaId;
use tidegate_lake::runner::{Pace, Runner};
use tidegate_log::{EventLog, TopicPartition};
use tidegate_server::audit::Auditor;
use tidegate_server::{Ingest, Metrics, QueryLimits, QueryService, serve};
use tokio::sync::watch;

use super::{
    CommandError, CommandResult, CommitArgs, DataArgs, DoorArgs, KeepArgs, LogArgs, Workspace, block_on,
    insight, name_full_disk, query_memory, query_worker, stop_on_signals, table_counts,
};
use crate::autopilot::demo as demo_cluster;
use crate::autopilot::service as autopilot_service;
use demo::{Demo, Speed, Trace};
use view::View;

/// Delay until queries see new records.
const REFRESH_EVERY: Duration = Duration::from_millis(500);

/// Shortest time a row of the autopilot's display stays; a simulated night takes 15 s.
const ROW_TAKES: Duration = Duration::from_millis(700);

/// One token for all nodes let each node write everything.
const ONE_TOKEN: &str = "--ingest-token-file is no more: its one token let every node write everything. Make a token for each \
    node (tidegate token new --tokens tokens.toml --role agent --cluster NAME --node NODE), give it to the agent with \
    --log-token-file, and start `up` with --tokens tokens.toml";

/// Run everything in one process: event log, pipelines, tables, SQL over HTTP
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  tidegate up --demo
  tidegate up --demo --speed 1d/s --data demo-data
  tidegate up --data tidegate-data --listen 127.0.0.1:9000
  tidegate up --data tidegate-data --ingest --keep gpu_samples=30 --keep gpu_1m=400
  tidegate up --data tidegate-data --ingest --listen 0.0.0.0:8428 --tokens tokens.toml \\
      --host tide.example --tls-cert tide.pem --tls-key tide.key

Ctrl-C and SIGTERM commit received events and exit; a second one exits at once. kill -9 loses
nothing either: acknowledged records are still in the log after a restart.
crates/tidegate/demo/ATTRIBUTION.md has the authors and licences of the demo traces.")]
pub struct UpArgs {
    #[command(flatten)]
    data: DataArgs,
    #[command(flatten)]
    log: LogArgs,
    /// Address for SQL and health checks; port 0 takes a free one
    #[arg(long, value_name = "HOST:PORT", env = "TIDEGATE_LISTEN", default_value = "127.0.0.1:8428")]
    listen: String,
    /// Receive events over HTTP from agents with --log http://HOST:PORT
    #[arg(long)]
    ingest: bool,
    #[command(flatten)]
    door: DoorArgs,
    /// Replaced by --tokens
    #[arg(long, value_name = "FILE", hide = true)]
    ingest_token_file: Option<PathBuf>,
    /// Replay a real trace; the default for an empty data folder. An interrupted replay continues
    #[arg(long)]
    demo: bool,
    /// Trace to replay (implies --demo)
    #[arg(long, value_enum)]
    trace: Option<Trace>,
    /// Simulated time per second, e.g. 6h/s, 1d/s or max (implies --demo) [default: the trace takes
    /// about 25 s]
    #[arg(long, value_name = "TIME/s", value_parser = Speed::parse)]
    speed: Option<Speed>,
    #[command(flatten)]
    keep: KeepArgs,
    #[command(flatten)]
    commits: CommitArgs,
    /// Compute no signals and forecasts
    #[arg(long)]
    no_insight: bool,
    /// Memory for all HTTP queries together, e.g. 512M or 4G; beyond it, sorts and groupings spill
    /// to the temporary folder
    #[arg(long, value_name = "BYTES", default_value = "1G", value_parser = query_memory)]
    query_memory: usize,
    #[command(flatten)]
    signals_memory: insight::MemoryArgs,
    /// Also run the autopilot with this TOML file, like `tidegate autopilot run --config FILE`
    #[arg(long, value_name = "FILE", conflicts_with_all = ["demo", "trace", "speed"])]
    autopilot: Option<PathBuf>,
    /// Exit when the replay, or without one the whole log, is committed
    #[arg(long)]
    exit_when_done: bool,
}

pub fn run(args: UpArgs) -> CommandResult {
    block_on(async {
        let (stop, stopped) = watch::channel(false);
        stop_on_signals(stop.clone())?;
        let ended = up(&args, &stopped, &stop).await;
        stop.send_replace(true);
        ended
    })?
    .map_err(|e| name_full_disk(e, &args.data.data))
}

async fn up(args: &UpArgs, stopped: &watch::Receiver<bool>, stop: &watch::Sender<bool>) -> CommandResult {
    let pipelines = args.data.load_pipelines()?;
    if args.ingest_token_file.is_some() {
        return Err(ONE_TOKEN.into());
    }
    let mut door = args.door.open(&args.listen).await?;
    let url = format!("{}://{}", door.scheme(), door.listener.local_addr()?);
    let maintenance = args.keep.maintenance(&pipelines).await?;
    let workspace = Workspace::open(&args.data.data, &args.log)?;
    let ingest = args.ingest.then(|| Ingest::new(Arc::clone(&workspace.log)));
    let asked_for = args.demo || args.trace.is_some() || args.speed.is_some();
    // A site that receives events has a cluster of its own to show.
    let with_demo =
        asked_for || (!args.ingest && args.autopilot.is_none() && is_empty(workspace.log.as_ref())?);
    workspace.create_topics()?;
    door.audit = Some(Auditor::start(Arc::clone(&workspace.log))?);
    let live = match &args.autopilot {
        Some(file) => {
            let group = workspace.reader_group("autopilot")?;
            let (config, deaths) = (ServiceConfig::read(file)?, workspace.deaths());
            Some(Service::open(config, &args.data.data, &deaths, &workspace.log, &group)?)
        }
        None => None,
    };
    let pace = Pace { refresh_every: Some(REFRESH_EVERY), maintenance, ..args.commits.pace() };
    let mut runner = workspace.runner(pipelines, pace).await?;
    let limits = QueryLimits { memory_bytes: args.query_memory, ..QueryLimits::default() };
    let service = QueryService::new(runner.catalog(), limits)?;
    let mut until = stopped.clone();
    let until = async move { until.wait_for(|stop| *stop).await.map_or((), |_| ()) };
    let metrics = Arc::new(Metrics::default());
    let workers = query_worker::workers(&args.data, runner.catalog(), limits)?;
    let server = tokio::spawn(serve(door, workers, Arc::clone(&metrics), ingest, until));

    let data = args.data.data.display();
    say!("data    {data}\npage    {url}/\nSQL     {url}/v1/sql");
    if args.ingest {
        say!("events  {url}  (tidegate agent --log {url})");
    }
    for line in live.iter().flat_map(Service::describe) {
        say!("{line}");
    }
    if with_demo {
        if !asked_for {
            say!("There is nothing in this folder yet, so here is a demo.");
        }
        let trace = args.trace.unwrap_or(Trace::PhillyMultigpuAttempts);
        let demo = Demo::load(trace)?;
        let speed = args.speed.unwrap_or_else(|| demo.default_speed());
        let view =
            View::new(service.clone(), trace.name(), demo.span_ms(), workspace.folder.lake(), url.clone());
        let whole =
            replay(&mut runner, &metrics, demo, speed, Arc::clone(&workspace.log), view, stopped).await?;
        if whole {
            act(&workspace, speed, stopped).await?;
            runner.catch_up(&mut |p| metrics.observe(p)).await?;
        }
        say!("{}", what_next(args, &url, trace, whole));
    } else {
        show_tables(&service).await?;
    }
    // A replay runs through months in seconds; signals start when it is over.
    let insight = !args.no_insight && !*stopped.borrow();
    if args.exit_when_done && !*stopped.borrow() {
        if insight && !with_demo {
            let source = insight::Source::of(&workspace, &args.signals_memory)?;
            tokio::task::spawn_blocking(move || insight::catch_up(&source)).await??;
        }
        runner.catch_up(&mut |p| metrics.observe(p)).await?;
    } else {
        let source = insight.then(|| insight::Source::of(&workspace, &args.signals_memory)).transpose()?;
        let insight = source.map(|source| insight::spawn(source, stopped.clone(), Arc::clone(&metrics)));
        let autopilot = match live {
            Some(mut live) => {
                autopilot_service::learn_from(&mut live, &service).await;
                Some(autopilot_service::spawn(live, stopped.clone(), Arc::clone(&metrics)))
            }
            None => None,
        };
        runner.run(stopped.clone(), &mut |p| metrics.observe(p)).await?;
        for thread in insight.into_iter().chain(autopilot) {
            tokio::task::spawn_blocking(move || thread.join()).await?.ok();
        }
    }
    stop.send_replace(true);
    server.await?;
    Ok(ExitCode::SUCCESS)
}

/// Replays the trace while the runner processes it and the view shows it. Returns whether the whole
/// trace is in the tables.
async fn replay(
    runner: &mut Runner,
    metrics: &Metrics,
    demo: Demo,
    speed: Speed,
    log: Arc<dyn EventLog>,
    view: View,
    stopped: &watch::Receiver<bool>,
) -> Result<bool, CommandError> {
    let (replaying, ended) = watch::channel(false);
    let replaying = EndsWhenDropped(replaying);
    let stopped = stopped.clone();
    let replayed = tokio::spawn(async move {
        let _replaying = replaying;
        demo.replay(log.as_ref(), speed, stopped).await
    });
    let view = tokio::spawn(view.follow(ended.clone()));
    runner.run(ended, &mut |p| metrics.observe(p)).await?;
    let whole = replayed.await??;
    if whole {
        // The runner may have seen the end before it read the last records.
        runner.catch_up(&mut |p| metrics.observe(p)).await?;
    }
    view.await?.finish().await?;
    Ok(whole)
}

/// Signals the end of the replay when dropped.
struct EndsWhenDropped(watch::Sender<bool>);

impl Drop for EndsWhenDropped {
    fn drop(&mut self) {
        self.0.send_replace(true);
    }
}

/// Runs the autopilot on a simulated cluster, unless an earlier run did.
async fn act(
    workspace: &Workspace,
    speed: Speed,
    stopped: &watch::Receiver<bool>,
) -> Result<(), CommandError> {
    if demo_cluster::is_told(workspace.log.as_ref())? {
        return Ok(());
    }
    let row_takes = if speed == Speed::Max { Duration::ZERO } else { ROW_TAKES };
    let (log, stopped) = (Arc::clone(&workspace.log), stopped.clone());
    let archive = PlanArchive::in_data(workspace.folder.path());
    let acted = tokio::task::spawn_blocking(move || {
        let folder = tempfile::tempdir()?;
        demo::bundle(folder.path())?;
        let cluster = demo_cluster::Demo::watched(folder.path())?;
        say!("\n{}", cluster.head());
        cluster.run(log, archive, row_takes, &mut || !*stopped.borrow(), &mut |row| say!("{row}"))
    });
    if let Some(summary) = acted.await?? {
        say!("{summary}");
    }
    Ok(())
}

/// Whether nothing was ever recorded in this log but what people did.
fn is_empty(log: &dyn EventLog) -> Result<bool, CommandError> {
    for (topic, config) in log.topics()? {
        if topic == SchemaId::AuditEvent.topic() {
            continue;
        }
        for partition in 0..config.partitions {
            if log.extent(&TopicPartition { topic: topic.clone(), partition })?.end > 0 {
                return Ok(false);
            }
        }
    }
    Ok(true)
}

async fn show_tables(service: &QueryService) -> Result<(), CommandError> {
    for table in table_counts(service).await? {
        say!("{table}");
    }
    Ok(())
}

fn what_next(args: &UpArgs, url: &str, trace: Trace, whole: bool) -> String {
    let data = args.data.data.display();
    let log = args.log.kafka().map_or_else(String::new, |url| format!(" --log {url}"));
    if !whole {
        return format!(
            "\nStopped; what was replayed is committed. Go on: tidegate up --trace {} --data {data}{log}",
            trace.name()
        );
    }
    let query =
        "SELECT team, sum(gpu_ms_lost) / 3600000 AS gpu_hours_lost FROM jobs GROUP BY team ORDER BY 2 DESC";
    let live = if args.exit_when_done {
        format!("tidegate up --data {data}{log}")
    } else {
        format!("curl --data '{query}' {url}/v1/sql   (until Ctrl-C)")
    };
    format!(
        "\nThe whole trace is in the tables. Try next:\n  tidegate sql --data {data} \"{query}\"\n  tidegate sql --data {data} describe\n  {live}"
    )
}
