//! The form of an append over HTTP, to `POST /v1/events` of a server that accepts events.
//! schemas/README.md documents it.

use bytes::Bytes;

use tidegate_events::wire::{Field, Kind, Shape, TooMuch, measure};

use crate::{Batch, MAX_RECORD_BYTES, MAX_SOURCE_BYTES, MAX_TOPIC_BYTES, Producer, Record, TopicPartition};

/// Content type of the request.
pub const CONTENT_TYPE: &str = "application/x-protobuf";

/// Most records of a request. An agent sends a few hundred at once.
pub const MAX_RECORDS: usize = 1 << 16;

static REQUEST: Shape = Shape {
    bytes: size_of::<AppendRequest>(),
    fields: &[
        Field { number: 1, name: "topic", kind: Kind::Text(MAX_TOPIC_BYTES) },
        Field { number: 3, name: "source", kind: Kind::Text(MAX_SOURCE_BYTES) },
        Field { number: 6, name: "records", kind: Kind::Messages(MAX_RECORDS, &RECORD) },
    ],
};
static RECORD: Shape = Shape {
    bytes: size_of::<AppendRecord>(),
    fields: &[
        Field { number: 1, name: "key", kind: Kind::Text(MAX_RECORD_BYTES) },
        Field { number: 4, name: "payload", kind: Kind::Text(MAX_RECORD_BYTES) },
    ],
};

/// Counts what a request holds before it is decoded. Returns the memory that it takes, its bytes
/// included.
///
/// # Errors
/// [`TooMuch`]: it has more than [`MAX_RECORDS`] records, or a longer text than a log takes.
pub fn measure_request(body: &[u8]) -> Result<usize, TooMuch> {
    measure(&REQUEST, body)
}

/// One append.
#[derive(Clone, PartialEq, prost::Message)]
pub struct AppendRequest {
    /// Name of the topic.
    #[prost(string, tag = "1")]
    pub topic: String,
    /// Number of the partition.
    #[prost(uint32, tag = "2")]
    pub partition: u32,
    /// The producer, as in [`Producer`].
    #[prost(string, tag = "3")]
    pub source: String,
    /// Epoch of the producer, as in [`Producer`].
    #[prost(uint64, tag = "4")]
    pub epoch: u64,
    /// Number of the first record, as in [`Batch`].
    #[prost(uint64, tag = "5")]
    pub first_seq: u64,
    /// The records of the batch, in order.
    #[prost(message, repeated, tag = "6")]
    pub records: Vec<AppendRecord>,
}

/// One record of it.
#[derive(Clone, PartialEq, prost::Message)]
pub struct AppendRecord {
    /// As [`Record::key`].
    #[prost(bytes = "bytes", tag = "1")]
    pub key: Bytes,
    /// As [`Record::schema`].
    #[prost(uint32, tag = "2")]
    pub schema: u32,
    /// As [`Record::event_time_ms`].
    #[prost(sint64, tag = "3")]
    pub event_time_ms: i64,
    /// As [`Record::payload`].
    #[prost(bytes = "bytes", tag = "4")]
    pub payload: Bytes,
}

impl AppendRequest {
    /// Payloads are shared, not copied.
    pub fn new(at: &TopicPartition, batch: Batch) -> Self {
        let record = |record: Record| AppendRecord {
            key: record.key,
            schema: record.schema,
            event_time_ms: record.event_time_ms,
            payload: record.payload,
        };
        Self {
            topic: at.topic.clone(),
            partition: at.partition,
            source: batch.producer.source,
            epoch: batch.producer.epoch,
            first_seq: batch.first_seq,
            records: batch.records.into_iter().map(record).collect(),
        }
    }

    /// What a log appends.
    pub fn into_batch(self) -> (TopicPartition, Batch) {
        let record = |record: AppendRecord| Record {
            key: record.key,
            schema: record.schema,
            event_time_ms: record.event_time_ms,
            payload: record.payload,
        };
        let producer = Producer { source: self.source, epoch: self.epoch };
        let records = self.records.into_iter().map(record).collect();
        let at = TopicPartition { topic: self.topic, partition: self.partition };
        (at, Batch { producer, first_seq: self.first_seq, records })
    }
}

/// Answer to an append that was done.
#[derive(Debug, Clone, serde::Serialize, serde::Deserialize)]
pub struct AppendAnswer {
    /// As [`Appended::first_offset`](crate::Appended::first_offset).
    pub first_offset: u64,
    /// As [`Appended::written`](crate::Appended::written).
    pub written: u64,
    /// As [`Appended::duplicates`](crate::Appended::duplicates).
    pub duplicates: u64,
}

/// Answer of `GET /v1/log`.
#[derive(Debug, Clone, serde::Serialize, serde::Deserialize)]
pub struct LogAnswer {
    /// All topics, by name.
    pub topics: Vec<TopicAnswer>,
    /// The server's clock, ms since the epoch.
    pub now_ms: i64,
}

/// A topic in [`LogAnswer`].
#[derive(Debug, Clone, serde::Serialize, serde::Deserialize)]
pub struct TopicAnswer {
    /// Name of the topic.
    pub topic: String,
    /// Number of its partitions.
    pub partitions: u32,
}

/// Answer to a refused or failed append; `code` says which other fields are present.
#[derive(Debug, Clone, Default, serde::Serialize, serde::Deserialize)]
pub struct Refusal {
    /// Stable name of the reason, such as [`STALE_EPOCH`].
    pub code: String,
    /// The reason and what to do, for people.
    pub message: String,
    /// `sequence_gap`: the number to go on with.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expected: Option<u64>,
    /// `stale_epoch`: the newest epoch of the source.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub newest: Option<u64>,
}

/// Another producer of the same source has a newer epoch.
pub const STALE_EPOCH: &str = "stale_epoch";
/// Records between are missing.
pub const SEQUENCE_GAP: &str = "sequence_gap";
/// The disk of the log is full.
pub const LOG_FULL: &str = "log_full";
/// There is no such topic.
pub const UNKNOWN_TOPIC: &str = "unknown_topic";
/// The log cannot be reached by the server right now.
pub const LOG_UNAVAILABLE: &str = "log_unavailable";
