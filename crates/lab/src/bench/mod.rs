//! `tidegate bench`: measures speed, cost and exactness on seeded input and prints JSON.

mod agent;
mod autopilot;
mod backlog;
mod batcher;
mod codec;
mod evaluation;
mod fleet;
mod ingest;
mod ledger;
mod live;
mod query;
mod simulator;
mod site;
mod window;
mod year;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::{Args, Subcommand};
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike;

use tidegate_workspace::{CommandError, CommandResult, say};

/// Measure speed, cost and exactness on this machine
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  tidegate bench ingest --jobs 3000000 --json
  tidegate bench replay --jobs 1000000 --json
  tidegate bench backlog --samples 50000000 --processes 1,2 --log kafka://127.0.0.1:9092/bench --json
  tidegate bench window --nodes 1250 --minutes 10 --json
  tidegate bench live --json
  tidegate bench year --gpus 1000 --jobs-per-day 100 --watched-hours 6
  tidegate bench query --nodes 125 --hours 6 --json
  tidegate bench stragglers --seeds 0..20
  tidegate bench agent --json
  tidegate bench autopilot --json
  tidegate bench ledger --hours 24 --nodes 6 --json
  tidegate bench simulator
  tidegate bench codec --json

Every bench generates its input from a seed, works in a temporary folder and removes it. Quote only
figures of a release build.")]
pub struct BenchArgs {
    #[command(subcommand)]
    command: Command,
}

impl BenchArgs {
    /// Whether the process works through history and exits, as an import does. The other benches
    /// measure a service.
    pub fn works_through_history(&self) -> bool {
        !matches!(&self.command, Command::SitePhase(args) if args.is_of_a_service())
    }
}

#[derive(Debug, Subcommand)]
enum Command {
    /// From a file of Slurm accounting to queryable tables
    #[command(after_help = "Examples:
  tidegate bench ingest --jobs 300000 --json")]
    Ingest(ingest::IngestArgs),
    /// From the event log to queryable tables: rebuilds the lake
    #[command(after_help = "Examples:
  tidegate bench replay --jobs 300000 --json")]
    Replay(ingest::IngestArgs),
    /// From a log full of GPU samples to the table, by one or several processes
    #[command(after_help = "Examples:
  tidegate bench backlog --samples 10000000 --json
  tidegate bench backlog --processes 1,2 --log kafka://127.0.0.1:9092/bench --json")]
    Backlog(backlog::BacklogArgs),
    /// From a log with samples, jobs and nodes of a fleet to every table, the ledger included
    #[command(after_help = "Examples:
  tidegate bench window --nodes 125 --minutes 10 --json")]
    Window(window::WindowArgs),
    Live(live::LiveArgs),
    Year(year::YearArgs),
    /// One phase of a site; started by `bench year` and `bench live`
    #[command(hide = true)]
    SitePhase(site::phases::PhaseArgs),
    /// Queries on a fleet's tables, compared with DuckDB and ClickHouse
    Query(query::QueryArgs),
    /// CPU time and memory that the agent uses on a node
    #[command(after_help = "Examples:
  tidegate bench agent --seconds 60 --json")]
    Agent(agent::AgentArgs),
    /// Time of a plan of a large cluster, and from an event to the verified action
    Autopilot(autopilot::AutopilotArgs),
    /// A synthetic day with known truth: compares every table with it
    Ledger(ledger::LedgerArgs),
    /// The straggler detector and its rivals on jobs with known truth
    Stragglers(evaluation::StragglerArgs),
    /// The demand forecaster and simple rivals on public traces
    Forecast(evaluation::ForecastArgs),
    /// Encoding and decoding of events in Protobuf, Avro and Arrow IPC
    #[command(after_help = "Examples:
  tidegate bench codec --json")]
    Codec(CodecArgs),
    Simulator(simulator::SimulatorArgs),
}

#[derive(Debug, Args)]
struct CodecArgs {
    /// Seed of the generated messages
    #[arg(long, default_value_t = 7)]
    seed: u64,
    /// Messages per format, in hundreds
    #[arg(long, default_value_t = 40)]
    scale: usize,
    /// Print JSON (the default; the flag is accepted for scripts)
    #[arg(long)]
    json: bool,
}

/// Runs one bench and prints its report: as JSON, except `bench year` without `--json`.
///
/// # Errors
/// A bench cannot be set up, or its answers disagree with the known truth of its input.
pub fn run(args: BenchArgs) -> CommandResult {
    match args.command {
        Command::Ingest(args) => print(&ingest::ingest(&args)?),
        Command::Replay(args) => print(&ingest::replay(&args)?),
        Command::Backlog(args) => print(&backlog::run(&args)?),
        Command::Window(args) => print(&window::run(&args)?),
        Command::Live(args) => print(&live::run(&args)?),
        Command::Year(args) => year::run(&args),
        Command::SitePhase(args) => print(&site::phases::run(&args)?),
        Command::Query(args) => print(&query::run(&args)?),
        Command::Agent(args) => print(&agent::run(&args)?),
        Command::Autopilot(args) => print(&autopilot::run(&args)?),
        Command::Ledger(args) => print(&ledger::run(&args)?),
        Command::Stragglers(args) => evaluation::stragglers(&args),
        Command::Forecast(args) => evaluation::forecast(&args),
        Command::Simulator(args) => print(&simulator::run(&args)?),
        Command::Codec(args) => print(&codec::run(args.seed, args.scale)?),
    }
}

fn print(report: &impl serde::Serialize) -> CommandResult {
    say!("{}", serde_json::to_string_pretty(report)?);
    Ok(ExitCode::SUCCESS)
}

/// CPU and wall time of the whole process since the start.
#[derive(Debug)]
pub(crate) struct Stopwatch {
    cpu: Duration,
    wall: Instant,
}

impl Stopwatch {
    pub fn start() -> Result<Self, CommandError> {
        Ok(Self { cpu: cpu_time()?, wall: Instant::now() })
    }

    /// (CPU seconds, wall seconds)
    pub fn read(&self) -> Result<(f64, f64), CommandError> {
        Ok(((cpu_time()? - self.cpu).as_secs_f64(), self.wall.elapsed().as_secs_f64()))
    }
}

fn cpu_time() -> Result<Duration, CommandError> {
    let usage = getrusage(UsageWho::RUSAGE_SELF)?;
    let micros = usage.user_time().num_microseconds() + usage.system_time().num_microseconds();
    Ok(Duration::from_micros(micros as u64))
}

/// Largest memory the process has held so far, MiB.
pub(crate) fn peak_rss_mib() -> Result<f64, CommandError> {
    Ok(getrusage(UsageWho::RUSAGE_SELF)?.max_rss() as f64 / 1024.0)
}

/// A temporary folder that is removed when dropped.
#[derive(Debug)]
pub(crate) struct Scratch(PathBuf);

impl Scratch {
    pub fn new(name: &str) -> Result<Self, CommandError> {
        let path = std::env::temp_dir().join(format!("tidegate-bench-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path)?;
        Ok(Self(path))
    }

    pub fn path(&self) -> &std::path::Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Err(e) = std::fs::remove_dir_all(&self.0) {
            tracing::warn!(folder = %self.0.display(), %e, "could not remove the temporary folder");
        }
    }
}
