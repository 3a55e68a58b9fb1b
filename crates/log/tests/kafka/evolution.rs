//! Producers of other versions: their records are read, or fail with the reason.

use bytes::Bytes;
use tidegate_events::{Event, SchemaId};
use tidegate_log::{Batch, EventLog, KafkaLog, Producer, Record};
use tidegate_testing::conformance::read_all;

use crate::broker;
use crate::readers::{job, record};
use crate::wire::{ONE_PARTITION, at};

/// Field 2000 of a later version: a text.
const LATER_FIELD: &[u8] = b"\x82\x7d\x06colour";

fn of(schema: u32, payload: &[u8]) -> Record {
    Record { schema, payload: Bytes::copy_from_slice(payload), ..record(&mut job(0)) }
}

/// Appends the records, reads them back and decodes them.
fn through_the_log(records: Vec<Record>) -> Option<Vec<Result<Event, String>>> {
    let log = KafkaLog::open(broker::options(&broker::shared()?)).unwrap();
    log.create_topic("jobs", ONE_PARTITION).unwrap();
    let producer = Producer { source: "other version".into(), epoch: 0 };
    log.append(&at("jobs"), Batch { producer, first_seq: 0, records: records.clone() }).unwrap();
    let read: Vec<_> = read_all(&log, &at("jobs")).into_iter().map(|stored| stored.record).collect();
    assert_eq!(read, records);
    let decode = |record: &Record| Event::decode(record.schema, &record.payload);
    Some(read.iter().map(|record| decode(record).map_err(|error| error.to_string())).collect())
}

#[test]
fn events_of_older_and_newer_producers_are_read() {
    let (mut event, current) = (job(0), SchemaId::JobEvent.number());
    let payload = record(&mut event).payload;
    let grown = [&payload[..], LATER_FIELD].concat();
    let records = vec![of(current - 1, &payload), of(current, &payload), of(current + 1, &grown)];
    let Some(read) = through_the_log(records) else { return };
    assert_eq!(read, [Ok(event.clone()), Ok(event.clone()), Ok(event)]);
}

#[test]
fn unreadable_records_fail_with_a_reason_and_block_nothing() {
    let (mut event, current) = (job(0), SchemaId::JobEvent.number());
    let payload = record(&mut event).payload;
    let mut of_newer_kind = event.clone();
    if let Event::Job(job) = &mut of_newer_kind {
        job.kind = 99;
    }
    let records = vec![
        of(0xff_0002, &payload),
        of(0, &payload),
        of(current, &payload[..payload.len() - 1]),
        of(current + 1, &of_newer_kind.encode_to_vec()),
        of(current, b""),
        of(current, &payload),
    ];
    let Some(read) = through_the_log(records) else { return };
    let expected = [
        "unknown schema 255 version 2 (number 16711682): written by a newer tidegate? upgrade this reader",
        "no event has this number, so another program wrote this",
        "is not a protobuf message of schemas/job_event.proto",
        "kind 99 is unspecified or of a newer version",
        "job_event is incomplete",
    ];
    for (read, expected) in read.iter().zip(expected) {
        let why = read.as_ref().unwrap_err();
        assert!(why.contains(expected), "{why}");
    }
    assert_eq!(read[5], Ok(event));
}
