//! `tidegate insight`: computes signals and forecasts from the log and appends them to it.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use clap::{Args, Subcommand};
use tidegate_lake::runner::Pace as RunnerPace;
use tidegate_log::poison::DeathWatch;
use tidegate_log::{EventLog, LogError};
use tokio::sync::watch;

use super::{
    CommandError, CommandResult, DataArgs, LogArgs, Workspace, block_on, block_on_one_thread, chain,
    name_full_disk, query_memory, stop_on_signals,
};
use tidegate_server::{Metrics, SignalsMemory};
use tidegate_signals::{MemoryUse, RunMode, ServiceStats, SignalService};

use super::signals_note::{self, SignalsNote};

/// Panics of one process after which insight stops.
const MAX_PANICS: u32 = 8;
/// How often what memory the signals take is written down for `tidegate status`.
const NOTE_EVERY: Duration = Duration::from_secs(5);
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
        #[command(flatten)]
        memory: MemoryArgs,
        /// Exit once the whole log is processed, tables included
        #[arg(long)]
        once: bool,
    },
}

/// Memory of the signals.
#[derive(Debug, Args)]
pub struct MemoryArgs {
    /// Memory for what the signals keep of jobs, nodes and waiting events, e.g. 512M or 4G; beyond
    /// it the least useful is forgotten, and events are applied before their turn (`tidegate
    /// status`, tidegate_signals in /metrics)
    #[arg(long, value_name = "BYTES", default_value = "2G", value_parser = query_memory)]
    signals_memory: usize,
}

pub fn run(args: InsightArgs) -> CommandResult {
    match args.command {
        Command::Run { data, log, memory, once: true } => once(&data, &log, &memory),
        Command::Run { data, log, memory, once: false } => follow(&data, &log, &memory),
    }
}

fn once(data: &DataArgs, log: &LogArgs, memory: &MemoryArgs) -> CommandResult {
    let pipelines = data.load_pipelines()?;
    let workspace = Workspace::open(&data.data, log)?;
    workspace.create_topics()?;
    let published = catch_up(&Source::of(&workspace, memory)?).map_err(|e| name_full_disk(e, &data.data))?;
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

fn follow(data: &DataArgs, log: &LogArgs, memory: &MemoryArgs) -> CommandResult {
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
        let source = Source::of(&workspace, memory)?;
        tokio::task::spawn_blocking(move || keep_up(&source, &stopped, &|_| {})).await??;
        Ok::<_, CommandError>(())
    })??;
    Ok(ExitCode::SUCCESS)
}

/// The log, and where the state that is made of it is saved.
pub struct Source {
    log: Arc<dyn EventLog>,
    snapshots: PathBuf,
    group: String,
    memory_bytes: usize,
    deaths: PathBuf,
    data: PathBuf,
}

impl Source {
    /// The log of a data folder, with snapshots in the folder.
    ///
    /// # Errors
    /// The folder's origin cannot be read.
    pub fn of(workspace: &Workspace, memory: &MemoryArgs) -> Result<Self, CommandError> {
        let (log, snapshots) = (Arc::clone(&workspace.log), workspace.snapshots());
        let group = workspace.reader_group("signals")?;
        let (deaths, data) = (workspace.deaths(), workspace.folder.path().to_owned());
        Ok(Self { log, snapshots, group, memory_bytes: memory.signals_memory, deaths, data })
    }

    fn open(&self) -> Result<SignalService, LogError> {
        let service = SignalService::with_snapshots(Arc::clone(&self.log), &self.snapshots, &self.group)?;
        Ok(service.limited_to(self.memory_bytes).watched_by(DeathWatch::begin(&self.deaths, "signals")))
    }
}

/// Processes the log up to its present end.
pub fn catch_up(source: &Source) -> Result<ServiceStats, CommandError> {
    let (mut service, now_ms) = (source.open()?, now_ms()?);
    let stats = service.catch_up(RunMode::Replay, now_ms)?;
    SignalsNote::write(&source.data, signals_memory(&stats.memory), now_ms);
    Ok(stats)
}

/// Follows the log on a thread until stopped, and exports what memory it takes. `begin` returns
/// when there is something to follow. A failure is logged and stops nothing else.
pub fn spawn(
    source: Source,
    begin: Option<impl FnOnce() + Send + 'static>,
    stopped: watch::Receiver<bool>,
    metrics: Arc<Metrics>,
) -> JoinHandle<()> {
    std::thread::spawn(move || {
        if let Some(begin) = begin {
            begin();
        }
        let observe = |stats: &ServiceStats| metrics.observe_signals(&signals_memory(&stats.memory));
        if let Err(error) = keep_up(&source, &stopped, &observe) {
            tracing::error!("insight has stopped, all else goes on: {}", chain(error.as_ref()));
        }
    })
}

/// Follows the log until stopped. Waits while the log is unreachable.
fn keep_up(
    source: &Source,
    stopped: &watch::Receiver<bool>,
    observe: &dyn Fn(&ServiceStats),
) -> Result<(), CommandError> {
    let mut service: Option<SignalService> = None;
    let mut panics = 0;
    let mut noted: Option<Instant> = None;
    while !*stopped.borrow() {
        let now_ms = now_ms()?;
        // After a panic the service is dropped; the next one is made of its snapshot and the log.
        let caught_up = catch_unwind(AssertUnwindSafe(|| match &mut service {
            Some(service) => service.catch_up(RunMode::Live, now_ms).map(|stats| {
                observe(&stats);
                if noted.is_none_or(|noted| noted.elapsed() >= NOTE_EVERY) {
                    SignalsNote::write(&source.data, signals_memory(&stats.memory), now_ms);
                    noted = Some(Instant::now());
                }
            }),
            None => source.open().map(|opened| service = Some(opened)),
        }));
        let caught_up = match caught_up {
            Ok(caught_up) => caught_up,
            Err(panic) if panics >= MAX_PANICS => resume_unwind(panic),
            Err(_) => {
                panics += 1;
                service.take().into_iter().for_each(SignalService::panicked);
                tracing::error!("insight has panicked and begins again at its last snapshot");
                continue;
            }
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
    let ServiceStats { read, written, duplicates, undecodable, poison, counts, memory, .. } = published;
    say!(
        "{read} records read, {undecodable} undecodable; {} events used, {} of them late, {} refused",
        counts.used,
        counts.late,
        counts.rejected
    );
    say!("{written} signals and forecasts written, {duplicates} were known");
    if *poison > 0 {
        say!("{poison} records skipped that insight died of; `tidegate status` names them");
    }
    if memory.unknown_jobs > 0 {
        say!("{} step reports of jobs that neither a scheduler nor a hold has named", memory.unknown_jobs);
    }
    if let Some(line) = signals_note::over_limit(&signals_memory(memory)) {
        say!("{line}");
    }
}

fn signals_memory(memory: &MemoryUse) -> SignalsMemory {
    SignalsMemory {
        held_bytes: memory.held_bytes,
        waiting_bytes: memory.waiting_bytes,
        limit_bytes: memory.limit_bytes,
        evicted_jobs: memory.evicted_jobs,
        evicted_nodes: memory.evicted_nodes,
        refused: memory.refused,
        early: memory.early,
        unknown_jobs: memory.unknown_jobs,
    }
}

fn now_ms() -> Result<i64, CommandError> {
    Ok(i64::try_from(SystemTime::now().duration_since(UNIX_EPOCH)?.as_millis())?)
}
