//! How a record is a Kafka message: the key as it is, the payload framed, the event time as
//! timestamp, the rest in headers.

use bytes::Bytes;
use rdkafka::Timestamp;
use rdkafka::message::{BorrowedMessage, Header, Headers, Message, OwnedHeaders};

use super::value::{FOREIGN_SCHEMA, unframe};
use crate::{Producer, Record, StoredRecord};

/// `tidegate_events::SchemaId` as a number, in decimal; the frame of the value says the same.
const SCHEMA: &str = "schema";
const SOURCE: &str = "source";
const EPOCH: &str = "epoch";
const SEQ: &str = "seq";
/// The event time in ms, where the timestamp cannot hold it: librdkafka takes 0 for "now", Kafka
/// refuses what is below.
const EVENT_TIME: &str = "event_time_ms";

/// Headers of a record; the timestamp beside them is [`timestamp`].
pub(super) fn headers(producer: &Producer, seq: u64, record: &Record) -> OwnedHeaders {
    let headers = OwnedHeaders::new_with_capacity(5)
        .insert(Header { key: SCHEMA, value: Some(&record.schema.to_string()) })
        .insert(Header { key: SOURCE, value: Some(&producer.source) })
        .insert(Header { key: EPOCH, value: Some(&producer.epoch.to_string()) })
        .insert(Header { key: SEQ, value: Some(&seq.to_string()) });
    match record.event_time_ms {
        1.. => headers,
        early => headers.insert(Header { key: EVENT_TIME, value: Some(&early.to_string()) }),
    }
}

pub(super) fn timestamp(record: &Record) -> i64 {
    record.event_time_ms.max(1)
}

pub(super) fn stored(message: &BorrowedMessage<'_>) -> StoredRecord {
    let (mut named, mut event_time_ms) = (None, None);
    for header in message.headers().into_iter().flat_map(|headers| headers.iter()) {
        match header.key {
            SCHEMA => named = Some(number(header.value).unwrap_or(FOREIGN_SCHEMA)),
            EVENT_TIME => event_time_ms = number(header.value),
            _ => {}
        }
    }
    let stamped = match message.timestamp() {
        Timestamp::CreateTime(ms) | Timestamp::LogAppendTime(ms) => ms,
        Timestamp::NotAvailable => 0,
    };
    let (schema, payload) = unframe(named, message.payload().unwrap_or_default());
    let record = Record {
        key: Bytes::copy_from_slice(message.key().unwrap_or_default()),
        schema,
        event_time_ms: event_time_ms.unwrap_or(stamped),
        payload: Bytes::copy_from_slice(payload),
    };
    StoredRecord { offset: offset(message.offset()), record }
}

fn number<T: std::str::FromStr>(value: Option<&[u8]>) -> Option<T> {
    std::str::from_utf8(value?).ok()?.parse().ok()
}

/// Kafka's offsets are signed; those of messages are never negative.
pub(super) fn offset(kafka: i64) -> u64 {
    u64::try_from(kafka).unwrap_or(0)
}
