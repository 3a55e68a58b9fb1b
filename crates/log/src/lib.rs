//! The event log: one trait, [`EventLog`], embedded in one process or on a Kafka cluster.
//!
//! A log holds topics, a topic holds partitions, a partition is a sequence of records with growing
//! offsets: dense in the embedded log, with gaps on Kafka. The log knows nothing of what a record
//! means; `tidegate-events` does.
#![warn(missing_docs)]

use std::time::Duration;

use bytes::Bytes;
use tidegate_events::EventRecord;

mod check;
mod data_dir;
mod embedded;
mod error;
pub mod fault;
mod kafka;
mod partition;
mod sole_member;
pub mod tail;
pub mod wire;
mod write_marks;

pub use data_dir::DataDir;
pub use embedded::{EmbeddedLog, EmbeddedOptions, LogStats, VerifyReport};
pub use error::LogError;
pub use kafka::copy::{CopyOptions, CopyProgress, CopyReport, CopyStep, Place, Spread, copy_to_kafka};
pub use kafka::{GroupMember, KafkaLog, KafkaOptions, KafkaStats, KafkaUrl};
pub use partition::partition_for;
pub use sole_member::sole_member;

/// Largest key and payload of one record, together.
pub const MAX_RECORD_BYTES: usize = 8 << 20;
/// Largest batch: keys and payloads of its records, and 16 bytes for each record.
pub const MAX_BATCH_BYTES: usize = 64 << 20;
/// Longest name of a producer.
pub const MAX_SOURCE_BYTES: usize = 1024;
/// Longest name of a topic.
pub const MAX_TOPIC_BYTES: usize = 200;

/// Names a topic's partition, the unit of order.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TopicPartition {
    pub topic: String,
    pub partition: u32,
}

/// One record as a producer hands it over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// Unit of order and of compaction, e.g. `cluster/job_id`.
    pub key: Bytes,
    /// Which schema and version the payload is written in (`tidegate_events::SchemaId` as a
    /// number).
    pub schema: u32,
    /// When it happened, ms since the epoch.
    pub event_time_ms: i64,
    pub payload: Bytes,
}

impl From<EventRecord> for Record {
    fn from(record: EventRecord) -> Self {
        let EventRecord { key, schema, event_time_ms, payload } = record;
        Self { key, schema, event_time_ms, payload }
    }
}

/// One record as the log gives it back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredRecord {
    pub offset: u64,
    pub record: Record,
}

/// Who appends. `(source, epoch)` is one life of a producer; its records are numbered from 0
/// without gaps.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Producer {
    /// What follows the last `#`, if there is one, names content and not an instance, as in
    /// `import/sacct#HASH`. Such sources are independent of each other as all are, but on Kafka
    /// those that are equal up to the `#` share what is dear to open, and append one after the
    /// other.
    pub source: String,
    pub epoch: u64,
}

/// Records to append to one partition, atomically: all of them become readable, or none.
#[derive(Debug, Clone)]
pub struct Batch {
    pub producer: Producer,
    /// Number of the first record in the producer's life, per partition.
    pub first_seq: u64,
    pub records: Vec<Record>,
}

/// What became of an append.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Appended {
    /// Offset of the first record written, or the partition's end if all were duplicates.
    pub first_offset: u64,
    pub written: u64,
    /// Leading records that this producer life had already appended; they are not written again.
    pub duplicates: u64,
}

/// Where a partition begins and ends: readable offsets are `start..end`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    pub start: u64,
    pub end: u64,
}

/// How a topic is laid out and how long it keeps records.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct TopicConfig {
    pub partitions: u32,
    /// Records may be dropped this long after they were written, whatever time they claim; `None`
    /// keeps all. History that is imported today is thus kept this long from today.
    pub retain_ms: Option<u64>,
    /// Oldest records may be dropped when a partition holds more bytes than this.
    pub retain_bytes: Option<u64>,
}

/// What time it is for a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogClock {
    /// At the moment the answer was given, ms since the epoch.
    pub at_ms: i64,
    /// By how much that may be wrong, either way, ms: half the time that asking took.
    pub uncertainty_ms: i64,
}

/// What changed for a member of a consumer group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RebalanceEvent {
    /// These partitions are this member's to read from now on, beside those it has.
    Assigned(Vec<TopicPartition>),
    /// These are to go to another member. Commit what was taken in of them: the next poll hands
    /// them over.
    Revoking(Vec<TopicPartition>),
    /// These may be another member's already, because this one was away too long. Drop what was not
    /// committed.
    Lost(Vec<TopicPartition>),
}

/// One process's membership of a consumer group; dropping it leaves the group.
pub trait Member: Send {
    /// Takes part in the group and tells what changed for this member, waiting for it up to
    /// `timeout`.
    ///
    /// To be called often: who is silent for `max.poll.interval.ms` (5 minutes) is taken for dead.
    fn poll(&mut self, timeout: Duration) -> Result<Option<RebalanceEvent>, LogError>;

    /// Remembers how far the group got, as [`EventLog::commit_offset`] does, which Kafka refuses
    /// from anybody else while a group has members. Returns at once; if the commit fails for good, a
    /// later [`poll`](Self::poll) returns the error. One rejected by a rebalance is retried for as long
    /// as this member keeps the partitions. A group's offsets are advisory.
    fn commit(&mut self, offsets: &[(TopicPartition, u64)]) -> Result<(), LogError>;

    /// How often this member was told of a new sharing-out, also of one that changed nothing for
    /// it.
    fn rebalances(&self) -> u64;
}

/// A durable, partitioned, append-only log of records.
///
/// All calls block until they are done; run them off the async executor. Implementations are shared
/// between threads.
pub trait EventLog: Send + Sync {
    /// Creates the topic, or checks that it exists with the same number of partitions.
    fn create_topic(&self, topic: &str, config: TopicConfig) -> Result<(), LogError>;

    /// All topics with their layout, by name.
    fn topics(&self) -> Result<Vec<(String, TopicConfig)>, LogError>;

    /// Appends a batch and returns once it is durable (fsynced, or acknowledged by all in-sync
    /// replicas).
    ///
    /// Idempotent: records whose `(source, epoch, seq)` the partition already holds are not written
    /// again. A `first_seq` beyond the producer's next number is refused as
    /// [`LogError::SequenceGap`]; an epoch older than the newest seen of that source as
    /// [`LogError::StaleEpoch`].
    fn append(&self, at: &TopicPartition, batch: Batch) -> Result<Appended, LogError>;

    /// Reads records from `from` on, in order, until `max_bytes` of payload are collected (at least
    /// one record if there is any). Empty at the end of the partition. `from` below the start is
    /// [`LogError::OffsetOutOfRange`].
    fn read(&self, at: &TopicPartition, from: u64, max_bytes: usize) -> Result<Vec<StoredRecord>, LogError>;

    /// First and next offset of the partition.
    fn extent(&self, at: &TopicPartition) -> Result<Extent, LogError>;

    /// The offset of the first record that is not older than `event_time_ms`; the end if there is
    /// none.
    fn offset_for_time(&self, at: &TopicPartition, event_time_ms: i64) -> Result<u64, LogError>;

    /// Waits until the partition ends after `offset`, at most `timeout`; tells whether it does.
    fn wait_for(&self, at: &TopicPartition, offset: u64, timeout: Duration) -> Result<bool, LogError>;

    /// Remembers how far a consumer group got. Advisory: correctness rests on offsets committed
    /// with the output.
    ///
    /// For groups that nobody joined; where there are members, [`Member::commit`] does this.
    fn commit_offset(&self, group: &str, at: &TopicPartition, offset: u64) -> Result<(), LogError>;

    /// Joins a consumer group that shares the partitions of these topics among its members.
    ///
    /// In the embedded log, which one process has to itself, the only member holds them all.
    fn join(&self, group: &str, topics: &[&str]) -> Result<Box<dyn Member>, LogError>;

    /// What the group last committed.
    fn committed_offset(&self, group: &str, at: &TopicPartition) -> Result<Option<u64>, LogError>;

    /// Drops records below `before` (rounded down to whole batches). Reads below the new start are
    /// refused.
    fn trim(&self, at: &TopicPartition, before: u64) -> Result<Extent, LogError>;

    /// Applies every topic's retention, never dropping a record that a committed consumer group has
    /// not passed.
    ///
    /// Goes by when records were written: each run notes how far a partition reaches at `now_ms`,
    /// and drops what an earlier run saw `retain_ms` ago. So the first run drops nothing by age.
    fn apply_retention(&self, now_ms: i64) -> Result<(), LogError>;

    /// What time it is for the log; `None` where that is this machine's own clock.
    fn clock(&self) -> Result<Option<LogClock>, LogError> {
        Ok(None)
    }

    /// Raises the generation of writers. Appends through handles of an older generation are refused
    /// with [`LogError::Fenced`] from now on; returns the new generation.
    fn fence(&self) -> Result<u64, LogError>;
}
