//! `tidegate price`: the price book, stored as events on the log and shown as the table `prices`.

mod audit;
mod entry;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use clap::{Args, Subcommand};
use tidegate_collect::log_sink::{DirectLogSink, LogSink};
use tidegate_events::{Event, SchemaId};
use tidegate_lake::runner::Pace;
use tidegate_log::{Batch, EventLog, Producer, Record, TopicPartition, partition_for};
use tidegate_node::DestinationArgs;
use tidegate_server::audit::Outcome;

use super::import::one_partition;
use super::{
    CommandError, CommandResult, DataArgs, LogArgs, Workspace, block_on_one_thread, name_full_disk, sql,
};
use entry::Entry;

/// Enter and list GPU prices
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  tidegate price set --cluster prod --contract reserved --price 2.10 --currency EUR --from 2026-01-01
  tidegate price set --cluster prod --pool h100 --contract owned --currency EUR \\
      --capital 31500 --months 48 --watts 1100 --energy-price 0.185
  tidegate price end --cluster prod --pool h100 --from 2026-12-01
  tidegate price import prices.csv
  tidegate price list

A price applies from its start until the next price for the same pool and model. If several prices
match a GPU, the most specific applies: for its pool and model, then its model, then its pool, then
any. Of several entries for the same start, the last one applies.

Columns of an import file: from_time, cluster, pool, gpu_model, contract, price_per_gpu_hour,
currency, capital_per_gpu, depreciation_months, watts_per_gpu, energy_price_per_kwh,
lend_per_gpu_hour, interruptions_per_gpu_hour, lost_minutes, spot_share. A file with a faulty line
enters nothing.

While `tidegate up --ingest` has the data folder open, use --log http://HOST:PORT.")]
pub struct PriceArgs {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Enter a price
    #[command(after_help = "Examples:
  tidegate price set --cluster prod --contract reserved --price 2.10 --currency EUR --from 2026-01-01")]
    Set {
        #[command(flatten)]
        entry: Box<Entry>,
        #[command(flatten)]
        to: ToArgs,
    },
    /// End a price without a successor; a less specific one applies again
    #[command(after_help = "Examples:
  tidegate price end --cluster prod --pool h100 --from 2026-12-01")]
    End {
        #[command(flatten)]
        scope: entry::Scope,
        #[command(flatten)]
        to: ToArgs,
    },
    /// List every price with its period
    #[command(after_help = "Examples:
  tidegate price list")]
    List {
        #[command(flatten)]
        data: DataArgs,
    },
    /// Enter prices from a CSV file
    #[command(after_help = "Examples:
  tidegate price import prices.csv
  tidegate price import prices.csv --cluster prod --log http://127.0.0.1:8433")]
    Import {
        /// File whose first line names the columns
        file: PathBuf,
        /// Cluster of lines that name none
        #[arg(long)]
        cluster: Option<String>,
        #[command(flatten)]
        to: ToArgs,
    },
}

/// Destination of prices: the named log, or the one in the data folder.
#[derive(Debug, Args)]
struct ToArgs {
    #[command(flatten)]
    data: DataArgs,
    #[command(flatten)]
    destination: DestinationArgs,
}

const LIST: &str = "SELECT cluster, pool, gpu_model, contract, price_micros_per_gpu_hour, currency, from_time, to_time \
                    FROM prices ORDER BY cluster, pool, gpu_model, from_time";

pub fn run(args: PriceArgs) -> CommandResult {
    let now_ms = now_ms()?;
    match args.command {
        Command::Set { entry, to } => enter(vec![entry.event(now_ms)?], now_ms, &to),
        Command::End { scope, to } => enter(vec![scope.end(now_ms)?], now_ms, &to),
        Command::List { data } => sql::show(data, LIST),
        Command::Import { file, cluster, to } => {
            let text = std::fs::read_to_string(&file).map_err(|e| format!("read {}: {e}", file.display()))?;
            enter(entry::read(&file, &text, cluster.as_deref(), now_ms)?, now_ms, &to)
        }
    }
}

/// Enters a price book, as `tidegate price import` does, into a log that this process has open.
/// Returns the number of prices.
///
/// # Errors
/// A line is faulty, or the log cannot be written: nothing was entered.
pub fn enter_book(log: &Arc<dyn EventLog>, text: &str) -> Result<usize, CommandError> {
    let now_ms = now_ms()?;
    let mut events = entry::read(Path::new("prices.csv"), text, None, now_ms)?;
    let log_sink = DirectLogSink::new(Arc::clone(log), one_partition().partitions);
    append_recorded(&log_sink, &mut events, now_ms)?;
    Ok(events.len())
}

/// Appends the events; updates the tables if the log is the data folder's.
fn enter(mut events: Vec<Event>, now_ms: i64, to: &ToArgs) -> CommandResult {
    let count = events.len();
    if to.destination.is_named() {
        let connect = to.destination.connect()?;
        let log_sink = connect()?;
        match to.destination.is_http() {
            // The server knows whose token it is, and records that.
            true => append(log_sink.as_ref(), &mut events, now_ms)?,
            false => append_recorded(log_sink.as_ref(), &mut events, now_ms)?,
        }
        say!("{count} prices entered; tables follow where this log is worked through");
        return Ok(ExitCode::SUCCESS);
    }
    let pipelines = to.data.load_pipelines()?;
    let workspace = Workspace::open(&to.data.data, &LogArgs::default())?;
    let log_sink = DirectLogSink::new(Arc::clone(&workspace.log), one_partition().partitions);
    append_recorded(&log_sink, &mut events, now_ms)?;
    block_on_one_thread(async {
        let mut runner = workspace.runner(pipelines, Pace::default()).await?;
        runner.catch_up(&mut |_| {}).await?;
        Ok::<_, CommandError>(())
    })?
    .map_err(|e| name_full_disk(e, &to.data.data))?;
    say!("{count} prices entered");
    Ok(ExitCode::SUCCESS)
}

/// Appends entries behind a record of who enters them. Without the record nothing is entered.
fn append_recorded(log_sink: &dyn LogSink, events: &mut [Event], now_ms: i64) -> Result<(), CommandError> {
    let record = audit::Record::begin(log_sink, events)
        .map_err(|e| format!("no price was entered: the record of who enters them cannot be written: {e}"))?;
    let appended = append(log_sink, events, now_ms);
    record.end(&match &appended {
        Ok(()) => Outcome { code: "ok", rows: Some(events.len() as u64), bytes: None },
        Err(_) => Outcome::failed("log_failed"),
    })?;
    appended
}

/// Appends entries under a source named by their content: two commands in one millisecond are two
/// sources, and the log recognises repeated entries.
fn append(log_sink: &dyn LogSink, events: &mut [Event], now_ms: i64) -> Result<(), CommandError> {
    let topic = SchemaId::CapacityEvent.topic();
    let partitions = log_sink.partitions(topic)?;
    let fold = |hash: u128, event: &mut Event| {
        event.seal();
        let id = event.envelope_mut().event_id.first_chunk().map_or(0, |id| u128::from_le_bytes(*id));
        hash.rotate_left(17) ^ id
    };
    let source = format!("{SOURCE}#{:032x}", events.iter_mut().fold(0, fold));
    let mut batches: BTreeMap<u32, Vec<Record>> = BTreeMap::new();
    for event in events {
        let partition = partition_for(event.key().as_bytes(), partitions);
        let records = batches.entry(partition).or_default();
        let envelope = event.envelope_mut();
        envelope.source.clone_from(&source);
        envelope.epoch = now_ms.unsigned_abs();
        envelope.seq = records.len() as u64;
        records.push(event.record()?.into());
    }
    for (partition, records) in batches {
        let producer = Producer { source: source.clone(), epoch: now_ms.unsigned_abs() };
        let at = TopicPartition { topic: topic.into(), partition };
        log_sink.append(&at, Batch { producer, first_seq: 0, records })?;
    }
    Ok(())
}

const SOURCE: &str = "price";

fn now_ms() -> Result<i64, CommandError> {
    Ok(i64::try_from(SystemTime::now().duration_since(UNIX_EPOCH)?.as_millis())?)
}

#[cfg(test)]
mod tests {
    use tidegate_events::v1;
    use tidegate_log::{EmbeddedLog, EmbeddedOptions};

    use super::*;

    fn price(micros: u64) -> Event {
        Event::Capacity(v1::CapacityEvent {
            envelope: Some(v1::Envelope {
                cluster: "c".into(),
                event_time_ms: 1_700_000_000_000,
                ..v1::Envelope::default()
            }),
            kind: v1::CapacityEventKind::PriceSet.into(),
            owner: "total".into(),
            price_micros_per_gpu_hour: Some(micros),
            ..v1::CapacityEvent::default()
        })
    }

    #[test]
    fn prices_entered_in_one_millisecond_are_all_kept() {
        let folder = tempfile::tempdir().unwrap();
        let log: Arc<dyn EventLog> =
            Arc::new(EmbeddedLog::open(folder.path(), EmbeddedOptions::default()).unwrap());
        let log_sink = DirectLogSink::new(Arc::clone(&log), 1);
        let now_ms = 1_700_000_000_123;
        // The third command repeats the first one: the same fact, which counts once.
        for entries in [&[1][..], &[2, 3], &[1]] {
            let mut events: Vec<Event> = entries.iter().map(|micros| price(*micros)).collect();
            append(&log_sink, &mut events, now_ms).unwrap();
        }
        let at = TopicPartition { topic: SchemaId::CapacityEvent.topic().into(), partition: 0 };
        let kept = log.read(&at, 0, 1 << 20).unwrap();
        let named = kept.iter().map(|kept| {
            let mut event = Event::decode(kept.record.schema, &kept.record.payload).unwrap();
            let envelope = event.envelope_mut();
            (envelope.source.clone(), envelope.epoch, envelope.seq)
        });
        let named: std::collections::BTreeSet<_> = named.collect();
        assert_eq!((kept.len(), named.len()), (3, 3), "{named:?}");
    }
}
