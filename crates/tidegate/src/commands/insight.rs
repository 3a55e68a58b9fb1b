//! `tidegate insight`: computes signals and forecasts from the log and appends them to it.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clap::{Args, Subcommand};
use tidegate_lake::runner::Pace as RunnerPace;
use tidegate_log::{EventLog, LogError};
use tokio::sync::watch;

use super::{
    CommandError, CommandResult, DataArgs, LogArgs, Workspace, block_on, block_on_one_thread, chain,
    name_full_disk, stop_on_signals,
};
use tidegate_signals::{RunMode, ServiceStats, SignalService};

/// Period of polling the log. A signal of a step is emitted as soon as its last report is read.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// Detect stragglers and failing nodes, and forecast demand
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  tidegate insight run --once --data tidegate-data
  tidegate insight run --log kafka://localhost:9092
  tidegate sql \"SELECT job_id, state, node, rank, class, lost_gpu_ms FROM stragglers\"

`tidegate up` does this too, unless it runs with --no-insight.")]
pub struct InsightArgs {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Read the log and append signals and forecasts; those appended before are not repeated
    #[command(after_help = "Examples:
  tidegate insight run --once --data tidegate-data
  tidegate insight run --log kafka://localhost:9092")]
    Run {
        #[command(flatten)]
        data: DataArgs,
        #[command(flatten)]
        log: LogArgs,
        /// Exit once the whole log is processed, tables included
        #[arg(long)]
        once: bool,
    },
}

pub fn run(args: InsightArgs) -> CommandResult {
    match args.command {
        Command::Run { data, log, once: true } => once(&data, &log),
        Command::Run { data, log, once: false } => follow(&data, &log),
    }
}

fn once(data: &DataArgs, log: &LogArgs) -> CommandResult {
    let pipelines = data.load_pipelines()?;
    let workspace = Workspace::open(&data.data, log)?;
    workspace.create_topics()?;
    let published = catch_up(&Source::of(&workspace)?).map_err(|e| name_full_disk(e, &data.data))?;
    block_on_one_thread(async {
        let mut runner =
            workspace.runner(pipelines, RunnerPace { refresh_every: None, ..RunnerPace::default() }).await?;
        runner.catch_up(&mut |_| {}).await?;
        Ok::<_, CommandError>(())
    })?
    .map_err(|e| name_full_disk(e, &data.data))?;
    report(&published);
    Ok(ExitCode::SUCCESS)
}

fn follow(data: &DataArgs, log: &LogArgs) -> CommandResult {
    if log.kafka().is_none() {
        return Err("the log in a data folder is open in one process only: `tidegate up` runs insight beside the pipelines; \
                    use --once to work through what is there, or --log kafka://HOST:PORT"
            .into());
    }
    let workspace = Workspace::open(&data.data, log)?;
    workspace.create_topics()?;
    block_on(async {
        let (stop, stopped) = watch::channel(false);
        stop_on_signals(stop)?;
        let source = Source::of(&workspace)?;
        tokio::task::spawn_blocking(move || keep_up(&source, &stopped)).await??;
        Ok::<_, CommandError>(())
    })??;
    Ok(ExitCode::SUCCESS)
}

/// The log, and where the state that is made of it is saved.
pub struct Source {
    log: Arc<dyn EventLog>,
    snapshots: PathBuf,
    group: String,
}

impl Source {
    /// The log of a data folder, with snapshots in the folder.
    ///
    /// # Errors
    /// The folder's origin cannot be read.
    pub fn of(workspace: &Workspace) -> Result<Self, CommandError> {
        let (log, snapshots) = (Arc::clone(&workspace.log), workspace.snapshots());
        Ok(Self { log, snapshots, group: workspace.reader_group("signals")? })
    }

    fn open(&self) -> Result<SignalService, LogError> {
        SignalService::with_snapshots(Arc::clone(&self.log), &self.snapshots, &self.group)
    }
}

/// Processes the log up to its present end.
pub fn catch_up(source: &Source) -> Result<ServiceStats, CommandError> {
    let mut service = source.open()?;
    Ok(service.catch_up(RunMode::Replay, now_ms()?)?)
}

/// Follows the log on a thread until stopped. A failure is logged and stops nothing else.
pub fn spawn(source: Source, stopped: watch::Receiver<bool>) -> JoinHandle<()> {
    std::thread::spawn(move || {
        if let Err(error) = keep_up(&source, &stopped) {
            tracing::error!("insight has stopped, all else goes on: {}", chain(error.as_ref()));
        }
    })
}

/// Follows the log until stopped. Waits while the log is unreachable.
fn keep_up(source: &Source, stopped: &watch::Receiver<bool>) -> Result<(), CommandError> {
    let mut service: Option<SignalService> = None;
    while !*stopped.borrow() {
        let caught_up = match &mut service {
            Some(service) => service.catch_up(RunMode::Live, now_ms()?).map(|_| ()),
            None => source.open().map(|opened| service = Some(opened)),
        };
        match caught_up {
            Err(away) if away.is_passing() || matches!(away, LogError::UnknownTopic(_)) => {
                // A batch that could not be appended is read again.
                service = None;
                tracing::warn!(%away, "insight waits for the log");
            }
            ended => ended?,
        }
        let mut waited = Duration::ZERO;
        while waited < LOOK_EVERY && !*stopped.borrow() {
            const PIECE: Duration = Duration::from_millis(50);
            std::thread::sleep(PIECE);
            waited += PIECE;
        }
    }
    if let Some(service) = &mut service {
        match service.save(now_ms()?) {
            Err(away) if away.is_passing() => tracing::warn!(%away, "the state of the signals is not saved"),
            saved => saved?,
        }
    }
    Ok(())
}

fn report(published: &ServiceStats) {
    let ServiceStats { read, written, duplicates, undecodable, counts, .. } = published;
    say!(
        "{read} records read, {undecodable} undecodable; {} events used, {} of them late, {} refused",
        counts.used,
        counts.late,
        counts.rejected
    );
    say!("{written} signals and forecasts written, {duplicates} were known");
}

fn now_ms() -> Result<i64, CommandError> {
    Ok(i64::try_from(SystemTime::now().duration_since(UNIX_EPOCH)?.as_millis())?)
}
