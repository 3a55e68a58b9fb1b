//! `tidegate log`: checks and moves the event log, and lets go of readers that are gone.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, Subcommand, ValueEnum};
use indicatif::{HumanBytes, HumanCount, ProgressBar, ProgressStyle};
use tidegate_log::{
    CopyOptions, CopyProgress, CopyStep, DataDir, EmbeddedLog, EmbeddedOptions, EventLog, KafkaUrl, Place,
    Spread, copy_to_kafka, partition_for,
};

use super::{CommandResult, PlaceArgs, Workspace};

/// Check the event log, move it to Kafka, or let go of a reader that is gone
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  tidegate log verify --data tidegate-data
  tidegate log copy --from embedded --to kafka --log kafka://kafka-0:9092/gpu --data tidegate-data
  tidegate log copy --from embedded --to kafka://kafka-0:9092/gpu --data tidegate-data
  tidegate log copy --to kafka://kafka-0:9092/gpu --partitions 12 --data tidegate-data
  tidegate log release tidegate-signals --data tidegate-data

First stop every process that writes to the data folder.

`verify` reads and checks every record, and exits with status 1 at the first damaged place.

An interrupted `copy` continues when you start it again. At the end it compares every record of both
logs. Offsets stay the same, so the tables in the folder continue from Kafka without a rebuild, and
a repeated import is recognised. --partitions N spreads every topic over N partitions, so that N
processes can share the work. Offsets change then: rebuild the tables with `tidegate pipeline
backfill --log URL`.")]
pub struct LogCommand {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Copy the log of a data folder to Kafka, for a site that outgrew one process
    #[command(after_help = "Examples:
  tidegate log copy --to kafka://kafka-0:9092/gpu --data tidegate-data")]
    Copy(CopyArgs),
    /// Forget how far a reader has come, so that it keeps no records back any more
    #[command(after_help = "Examples:
  tidegate log release tidegate-signals --data tidegate-data
  tidegate log release tidegate-signals-1c3f09aa --log kafka://kafka-0:9092/gpu --data tidegate-data

A reader that runs comes back by itself. One that does not is missed by nobody but the log, which
keeps every record that it has not passed: see `tidegate status`.")]
    Release(ReleaseArgs),
    /// Read and check every record of an embedded log
    #[command(after_help = "Examples:
  tidegate log verify --data tidegate-data
  tidegate log verify --data /backup/tidegate-data

First stop every process that writes to the data folder, or check a copy of it. Opening the log
recovers it as any start does: a write that a crash left unfinished, which nobody was told is
stored, is dropped. Then every batch must decode and match its checksum, and offsets and each
source's sequence numbers must have no gap.

The first damaged place ends the command with status 1, and the message names topic, partition and
offset, or the file and byte. Nothing is repaired: restore the data folder from a backup, or import
the sources again into a new one.")]
    Verify(VerifyArgs),
}

#[derive(Debug, Args)]
struct ReleaseArgs {
    /// The reader, as `tidegate status` names it
    reader: String,
    /// Data folder: the event log and the lake
    #[arg(long, value_name = "DIR", default_value = "tidegate-data", env = "TIDEGATE_DATA")]
    data: PathBuf,
    #[command(flatten)]
    log: PlaceArgs,
}

#[derive(Debug, Args)]
struct VerifyArgs {
    /// Data folder: the event log and the lake
    #[arg(long, value_name = "DIR", default_value = "tidegate-data", env = "TIDEGATE_DATA")]
    data: PathBuf,
}

#[derive(Debug, Args)]
struct CopyArgs {
    /// The log to copy
    #[arg(long, value_enum, default_value_t = From::Embedded)]
    from: From,
    /// Target: kafka, at the address of --log; or the address itself
    #[arg(long, value_name = "kafka|URL", default_value = "kafka", value_parser = target)]
    to: To,
    /// Data folder: the event log and the lake
    #[arg(long, value_name = "DIR", default_value = "tidegate-data", env = "TIDEGATE_DATA")]
    data: PathBuf,
    #[command(flatten)]
    log: PlaceArgs,
    /// Repartition every topic to N partitions; offsets change
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    partitions: Option<u32>,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum From {
    Embedded,
}

#[derive(Debug, Clone)]
enum To {
    Log,
    Url(KafkaUrl),
}

fn target(text: &str) -> Result<To, String> {
    match text {
        "kafka" => Ok(To::Log),
        url => url.parse().map(To::Url).map_err(|e: tidegate_log::LogError| e.to_string()),
    }
}

pub fn run(args: LogCommand) -> CommandResult {
    match args.command {
        Command::Copy(args) => copy(args),
        Command::Release(args) => release(&args),
        Command::Verify(args) => verify(&args.data),
    }
}

fn release(args: &ReleaseArgs) -> CommandResult {
    let reader = &args.reader;
    drop(DataDir::open_shared(&args.data)?);
    let known = match args.log.kafka() {
        Some(url) => args.log.open_kafka(url)?.forget_consumer(reader)?,
        None => {
            let folder = DataDir::open(&args.data)?;
            EmbeddedLog::open(folder.log(), EmbeddedOptions::default())?.forget_consumer(reader)?
        }
    };
    if !known {
        return Err(
            format!("no reader {reader} has committed on this log; `tidegate status` lists them").into()
        );
    }
    say!("{reader} keeps no records back any more; if it starts again, it says anew how far it is");
    Ok(ExitCode::SUCCESS)
}

fn verify(data: &Path) -> CommandResult {
    // Opening would create what is missing, and an empty log has no fault.
    if std::fs::read_dir(data.join("log")).map_or(true, |mut files| files.next().is_none()) {
        let dir = data.display();
        return Err(format!("{dir} holds no embedded log; name the data folder with --data (`tidegate log verify` does not check logs on Kafka)").into());
    }
    let folder = DataDir::open(data)?;
    let log = EmbeddedLog::open(folder.log(), EmbeddedOptions::default())?;
    let report = log.verify()?;
    let count = |n| HumanCount(n).to_string();
    say!("partitions       {:>12}", count(report.partitions));
    say!("batches          {:>12}", count(report.batches));
    say!("records          {:>12}  (all read and checked)", count(report.records));
    say!("stored           {:>12}  (compressed)", HumanBytes(report.bytes).to_string());
    Ok(ExitCode::SUCCESS)
}

fn copy(args: CopyArgs) -> CommandResult {
    let From::Embedded = args.from;
    let url = match (&args.to, args.log.kafka()) {
        (To::Url(url), _) | (To::Log, Some(url)) => url.clone(),
        (To::Log, None) => return Err("where to? Add --log kafka://HOST:PORT[/PREFIX]".into()),
    };
    // Open the source first, so that a misspelt folder is not created.
    drop(DataDir::open_shared(&args.data)?);
    let to = args.log.open_kafka(&url)?;
    let folder = DataDir::open(&args.data)?;
    let from = EmbeddedLog::open(folder.log(), EmbeddedOptions::default())?;
    let bar = ProgressBar::new(0);
    bar.set_style(ProgressStyle::with_template("{msg} {bar:30} {human_pos}/{human_len} ({eta} left)")?);
    let place = |_: &str, key: &[u8], partitions| match key.ends_with(b"/") {
        // The key of a heartbeat is the cluster alone.
        true => Place::All,
        false => Place::One(partition_for(key, partitions)),
    };
    let spread = args.partitions.map(|partitions| Spread { partitions, place: &place });
    let report = copy_to_kafka(&from, &to, CopyOptions { spread }, &mut |p| show(&bar, &p))?;
    bar.finish_and_clear();
    let count = |n| HumanCount(n).to_string();
    say!("topics           {:>12}", count(report.topics));
    say!("records          {:>12}  (all compared)", count(report.records));
    say!("written now      {:>12}", count(report.written));
    let data = args.data.display();
    if spread.is_some() {
        say!(
            "next: tidegate pipeline backfill --log {url} --data {data}   (offsets changed, so tables are computed anew)"
        );
    } else {
        Workspace::move_origin(&folder, &to, url.prefix())?;
        say!("producers known  {:>12}", count(report.producers));
        say!("from now on: tidegate up --log {url} --data {data}   (the tables go on where they are)");
    }
    Ok(ExitCode::SUCCESS)
}

fn show(bar: &ProgressBar, p: &CopyProgress) {
    let doing = match p.step {
        CopyStep::Comparing => "comparing",
        CopyStep::Filling => "filling",
        CopyStep::Copying => "copying",
    };
    bar.set_message(format!("{doing} {}/{}", p.at.topic, p.at.partition));
    bar.set_length(p.end);
    bar.set_position(p.offset);
}
