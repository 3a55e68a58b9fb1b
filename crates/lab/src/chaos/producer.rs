//! A producer of a run: appends the records of its partitions and reports each acknowledged batch.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use tidegate_log::{Batch, EventLog, LogError, Producer, TopicPartition};

use super::history::{self, Plan};
use tidegate_workspace::{CommandResult, LogArgs, Workspace};

const BATCH: usize = 40;

#[derive(Debug, Args)]
pub struct ProducerArgs {
    #[command(flatten)]
    log: LogArgs,
    #[arg(long)]
    data: PathBuf,
    #[arg(long)]
    seed: u64,
    #[arg(long)]
    jobs: u32,
    /// Index of this producer; it has the partitions whose number modulo --of is this
    #[arg(long)]
    number: u32,
    #[arg(long)]
    of: u32,
    /// Pause between two batches, ms
    #[arg(long)]
    pause_ms: u64,
}

/// Prints `ACK topic partition first count` for each acknowledged batch, and `DONE` when all are.
pub fn run(args: &ProducerArgs) -> CommandResult {
    let workspace = Workspace::open(&args.data, &args.log)?;
    workspace.create_topics()?;
    let partitions = args.log.topics().partitions;
    let plan = Plan { seed: args.seed, jobs: args.jobs, partitions };
    let mut stdout = std::io::stdout().lock();
    let mut rest = Vec::new();
    for (at, records) in history::records(plan)? {
        if at.partition % args.of != args.number {
            continue;
        }
        let next = resume_at(workspace.log.as_ref(), &at, args, &records)?;
        // Acknowledged in an earlier life that could not report it.
        writeln!(stdout, "ACK {} {} 0 {next}", at.topic, at.partition)?;
        rest.push((at, records, next));
    }
    while rest.iter().any(|(_, records, next)| *next < records.len()) {
        for (at, records, next) in &mut rest {
            let end = (*next + BATCH).min(records.len());
            if *next < end {
                append(workspace.log.as_ref(), at, args, *next, records[*next..end].to_vec())?;
                writeln!(stdout, "ACK {} {} {next} {}", at.topic, at.partition, end - *next)?;
                stdout.flush()?;
                *next = end;
                std::thread::sleep(Duration::from_millis(args.pause_ms));
            }
        }
    }
    writeln!(stdout, "DONE")?;
    Ok(ExitCode::SUCCESS)
}

/// Index of the first record that the log lacks. Offered the last record, the log answers with the
/// sequence number that it expects.
fn resume_at(
    log: &dyn EventLog,
    at: &TopicPartition,
    args: &ProducerArgs,
    records: &[tidegate_log::Record],
) -> Result<usize, LogError> {
    let Some(last) = records.len().checked_sub(1) else { return Ok(0) };
    match append(log, at, args, last, records[last..].to_vec()) {
        Ok(()) => Ok(records.len()),
        Err(LogError::SequenceGap { expected, .. }) => Ok(expected as usize),
        Err(e) => Err(e),
    }
}

fn append(
    log: &dyn EventLog,
    at: &TopicPartition,
    args: &ProducerArgs,
    first: usize,
    records: Vec<tidegate_log::Record>,
) -> Result<(), LogError> {
    let producer = Producer { source: format!("chaos/{}", args.number), epoch: 0 };
    log.append(at, Batch { producer, first_seq: first as u64, records }).map(|_| ())
}
