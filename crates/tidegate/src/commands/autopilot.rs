//! `tidegate autopilot`: run, pause and resume the autopilot, approve and reject actions, and
//! report results.

mod decide;
mod doctor;
mod dry_runs;
mod promises;
mod record;
mod rehearse;
mod slo;

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use clap::{Args, Subcommand};
use tidegate_autopilot::policy::Policy;
use tidegate_control::ControlFolder;
use tidegate_control::authority::{self, SignedText, SwitchStatement};
use tidegate_control::service::{Service, ServiceConfig};
use tidegate_lake::catalog::CatalogSource;
use tidegate_server::audit::Auditor;
use tidegate_server::rehearsal::Rehearsal;
use tidegate_server::{Metrics, QueryLimits, serve};
use tidegate_telemetry::{Settings, Telemetry};
use tokio::sync::watch;

use super::{
    CommandError, CommandResult, DataArgs, DoorArgs, LogArgs, OtlpArgs, Workspace, block_on, chain,
    committed, policy, query_worker, rollout, stop_on_signals, user_name,
};
use crate::autopilot::service;
use crate::autopilot::steering::LiveSteering;

/// Run, pause and steer the autopilot, and see its results
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  tidegate autopilot doctor --config slurm.toml
  tidegate autopilot rehearse --policy site.toml --act lend --act reclaim
  tidegate autopilot pause --why \"maintenance of rack 7\"
  tidegate autopilot resume
  tidegate autopilot resume --key ~/.ssh/id_ed25519 --cluster prod
  tidegate autopilot approve drain_node-1b491e8c244329c8
  tidegate autopilot approve drain_node-1b491e8c244329c8 --key ~/.ssh/id_ed25519
  tidegate autopilot reject drain_node-1b491e8c244329c8 --why \"the vendor comes at noon\"
  tidegate autopilot record --policy site.toml
  tidegate autopilot slo --policy site.toml

The kill switch is the file DIR/autopilot/switch in the data folder. It is read before every change
of the cluster; any content other than `on` means off. Where the site requires signatures, `on`
counts only with one. While the autopilot is paused, no action starts and none is undone; loans end
by themselves.")]
pub struct AutopilotArgs {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Observe, plan and act on a real cluster until Ctrl-C, within the policy and the kill switch
    #[command(after_help = "Examples:
  tidegate autopilot run --config deploy/autopilot/slurm.toml --log kafka://localhost:9092
  tidegate autopilot run --config autopilot.toml --once
  tidegate autopilot run --config autopilot.toml --shadow candidate.toml

Several autopilots may run: one holds the lease and acts, and another takes over if it stops. With
the embedded log, use `tidegate up --autopilot FILE`, which also runs the pipelines. The shipped
policy only suggests.")]
    Run {
        /// TOML file with the cluster, the policy and the [slurm] section
        #[arg(long, value_name = "FILE")]
        config: PathBuf,
        /// Do one step and exit
        #[arg(long)]
        once: bool,
        /// Shadow policy: plans on the same observations and never acts; overrides the policy's
        /// [shadow]
        #[arg(long, value_name = "FILE|NAME")]
        shadow: Option<String>,
        /// Serve GET /metrics, /v1/autopilot, and SQL on the tables as of the start, at this
        /// address
        #[arg(long, value_name = "HOST:PORT")]
        listen: Option<String>,
        #[command(flatten)]
        door: Box<DoorArgs>,
        #[command(flatten)]
        otlp: OtlpArgs,
        #[command(flatten)]
        data: DataArgs,
        #[command(flatten)]
        log: LogArgs,
    },
    Doctor(doctor::DoctorArgs),
    Rehearse(Box<rehearse::RehearseArgs>),
    /// Pause the autopilot: it starts no action until `resume`
    #[command(after_help = "Examples:
  tidegate autopilot pause --why \"maintenance of rack 7\"")]
    Pause {
        /// Reason shown to others
        #[arg(long, value_name = "TEXT")]
        why: Option<String>,
        #[command(flatten)]
        data: DataArgs,
    },
    /// Let the autopilot act again, within its policy
    #[command(after_help = "Examples:
  tidegate autopilot resume
  tidegate autopilot resume --key ~/.ssh/id_ed25519 --cluster prod")]
    Resume {
        /// SSH key to sign with, if the site requires signatures; the public key for a key in an
        /// agent or on a security key
        #[arg(long, value_name = "FILE", env = "TIDEGATE_APPROVE_KEY", requires = "cluster")]
        key: Option<PathBuf>,
        /// Cluster for which the signature counts, as in the deployment file
        #[arg(long, value_name = "NAME")]
        cluster: Option<String>,
        #[command(flatten)]
        data: DataArgs,
    },
    /// Approve a waiting action; the guard checks it again before it begins
    #[command(after_help = "Examples:
  tidegate sql \"SELECT action, object, why FROM decisions WHERE state = 'PROPOSED' AND mode = 'approve'\"
  tidegate autopilot approve drain_node-1b491e8c244329c8
  tidegate autopilot approve drain_node-1b491e8c244329c8 --key ~/.ssh/id_ed25519")]
    Approve {
        /// Action id, as in the table `decisions`
        action: String,
        /// SSH key to sign with, if the site requires signatures; the public key for a key in an
        /// agent or on a security key
        #[arg(long, value_name = "FILE", env = "TIDEGATE_APPROVE_KEY")]
        key: Option<PathBuf>,
        #[command(flatten)]
        data: DataArgs,
    },
    /// Reject an action that has not begun; the like is refused for 24 hours
    #[command(after_help = "Examples:
  tidegate sql \"SELECT action, object, why FROM decisions WHERE state IN ('PROPOSED', 'APPROVED')\"
  tidegate autopilot reject drain_node-1b491e8c244329c8 --why \"the vendor comes at noon\"

It takes no signature. For 24 hours the guard refuses the same kind of action on the same object.")]
    Reject {
        /// Action id, as in the table `decisions`
        action: String,
        /// Reason shown to others
        #[arg(long, value_name = "TEXT")]
        why: Option<String>,
        #[command(flatten)]
        data: DataArgs,
    },
    /// Compare predictions and results by kind of decision, and show the earned mode
    #[command(after_help = "Examples:
  tidegate autopilot record
  tidegate autopilot record --policy site.toml --json
  tidegate sql \"SELECT decision_kind, object, realised_low_gpu_ms, realised_high_gpu_ms, without_it FROM prediction_scores\"

A result is an interval where what would have happened without the action can only be estimated, as
for a drained node. A decision whose interval includes its prediction counts neither for nor
against its kind.")]
    Record {
        /// Policy whose rules apply [default: the shipped one]
        #[arg(long, value_name = "FILE|NAME")]
        policy: Option<String>,
        /// Print JSON
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        data: DataArgs,
    },
    /// Compare a shadow with the acting policy
    Shadow(rollout::ShadowArgs),
    /// Show canaries and why they ended, or restart one
    Canary(rollout::CanaryArgs),
    /// Report service levels of the autopilot: promises kept, actions verified and plans made in
    /// time
    #[command(after_help = "Examples:
  tidegate autopilot slo
  tidegate autopilot slo --policy site.toml --json

The policy's [slo] has the objectives. When an error budget burns too fast, the autopilot raises an
alert: in its journal, on /metrics, and through the [pager] of the deployment file.")]
    Slo {
        /// Policy whose objectives apply [default: the shipped one]
        #[arg(long, value_name = "FILE|NAME")]
        policy: Option<String>,
        /// Print JSON
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        data: DataArgs,
    },
}

pub fn run(args: AutopilotArgs) -> CommandResult {
    match args.command {
        Command::Run { config, once, shadow, listen, door, otlp, data, log } => {
            if listen.is_none() {
                door.without_listener()?;
            }
            let config = ServiceConfig::read(&config)?.shadowed_by(shadow);
            let listen = listen.as_deref().map(|listen| (listen, door.as_ref()));
            act(config, once, listen, otlp.settings()?, &data, &log)?;
        }
        Command::Doctor(args) => return doctor::run(&args),
        Command::Rehearse(args) => return rehearse::run(&args),
        Command::Pause { why, data } => {
            let control = ControlFolder::in_data(&data.data);
            control.set(&ControlFolder::paused(&user_name(), &now(), why.as_deref()))?;
            say!("{}", control.describe()?);
        }
        Command::Resume { key, cluster, data } => {
            let control = ControlFolder::in_data(&data.data);
            let text = match key.zip(cluster) {
                None => ControlFolder::on(&user_name(), &now()),
                Some((key, cluster)) => {
                    let statement = SwitchStatement::given(&cluster, chrono::Utc::now());
                    let signed = SignedText::by_key(&key, authority::SWITCH, statement.text())?;
                    ControlFolder::on_signed(&user_name(), &now(), &signed)
                }
            };
            control.set(&text)?;
            say!("{}", control.describe()?);
        }
        Command::Shadow(args) => rollout::shadow(&args)?,
        Command::Canary(args) => rollout::canary(&args, &user_name())?,
        Command::Approve { action, key, data } => decide::approve(&action, key.as_deref(), &data)?,
        Command::Reject { action, why, data } => decide::reject(&action, why.as_deref(), &data)?,
        Command::Record { policy, json, data } => record::run(&named(policy.as_deref())?, json, &data)?,
        Command::Slo { policy, json, data } => slo::run(&named(policy.as_deref())?, json, &data)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn act(
    config: ServiceConfig,
    once: bool,
    listen: Option<(&str, &DoorArgs)>,
    otlp: Option<Settings>,
    data: &DataArgs,
    log: &LogArgs,
) -> Result<(), CommandError> {
    let workspace = Workspace::open(&data.data, log)?;
    workspace.create_topics()?;
    let group = workspace.reader_group("autopilot")?;
    let mut autopilot = Service::open(config, &data.data, &workspace.deaths(), &workspace.log, &group)?;
    autopilot.describe().iter().for_each(|line| say!("{line}"));
    block_on(async {
        let (stop, stopped) = watch::channel(false);
        stop_on_signals(stop)?;
        let metrics = Arc::new(Metrics::default());
        let export = otlp.map(|otlp| Telemetry::start(otlp, metrics.page())).transpose()?;
        export.iter().for_each(|export| say!("otlp    {}", export.describe()));
        let steering = Arc::new(LiveSteering::new(&autopilot, &data.data));
        let last_step = steering.last_step();
        match committed(data).await {
            Ok(tables) => {
                service::learn_from(&mut autopilot, &tables).await;
                if let Some((listen, door)) = listen {
                    let mut door = door.open(listen).await?;
                    door.audit = Some(Auditor::start(Arc::clone(&workspace.log))?);
                    door.rehearsal = Some(Rehearsal::file(&data.data));
                    door.steering = Some(steering);
                    say!("metrics {}://{}/metrics", door.scheme(), door.listener.local_addr()?);
                    door.psql().iter().for_each(|psql| say!("psql    {psql}"));
                    door.flight_uri().iter().for_each(|flight| say!("flight  {flight}"));
                    let mut until = stopped.clone();
                    let until = async move { until.wait_for(|stop| *stop).await.map_or((), |_| ()) };
                    let source = CatalogSource::fixed(tables.catalog().as_ref().clone());
                    let workers = query_worker::workers(data, source, QueryLimits::default())?;
                    tokio::spawn(serve(door, workers, Arc::clone(&metrics), None, until));
                }
            }
            Err(error) if listen.is_some() => return Err(error),
            Err(error) => tracing::warn!("the forecast begins with nothing: {}", chain(error.as_ref())),
        }
        tokio::task::spawn_blocking(move || {
            let ended = service::run(autopilot, &stopped, once, &metrics, &last_step);
            if let Some(export) = export {
                export.end();
            }
            ended
        })
        .await?
    })?
}

fn now() -> String {
    chrono::Utc::now().to_rfc3339_opts(chrono::SecondsFormat::Secs, true)
}

/// The policy of that name or file; the shipped one where none is named.
fn named(name: Option<&str>) -> Result<Policy, CommandError> {
    name.map_or_else(|| Ok(Policy::shipped()), policy::named)
}
