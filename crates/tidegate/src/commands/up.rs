//! `tidegate up`: log, pipelines, insight, SQL over HTTP and the demo in one process.

mod cluster;
pub mod demo;
mod greeting;
mod ledger;
mod replay;
mod tour;
pub mod view;

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use tidegate_control::service::{Service, ServiceConfig};
use tidegate_events::SchemaId;
use tidegate_lake::runner::Pace;
use tidegate_log::{EventLog, TopicPartition};
use tidegate_server::audit::Auditor;
use tidegate_server::rehearsal::Rehearsal;
use tidegate_server::steering::Steering;
use tidegate_server::{Ingest, Metrics, QueryLimits, QueryService, serve};
use tidegate_telemetry::Telemetry;
use tokio::sync::watch;

use super::{
    CommandError, CommandResult, CommitArgs, DataArgs, DoorArgs, KeepArgs, LogArgs, OtlpArgs, Workspace,
    block_on, insight, name_full_disk, query_memory, query_worker, stop_on_signals,
};
use crate::autopilot::service as autopilot_service;
use crate::autopilot::steering::LiveSteering;
use crate::webhook::{self, Webhook};
use cluster::Player;
use demo::{Kind, Speed, Trace};

/// Delay until queries see new records.
const REFRESH_EVERY: Duration = Duration::from_millis(500);

/// Default of `--query-memory`. The demo has a question whose plan sorts in many places, and each
/// sort has only its part of the memory.
const QUERY_BYTES: usize = 1 << 30;
const DEMO_QUERY_BYTES: usize = 2 << 30;

/// The demo is small, so its joined tables can follow it closely.
const DEMO_JOINED_EVERY: Duration = Duration::from_secs(8);

/// One token for all nodes let each node write everything.
const ONE_TOKEN: &str = "--ingest-token-file is no more: its one token let every node write everything. Make a token for each \
    node (tidegate token new --tokens tokens.toml --role agent --cluster NAME --node NODE), give it to the agent with \
    --log-token-file, and start `up` with --tokens tokens.toml";

/// Run everything in one process: event log, pipelines, tables, SQL over HTTP
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  tidegate up --demo
  tidegate up --demo philly --speed 1d/s --data demo-data
  tidegate up --postgres --flight
  tidegate up --webhook-url-file /etc/tidegate/webhook
  tidegate up --otlp http://127.0.0.1:4318
  tidegate up --data tidegate-data --listen 127.0.0.1:9000
  tidegate up --data tidegate-data --ingest --keep gpu_samples=30 --keep gpu_1m=400
  tidegate up --data tidegate-data --ingest --listen 0.0.0.0:8433 --tokens tokens.toml \\
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
    #[arg(long, value_name = "HOST:PORT", env = "TIDEGATE_LISTEN", default_value = "127.0.0.1:8433")]
    listen: String,
    /// Receive events over HTTP from agents with --log http://HOST:PORT
    #[arg(long)]
    ingest: bool,
    #[command(flatten)]
    door: DoorArgs,
    /// Replaced by --tokens
    #[arg(long, value_name = "FILE", hide = true)]
    ingest_token_file: Option<PathBuf>,
    /// Show a simulated site with a week of past, or replay a real trace of jobs; without a value,
    /// and in an empty data folder, the site
    #[arg(long, value_enum, value_name = "KIND", num_args = 0..=1, default_missing_value = "cluster")]
    demo: Option<Kind>,
    /// How fast the site passes its last two hours until it is now, e.g. 1m/s or max; then it goes
    /// on by the clock [default: 2m/s]
    #[arg(long, value_name = "TIME/s", value_parser = Speed::parse, conflicts_with_all = ["trace", "speed"])]
    demo_speed: Option<Speed>,
    /// Trace to replay (implies --demo philly). An interrupted replay continues
    #[arg(long, value_enum)]
    trace: Option<Trace>,
    /// Time of the trace per second, e.g. 6h/s, 1d/s or max (implies --demo philly) [default: the
    /// trace takes about 25 s]
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
    /// to the temporary folder [default: 1G; 2G for the demo]
    #[arg(long, value_name = "BYTES", value_parser = query_memory)]
    query_memory: Option<usize>,
    #[command(flatten)]
    otlp: OtlpArgs,
    #[command(flatten)]
    signals_memory: insight::MemoryArgs,
    /// Also run the autopilot with this TOML file, like `tidegate autopilot run --config FILE`
    #[arg(long, value_name = "FILE", conflicts_with_all = ["demo", "demo_speed", "trace", "speed"])]
    autopilot: Option<PathBuf>,
    /// File with the address of a webhook that takes Slack's messages, which is told of decisions
    /// that wait for approval, stragglers, bad nodes and trouble with the autopilot's journal. The
    /// address is a secret; it may stand in TIDEGATE_WEBHOOK_URL instead
    #[arg(long, value_name = "FILE", env = "TIDEGATE_WEBHOOK_URL_FILE")]
    webhook_url_file: Option<PathBuf>,
    /// Exit when the demo is over, or without one the whole log is committed
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
    let otlp = args.otlp.settings()?;
    let webhook = webhook::Address::find(args.webhook_url_file.as_deref())?;
    let mut door = args.door.open(&args.listen).await?;
    let url = format!("{}://{}", door.scheme(), door.listener.local_addr()?);
    let (psql, flight) = (door.psql(), door.flight_uri());
    let maintenance = args.keep.maintenance(&pipelines).await?;
    let workspace = Workspace::open(&args.data.data, &args.log)?;
    let ingest = args.ingest.then(|| Ingest::new(Arc::clone(&workspace.log)));
    let demo = args.demo(workspace.log.as_ref())?;
    workspace.create_topics()?;
    door.audit = Some(Auditor::start(Arc::clone(&workspace.log))?);
    door.rehearsal = Some(Rehearsal::file(&args.data.data));
    let live = match &args.autopilot {
        Some(file) => {
            let group = workspace.reader_group("autopilot")?;
            let (config, deaths) = (ServiceConfig::read(file)?, workspace.deaths());
            Some(Service::open(config, &args.data.data, &deaths, &workspace.log, &group)?)
        }
        None => None,
    };
    let steering = match &live {
        Some(live) => Some(Arc::new(LiveSteering::new(live, &args.data.data))),
        None if demo == Some(Kind::Cluster) => {
            Some(Arc::new(LiveSteering::simulated(tidegate_demo::CLUSTER, &args.data.data)))
        }
        None => None,
    };
    door.steering = steering.clone().map(|steering| steering as Arc<dyn Steering>);
    let mut pace = Pace { refresh_every: Some(REFRESH_EVERY), maintenance, ..args.commits.pace() };
    if demo == Some(Kind::Cluster) {
        pace.joined_every = DEMO_JOINED_EVERY;
    }
    let mut runner = workspace.runner(pipelines, pace).await?;
    let memory_bytes =
        args.query_memory.unwrap_or(if demo.is_some() { DEMO_QUERY_BYTES } else { QUERY_BYTES });
    let limits = QueryLimits { memory_bytes, ..QueryLimits::default() };
    let service = QueryService::new(runner.catalog(), limits)?;
    let mut until = stopped.clone();
    let until = async move { until.wait_for(|stop| *stop).await.map_or((), |_| ()) };
    let metrics = Arc::new(Metrics::default());
    let export = otlp.map(|otlp| Telemetry::start(otlp, metrics.page())).transpose()?;
    let workers = query_worker::workers(&args.data, runner.catalog(), limits)?;
    let server = tokio::spawn(serve(door, workers, Arc::clone(&metrics), ingest, until));

    if let Some(address) = webhook {
        tokio::spawn(Webhook::new(address, &args.data.data, &service, &metrics).run(stopped.clone()));
    }
    greeting::greet(args, &url, demo, &service).await?;
    psql.iter().for_each(|psql| say!("psql    {psql}"));
    flight.iter().for_each(|flight| say!("flight  {flight}"));
    export.iter().for_each(|export| say!("otlp    {}", export.describe()));
    for line in live.iter().flat_map(Service::describe) {
        say!("{line}");
    }
    if demo == Some(Kind::Philly) {
        replay::run(args, &mut runner, &metrics, &workspace, &service, &url, stopped).await?;
    }
    let site = match demo {
        Some(Kind::Cluster) => {
            let last_step = steering.as_ref().map(|steering| steering.last_step()).unwrap_or_default();
            Some(Player::start(args, &workspace, &service, &url, stopped, last_step)?)
        }
        _ => None,
    };
    let insight = !args.no_insight && !*stopped.borrow();
    let source = insight.then(|| insight::Source::of(&workspace, &args.signals_memory)).transpose()?;
    if args.exit_when_done && !*stopped.borrow() {
        if let Some(site) = site {
            site.table_past(&mut runner, &metrics).await?;
            runner.run(site.over(), &mut |p| metrics.observe(p)).await?;
            site.end().await?;
        }
        // A replay runs through months in seconds; signals are for the present.
        if let Some(source) = source.filter(|_| demo != Some(Kind::Philly)) {
            tokio::task::spawn_blocking(move || insight::catch_up(&source)).await??;
        }
        runner.catch_up(&mut |p| metrics.observe(p)).await?;
    } else {
        let begin = site.as_ref().map(Player::past);
        let insight =
            source.map(|source| insight::spawn(source, begin, stopped.clone(), Arc::clone(&metrics)));
        let autopilot = match live.zip(steering) {
            Some((mut live, steering)) => {
                autopilot_service::learn_from(&mut live, &service).await;
                let (stopped, metrics) = (stopped.clone(), Arc::clone(&metrics));
                Some(autopilot_service::spawn(live, stopped, metrics, steering.last_step()))
            }
            None => None,
        };
        if let Some(site) = &site {
            site.table_past(&mut runner, &metrics).await?;
        }
        let until = site.as_ref().map_or_else(|| stopped.clone(), Player::over);
        runner.run(until, &mut |p| metrics.observe(p)).await?;
        // The site may have failed.
        stop.send_replace(true);
        if let Some(site) = site {
            site.end().await?;
        }
        for thread in insight.into_iter().chain(autopilot) {
            tokio::task::spawn_blocking(move || thread.join()).await?.ok();
        }
    }
    stop.send_replace(true);
    server.await?;
    if let Some(export) = export {
        tokio::task::spawn_blocking(|| export.end()).await?;
    }
    Ok(ExitCode::SUCCESS)
}

impl UpArgs {
    /// The demo to show: the one that is asked for, or the site if there is nothing else to show.
    fn demo(&self, log: &dyn EventLog) -> Result<Option<Kind>, CommandError> {
        let is_new = is_empty(log)?;
        if self.trace.is_some() || self.speed.is_some() {
            return match self.demo {
                Some(Kind::Cluster) => {
                    Err("--trace and --speed are of --demo philly; use --demo-speed".into())
                }
                _ => Ok(Some(Kind::Philly)),
            };
        }
        match self.demo.or(self.demo_speed.map(|_| Kind::Cluster)) {
            Some(Kind::Cluster) if !is_new => Err(format!(
                "{0} holds events already, and the site of the demo begins with none: choose another --data, \
                 or look at what is there with `tidegate up --data {0}`",
                self.data.data.display()
            )
            .into()),
            // A site that receives events has a cluster of its own to show.
            None if is_new && !self.ingest && self.autopilot.is_none() => Ok(Some(Kind::Cluster)),
            asked => Ok(asked),
        }
    }
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
