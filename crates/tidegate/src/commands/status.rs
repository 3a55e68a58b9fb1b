//! `tidegate status`: progress of the tables by partition, the process that maintains each, who
//! still needs the log, and disk use.

mod disk;
mod poison;
mod readers;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use chrono::DateTime;
use clap::Args;
use indicatif::HumanCount;
use serde::Serialize;
use tidegate_events::SchemaId;
use tidegate_lake::catalog::position::{Position, positions};
use tidegate_lake::catalog::{TableLag, table_lag};
use tidegate_lake::pipeline::Plan;
use tidegate_lake::runner::{topic_group, topics};
use tidegate_log::{
    DataDir, EmbeddedLog, EmbeddedOptions, EventLog, Extent, GroupMember, KafkaLog, LogError, TopicPartition,
};

use self::disk::SiteDisk;
use super::signals_note::SignalsNote;
use super::{CommandError, CommandResult, PlaceArgs, block_on, consumer_group, lake_url};
use readers::Reader;

/// Interval between the two readings that give the rates.
const LOOK: Duration = Duration::from_secs(1);

/// Show progress of the tables (lag, watermark, rate, and the process of each partition) and what
/// log and tables take on disk
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  tidegate status --data tidegate-data
  tidegate status --log kafka://kafka-0:9092/gpu --data tidegate-data --json

END is the end of the log, TABLES the offset up to which every table has its records, and LAG the
difference. IN and OUT are the records per second that were appended to the log and committed to the
tables, measured over one second. The memory of the signals is that which their process noted last,
every five seconds; --signals-memory bounds it. MOVES counts how often a process took over the
partition. Only --json lists empty partitions. PENDING counts the windows of a table that late
events changed and that are not recomputed yet, as in the table table_lag. LIVE bytes belong to a
table's newest version; DEAD ones were replaced and are deleted at the age under KEPT; DELTA LOG is
the log that names the files of each version. While another process has the log open, the sizes of
topics are those of the time in the heading. A running process reports the same, with rebalances, on
GET /metrics (`tidegate up`, `tidegate pipeline run --follow --listen`).")]
pub struct StatusArgs {
    /// Data folder: the event log and the lake
    #[arg(long, value_name = "DIR", default_value = "tidegate-data", env = "TIDEGATE_DATA")]
    data: PathBuf,
    #[command(flatten)]
    log: PlaceArgs,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Serialize)]
struct Status {
    log: String,
    /// Whether the log is readable; the embedded one is locked while another process runs.
    log_asked: bool,
    partitions: Vec<Row>,
    members: Vec<Keeper>,
    /// Who reads the log, and how far each has come.
    readers: Vec<Reader>,
    /// What readers skip because they died of it.
    skipped: Vec<poison::Skipped>,
    /// Readers that skip nothing and do not go on, because they died of what comes next.
    stopped: Vec<poison::Stopped>,
    /// What memory the signals of the folder took, when they last said it.
    signals: Option<SignalsNote>,
    /// How far tables over several topics are up to date.
    table_lag: Vec<TableRow>,
    /// Records in the log that are not in the tables.
    lag: Option<u64>,
    disk: SiteDisk,
}

#[derive(Debug, Serialize)]
struct Row {
    topic: String,
    partition: u32,
    start: Option<u64>,
    end: Option<u64>,
    tables: u64,
    lag: Option<u64>,
    /// Newest event time in the tables, ms since the epoch.
    watermark_ms: Option<i64>,
    records_in_per_s: Option<f64>,
    records_out_per_s: f64,
    /// Number of rebalances that moved the partition.
    rebalances: u64,
    kept_by: Option<String>,
}

#[derive(Debug, Serialize)]
struct TableRow {
    table: String,
    /// Time up to which the table has windows, ms since the epoch.
    live_to_ms: Option<i64>,
    /// Windows that late events changed and that are not recomputed yet.
    pending_windows: i64,
    /// Start of the first and end of the last of them, ms since the epoch.
    pending_from_ms: Option<i64>,
    pending_to_ms: Option<i64>,
}

impl From<TableLag> for TableRow {
    fn from(lag: TableLag) -> Self {
        Self {
            table: lag.table,
            live_to_ms: lag.live_to.map(|us| us / 1_000),
            pending_windows: lag.pending_windows,
            pending_from_ms: lag.pending.map(|(from, _)| from / 1_000),
            pending_to_ms: lag.pending.map(|(_, to)| to / 1_000),
        }
    }
}

#[derive(Debug, Serialize)]
struct Keeper {
    member: String,
    partitions: usize,
}

/// The log, as far as it is readable.
enum Source {
    Embedded(EmbeddedLog),
    Kafka(Box<KafkaLog>),
    InUse(String),
}

impl Source {
    fn open(args: &StatusArgs, folder: &DataDir) -> Result<Self, CommandError> {
        if let Some(url) = args.log.kafka() {
            return Ok(Self::Kafka(Box::new(args.log.open_kafka(url)?)));
        }
        // Opening it needs the lock that its process holds.
        match DataDir::open(folder.path()) {
            Ok(_) => Ok(Self::Embedded(EmbeddedLog::open(folder.log(), EmbeddedOptions::default())?)),
            Err(e @ LogError::AlreadyOpen { .. }) => Ok(Self::InUse(e.to_string())),
            Err(e) => Err(e.into()),
        }
    }

    fn log(&self) -> Option<&dyn EventLog> {
        match self {
            Self::Embedded(log) => Some(log),
            Self::Kafka(log) => Some(log.as_ref()),
            Self::InUse(_) => None,
        }
    }

    fn embedded(&self) -> Option<&EmbeddedLog> {
        match self {
            Self::Embedded(log) => Some(log),
            _ => None,
        }
    }

    fn members(&self, group: &str) -> Result<Vec<GroupMember>, LogError> {
        match self {
            Self::Kafka(log) => {
                let mut members: BTreeMap<String, Vec<TopicPartition>> = BTreeMap::new();
                for topic in topics() {
                    for GroupMember { name, partitions } in log.members(&topic_group(group, topic))? {
                        members.entry(name).or_default().extend(partitions);
                    }
                }
                Ok(members.into_iter().map(|(name, partitions)| GroupMember { name, partitions }).collect())
            }
            _ => Ok(Vec::new()),
        }
    }
}

pub fn run(args: StatusArgs) -> CommandResult {
    let folder = DataDir::open_shared(&args.data)?;
    let source = Source::open(&args, &folder)?;
    let status = block_on(read_status(&args, &folder, &source))??;
    if args.json {
        say!("{}", serde_json::to_string_pretty(&status)?);
        return Ok(ExitCode::SUCCESS);
    }
    print(&status, &args);
    status.disk.print();
    if let Source::InUse(why) = &source {
        say!("\nWhere the log ends only its process knows ({why}).");
    }
    Ok(ExitCode::SUCCESS)
}

async fn read_status(args: &StatusArgs, folder: &DataDir, source: &Source) -> Result<Status, CommandError> {
    let plan = Plan::compile(tidegate_lake::pipeline::shipped()).await?;
    let lake = lake_url(folder)?;
    let partitions = partitions(source.log())?;
    let first = positions(&lake, &plan, &partitions).await?;
    let ends = extents(source.log(), &partitions)?;
    let begun = Instant::now();
    tokio::time::sleep(LOOK).await;
    let second = positions(&lake, &plan, &partitions).await?;
    let ends_then = extents(source.log(), &partitions)?;
    let took = begun.elapsed().as_secs_f64();
    let group = consumer_group(folder.path())?;
    let members = source.members(&group)?;
    let keeper =
        |at: &TopicPartition| members.iter().find(|m| m.partitions.contains(at)).map(|m| m.name.clone());

    let mut rows = Vec::new();
    for (i, at) in partitions.iter().enumerate() {
        let (Position { offset: before, .. }, Position { offset, watermark_ms, claims }) =
            (first[i], second[i]);
        let (extent_before, extent) = (ends.get(i), ends_then.get(i));
        // On Kafka, transaction markers take offsets without being records; the group has passed
        // them.
        let passed = source
            .log()
            .map(|log| log.committed_offset(&topic_group(&group, &at.topic), at))
            .transpose()?
            .flatten();
        let reached = offset.max(passed.unwrap_or(0));
        rows.push(Row {
            topic: at.topic.clone(),
            partition: at.partition,
            start: extent.map(|e| e.start),
            end: extent.map(|e| e.end),
            tables: offset,
            lag: extent.map(|e| e.end.saturating_sub(reached.max(e.start))),
            watermark_ms,
            records_in_per_s: extent.zip(extent_before).map(|(now, then)| (now.end - then.end) as f64 / took),
            records_out_per_s: offset.saturating_sub(before) as f64 / took,
            rebalances: claims,
            kept_by: keeper(at),
        });
    }
    let table_lag = table_lag(&lake, &plan).await?.into_iter().map(TableRow::from).collect();
    let members = members.iter().map(|m| Keeper { member: m.name.clone(), partitions: m.partitions.len() });
    let readers = readers::readers(source.log(), folder, &rows)?;
    Ok(Status {
        readers,
        skipped: poison::skipped(folder),
        stopped: poison::stopped(folder),
        signals: SignalsNote::read(folder.path()),
        log: args.log.kafka().map_or_else(|| folder.log().display().to_string(), ToString::to_string),
        log_asked: source.log().is_some(),
        lag: rows.iter().map(|row| row.lag).sum(),
        partitions: rows,
        members: members.collect(),
        table_lag,
        disk: SiteDisk::read(folder, &plan, source.embedded()).await?,
    })
}

/// Partitions of topics with tables; the default ones if the log is not readable.
fn partitions(log: Option<&dyn EventLog>) -> Result<Vec<TopicPartition>, LogError> {
    let mut counts: BTreeMap<String, u32> = BTreeMap::new();
    match log {
        Some(log) => {
            counts.extend(log.topics()?.into_iter().map(|(topic, config)| (topic, config.partitions)))
        }
        None => counts.extend(SchemaId::ALL.map(|schema| (schema.topic().to_owned(), 1))),
    }
    counts.retain(|topic, _| SchemaId::ALL.iter().any(|schema| schema.topic() == topic));
    let of_topic = |(topic, count): (String, u32)| {
        (0..count).map(move |partition| TopicPartition { topic: topic.clone(), partition })
    };
    Ok(counts.into_iter().flat_map(of_topic).collect())
}

fn extents(log: Option<&dyn EventLog>, partitions: &[TopicPartition]) -> Result<Vec<Extent>, LogError> {
    log.map_or(Ok(Vec::new()), |log| partitions.iter().map(|at| log.extent(at)).collect())
}

fn print(status: &Status, args: &StatusArgs) {
    let number = |n: Option<u64>| n.map_or_else(|| "?".into(), |n| HumanCount(n).to_string());
    say!("log      {}\ntables   {}", status.log, args.data.display());
    say!("lag      {} records", number(status.lag));
    for Keeper { member, partitions } in &status.members {
        say!("process  {member} keeps {partitions} partitions");
    }
    say!(
        "\n{:<14}{:>5}{:>14}{:>14}{:>14}  {:<20}{:>9}{:>9}{:>7}  KEPT BY",
        "TOPIC",
        "PART",
        "END",
        "TABLES",
        "LAG",
        "NEWEST EVENT (UTC)",
        "IN/S",
        "OUT/S",
        "MOVES"
    );
    for row in status.partitions.iter().filter(|row| row.end != Some(0)) {
        let newest = row.watermark_ms.and_then(DateTime::from_timestamp_millis);
        say!(
            "{:<14}{:>5}{:>14}{:>14}{:>14}  {:<20}{:>9}{:>9.0}{:>7}  {}",
            row.topic,
            row.partition,
            number(row.end),
            HumanCount(row.tables).to_string(),
            number(row.lag),
            newest.map_or_else(|| "-".into(), |time| time.format("%F %T").to_string()),
            row.records_in_per_s.map_or_else(|| "?".into(), |rate| format!("{rate:.0}")),
            row.records_out_per_s,
            row.rebalances,
            row.kept_by.as_deref().unwrap_or("-"),
        );
    }
    if let Some(signals) = &status.signals {
        signals.print();
    }
    readers::print(&status.readers);
    poison::print(&status.skipped);
    poison::print_stopped(&status.stopped);
    print_table_lag(&status.table_lag);
}

fn print_table_lag(rows: &[TableRow]) {
    let time = |ms: Option<i64>| {
        let time = ms.and_then(DateTime::from_timestamp_millis);
        time.map_or_else(|| "-".into(), |time| time.format("%F %T").to_string())
    };
    say!("\n{:<24}{:<22}{:>9}  {:<22}{:<22}", "TABLE", "LIVE TO (UTC)", "PENDING", "FROM", "TO");
    for row in rows {
        say!(
            "{:<24}{:<22}{:>9}  {:<22}{:<22}",
            row.table,
            time(row.live_to_ms),
            HumanCount(row.pending_windows.unsigned_abs()).to_string(),
            time(row.pending_from_ms),
            time(row.pending_to_ms),
        );
    }
}
