//! The event log: one trait, [`EventLog`], with an embedded implementation and one on Kafka.
//!
//! A log holds topics, a topic holds partitions, and a partition is a sequence of records with
//! growing offsets: dense in the embedded log, with gaps on Kafka. Payloads are opaque here; their
//! types are in `tidegate-events`.
//!
//! ```
//! use std::sync::Arc;
//! use tidegate_log::tail::Tail;
//! use tidegate_log::{EmbeddedLog, EventLog};
//!
//! # let dir = tempfile::tempdir()?;
//! let log: Arc<dyn EventLog> = Arc::new(EmbeddedLog::open(dir.path(), Default::default())?);
//! for (topic, config) in log.topics()? {
//!     println!("{topic}: {} partitions", config.partitions);
//! }
//! // Reads all partitions of a topic from the beginning, at most 1 MiB of payload at a time.
//! let mut tail = Tail::new(log, &["jobs"], None, 1 << 20)?;
//! tail.poll(|stored| println!("offset {}: {:?}", stored.offset, stored.record.key))?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
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
pub mod poison;
pub mod snapshot;
mod sole_member;
pub mod tail;
pub mod wire;
mod write_marks;

pub use data_dir::DataDir;
pub use embedded::{
    EmbeddedLog, EmbeddedOptions, LogDisk, LogStats, TopicDisk, VerifyReport, noted_disk_use,
};
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

/// A partition of a topic, the unit of order.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TopicPartition {
    /// Name of the topic.
    pub topic: String,
    /// Number of the partition in the topic, from 0.
    pub partition: u32,
}

/// A record to append.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// Unit of order and of compaction, e.g. `cluster/job_id`.
    pub key: Bytes,
    /// Schema of the payload and its version, as the number of a `tidegate_events::SchemaId`.
    pub schema: u32,
    /// Time of the event, ms since the epoch.
    pub event_time_ms: i64,
    /// The encoded event; the log does not look into it.
    pub payload: Bytes,
}

impl From<EventRecord> for Record {
    fn from(record: EventRecord) -> Self {
        let EventRecord { key, schema, event_time_ms, payload } = record;
        Self { key, schema, event_time_ms, payload }
    }
}

/// A record as it was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredRecord {
    /// Position in the partition.
    pub offset: u64,
    /// The record as it was appended.
    pub record: Record,
}

/// A producer, from one start to the next: in each epoch, a source numbers its records from 0
/// without gaps, per partition.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Producer {
    /// Name of the source. The part after the last `#`, if there is one, names content and not an
    /// instance, as in `import/sacct#HASH`. Each source has its own sequence of numbers; on Kafka,
    /// those that are equal up to the `#` share a transactional producer, which is expensive to
    /// open, and append one at a time.
    pub source: String,
    /// Raised whenever the source starts to number from 0 again.
    pub epoch: u64,
}

/// Records to append to one partition, atomically: all of them become readable, or none.
#[derive(Debug, Clone)]
pub struct Batch {
    /// The producer whose numbers the records carry.
    pub producer: Producer,
    /// Number of the first record in this epoch and partition.
    pub first_seq: u64,
    /// The records, numbered from `first_seq` without gaps.
    pub records: Vec<Record>,
}

/// Result of an append.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Appended {
    /// Offset of the first record written, or the partition's end if all were duplicates.
    pub first_offset: u64,
    /// Records that were written.
    pub written: u64,
    /// Leading records that were appended before in this epoch; they are not written again.
    pub duplicates: u64,
}

/// Where a partition begins and ends: readable offsets are `start..end`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    /// Offset of the oldest record that is kept.
    pub start: u64,
    /// Offset after the newest record; on Kafka, the next record may get a higher one.
    pub end: u64,
}

/// Layout of a topic, and how long it keeps records.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct TopicConfig {
    /// Number of partitions.
    pub partitions: u32,
    /// Records may be dropped this long after they were written, whatever time they claim; `None`
    /// keeps all. History that is imported today is thus kept this long from today.
    pub retain_ms: Option<u64>,
    /// Oldest records may be dropped when a partition holds more bytes than this.
    pub retain_bytes: Option<u64>,
}

/// Time on the log's clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogClock {
    /// When the log answered, ms since the epoch.
    pub at_ms: i64,
    /// Largest error of `at_ms` either way, ms: half the round trip of the request.
    pub uncertainty_ms: i64,
}

/// A change of the partitions that a member of a consumer group reads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RebalanceEvent {
    /// This member reads these partitions from now on, in addition to those it has.
    Assigned(Vec<TopicPartition>),
    /// These go to another member. Commit their offsets now: the next poll hands them over.
    Revoking(Vec<TopicPartition>),
    /// These may belong to another member already, because this one was silent too long. Drop
    /// whatever was not committed.
    Lost(Vec<TopicPartition>),
}

/// One process's membership of a consumer group; dropping it leaves the group.
pub trait Member: Send {
    /// Waits up to `timeout` for a change of this member's partitions and returns it.
    ///
    /// Call it often: the group drops a member that does not poll for `max.poll.interval.ms`
    /// (5 minutes).
    fn poll(&mut self, timeout: Duration) -> Result<Option<RebalanceEvent>, LogError>;

    /// Commits the group's offsets. While a group has members, Kafka accepts commits only from
    /// them, so that [`EventLog::commit_offset`] would be refused.
    ///
    /// Returns at once; if the commit fails for good, a later [`poll`](Self::poll) returns the
    /// error. A commit that a rebalance rejects is retried for as long as this member keeps the
    /// partitions. A group's offsets are advisory.
    fn commit(&mut self, offsets: &[(TopicPartition, u64)]) -> Result<(), LogError>;

    /// Number of rebalances of the group since this member joined, including those that changed
    /// nothing for it.
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

    /// Waits up to `timeout` until the partition ends after `offset`; returns whether it does.
    fn wait_for(&self, at: &TopicPartition, offset: u64, timeout: Duration) -> Result<bool, LogError>;

    /// Commits a consumer group's offset. Advisory: correctness rests on offsets committed with
    /// the output.
    ///
    /// For groups without members; otherwise use [`Member::commit`].
    fn commit_offset(&self, group: &str, at: &TopicPartition, offset: u64) -> Result<(), LogError>;

    /// Joins a consumer group that shares the partitions of these topics among its members.
    ///
    /// The embedded log belongs to one process, so its only member is assigned all of them.
    fn join(&self, group: &str, topics: &[&str]) -> Result<Box<dyn Member>, LogError>;

    /// The group's last committed offset.
    fn committed_offset(&self, group: &str, at: &TopicPartition) -> Result<Option<u64>, LogError>;

    /// Drops records below `before` (rounded down to whole batches). Reads below the new start are
    /// refused.
    fn trim(&self, at: &TopicPartition, before: u64) -> Result<Extent, LogError>;

    /// Applies every topic's retention, never dropping a record that a committed consumer group has
    /// not passed.
    ///
    /// Age counts from the write, not from the event: each run records the end of every partition
    /// at `now_ms`, and drops what lies below the end that a run recorded `retain_ms` ago. So the
    /// first run drops nothing by age.
    fn apply_retention(&self, now_ms: i64) -> Result<(), LogError>;

    /// Sets how long a topic keeps records, see [`TopicConfig::retain_ms`].
    fn set_retention(&self, topic: &str, retain_ms: Option<u64>) -> Result<(), LogError>;

    /// How far each consumer group that ever committed has come in a partition, by name. Retention
    /// drops nothing that one of them has not passed.
    fn consumers(&self, at: &TopicPartition) -> Result<Vec<(String, u64)>, LogError>;

    /// Forgets what a consumer group committed, so that it holds nothing back any more. Returns
    /// whether there was anything. A group whose members are running comes back.
    fn forget_consumer(&self, group: &str) -> Result<bool, LogError>;

    /// The time on the log's clock; `None` where the log uses this machine's clock.
    fn clock(&self) -> Result<Option<LogClock>, LogError> {
        Ok(None)
    }

    /// Raises the generation of writers. Appends through handles of an older generation are refused
    /// with [`LogError::Fenced`] from now on; returns the new generation.
    fn fence(&self) -> Result<u64, LogError>;
}
