//! `tidegate chaos`: kills and pauses real processes at random, and counts what is lost.

mod history;
mod processes;
mod producer;
mod verdict;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::{Args, Subcommand};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde::Serialize;

use history::Plan;
use processes::Processes;
use tidegate_workspace::{CommandError, CommandResult, LogArgs, say};

/// Kill and pause processes at random, and count what is lost
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  tidegate chaos log --log kafka://127.0.0.1:9092/test --runs 20 --json
  tidegate chaos log --runs 5

In each run, producers append a generated history of every topic, with late, duplicate and
unreadable records, and count acknowledgements, while pipeline processes maintain the tables; on the
embedded log they take turns. Processes are killed with kill -9, or paused for longer than their
consumer group tolerates. At the end, every acknowledged record must be in the log, and every table
must equal, row for row, the one that an undisturbed process computes from the same records. Use a
test cluster: each run leaves topics PREFIX-chaos-…")]
pub struct ChaosArgs {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Producers and pipeline processes on a log, embedded or on Kafka
    #[command(after_help = "Examples:
  tidegate chaos log --runs 5
  tidegate chaos log --log kafka://127.0.0.1:9092/test --runs 20 --json")]
    Log(RunArgs),
    /// One producer of a run; started by `chaos log`
    #[command(hide = true)]
    Producer(producer::ProducerArgs),
}

#[derive(Debug, Args)]
struct RunArgs {
    #[command(flatten)]
    log: LogArgs,
    /// Number of runs, each on a log of its own
    #[arg(long, default_value_t = 1)]
    runs: u32,
    /// Disturbances per run: a pipeline process or a producer is killed or paused
    #[arg(long, default_value_t = 8)]
    blows: u32,
    /// Pipeline processes that share the work (one with the embedded log)
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=16))]
    processes: u32,
    /// Jobs in the history of a run
    #[arg(long, default_value_t = 12, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    jobs: u32,
    /// Seed of the history and of the disturbances
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Totals of all runs.
#[derive(Debug, Default, Serialize)]
struct Report {
    runs: u32,
    /// Records acknowledged to a producer.
    acknowledged: u64,
    /// Acknowledged records that are not in the log.
    lost: u64,
    /// Records that are in the log more than once.
    duplicated: u64,
    /// Whether every table of every run equals that of an undisturbed process.
    tables_equal: bool,
    table_rows: u64,
    pipeline_kills: u64,
    producer_kills: u64,
    /// Processes stopped for longer than their group waits, then continued.
    pauses: u64,
    /// Pipeline processes that ended because the log did not answer in time, and were started
    /// again.
    gave_up: u64,
    seconds: f64,
}

/// Runs chaos and prints what was lost, duplicated or computed differently.
///
/// # Errors
/// A process cannot be started, or a run found a loss, a duplicate or a difference.
pub fn run(args: ChaosArgs) -> CommandResult {
    match args.command {
        Command::Log(args) => chaos(&args),
        Command::Producer(args) => producer::run(&args),
    }
}

fn chaos(args: &RunArgs) -> CommandResult {
    let begun = Instant::now();
    let mut report = Report { tables_equal: true, ..Report::default() };
    for run in 0..args.runs {
        one_run(args, run, &mut report)?;
        report.runs += 1;
        if !args.json {
            say!("run {}: {}", run + 1, summary(&report));
        }
    }
    report.seconds = begun.elapsed().as_secs_f64();
    if args.json {
        say!("{}", serde_json::to_string_pretty(&report)?);
    }
    let good = report.lost == 0 && report.duplicated == 0 && report.tables_equal;
    Ok(if good { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn summary(report: &Report) -> String {
    let Report { acknowledged, lost, duplicated, tables_equal, .. } = report;
    let tables = if *tables_equal { "tables equal" } else { "TABLES DIFFER" };
    format!("{acknowledged} acknowledged, {lost} lost, {duplicated} duplicated, {tables}")
}

fn one_run(args: &RunArgs, run: u32, report: &mut Report) -> Result<(), CommandError> {
    let folder = tempfile::Builder::new().prefix("tidegate-chaos-").tempdir()?;
    let seed = args.seed + u64::from(run);
    let fresh = || args.log.in_fresh_prefix(&format!("chaos-{}-{seed}", std::process::id()));
    let log = args.log.kafka().map(|_| fresh()).transpose()?;
    let plan = Plan { seed, jobs: args.jobs, partitions: args.log.topics().partitions };
    let data = folder.path().join("data");
    let mut processes = Processes::new(plan, log, data.clone(), args.processes);
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    processes.start_all()?;
    for blow in 0..args.blows {
        std::thread::sleep(Duration::from_millis(rng.random_range(50..4000)));
        processes.disturb(blow, &mut rng)?;
    }
    processes.finish()?;
    report.pipeline_kills += processes.pipeline_kills;
    report.producer_kills += processes.producer_kills;
    report.pauses += processes.pauses;
    report.gave_up += processes.gave_up;
    let verdict = verdict::verify(&processes, &folder.path().join("undisturbed"))?;
    report.acknowledged += verdict.acknowledged;
    report.lost += verdict.lost;
    report.duplicated += verdict.duplicated;
    report.table_rows += verdict.table_rows;
    for difference in &verdict.differences {
        eprintln!("tidegate: run {}: {difference}", run + 1);
        report.tables_equal = false;
    }
    if verdict.lost > 0 || verdict.duplicated > 0 || !verdict.differences.is_empty() {
        let kept: PathBuf = folder.keep();
        eprintln!("tidegate: run {} (seed {seed}) left its tables in {}", run + 1, kept.display());
    }
    Ok(())
}
