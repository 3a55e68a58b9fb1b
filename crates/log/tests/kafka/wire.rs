//! What other clients of Kafka see, and what they may leave in our topics.

use std::time::{Duration, Instant};

use bytes::Bytes;
use rdkafka::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::message::{Header, Headers, Message, OwnedHeaders};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer as _};
use rdkafka::{Offset, TopicPartitionList};
use tidegate_log::{Batch, EventLog, KafkaLog, Producer, Record, TopicConfig, TopicPartition};
use tidegate_testing::conformance::{batch, read_all, record};

use crate::broker;

pub const ONE_PARTITION: TopicConfig = TopicConfig { partitions: 1, retain_ms: None, retain_bytes: None };

pub fn at(topic: &str) -> TopicPartition {
    TopicPartition { topic: topic.into(), partition: 0 }
}

#[test]
fn any_client_reads_keys_times_and_headers() {
    let Some(servers) = broker::shared() else { return };
    let options = broker::options(&servers);
    let log = KafkaLog::open(options.clone()).unwrap();
    log.create_topic("jobs", ONE_PARTITION).unwrap();
    log.append(&at("jobs"), batch("agent/node 1", 7, 0, 3)).unwrap();

    let consumer: BaseConsumer = ClientConfig::new()
        .set("bootstrap.servers", &servers)
        .set("group.id", "somebody")
        .set("isolation.level", "read_committed")
        .create()
        .unwrap();
    let topic = format!("{}.jobs", options.url.prefix());
    let mut wanted = TopicPartitionList::new();
    wanted.add_partition_offset(&topic, 0, Offset::Beginning).unwrap();
    consumer.assign(&wanted).unwrap();
    for seq in 0..3 {
        let message = consumer.poll(Duration::from_secs(30)).unwrap().unwrap();
        let ours = record("agent/node 1", seq);
        let value = framed(ours.schema, &ours.payload);
        assert_eq!((message.key().unwrap(), message.payload().unwrap()), (&ours.key[..], &value[..]));
        // 0 is "now" to librdkafka, so the first millisecond of 1970 stands in for it.
        assert_eq!(message.timestamp().to_millis(), Some(ours.event_time_ms.max(1)));
        let header = |key| {
            let found = message.headers().unwrap().iter().find(|header| header.key == key).unwrap();
            String::from_utf8(found.value.unwrap().to_vec()).unwrap()
        };
        assert_eq!(header("schema"), ours.schema.to_string());
        assert_eq!(
            (header("source"), header("epoch"), header("seq")),
            ("agent/node 1".into(), "7".into(), seq.to_string())
        );
    }
}

/// As the registry's convention puts it: a zero, the number, and that it is the file's first
/// message.
pub fn framed(schema: u32, payload: &[u8]) -> Vec<u8> {
    [&[0], &schema.to_be_bytes()[..], &[0], payload].concat()
}

#[test]
fn messages_of_others_are_read_by_their_frame_or_as_schema_0() {
    let Some(servers) = broker::shared() else { return };
    let options = broker::options(&servers);
    let log = KafkaLog::open(options.clone()).unwrap();
    log.create_topic("jobs", ONE_PARTITION).unwrap();
    log.append(&at("jobs"), batch("a", 0, 0, 2)).unwrap();
    let topic = format!("{}.jobs", options.url.prefix());
    let other: BaseProducer = ClientConfig::new().set("bootstrap.servers", &servers).create().unwrap();
    let headers = |schema| OwnedHeaders::new().insert(Header { key: "schema", value: Some(schema) });
    let to = || BaseRecord::<str, str>::to(&topic).partition(0);
    other.send(to().payload("poison").timestamp(5)).map_err(|(e, _)| e).unwrap();
    other.send(to().key("k").timestamp(6)).map_err(|(e, _)| e).unwrap();
    other.send(to().key("k").payload("p").headers(headers("first"))).map_err(|(e, _)| e).unwrap();
    // As this log wrote before values were framed.
    other.send(to().key("k").payload("p").headers(headers("65537"))).map_err(|(e, _)| e).unwrap();
    let job = framed(65_537, b"p");
    let job = str::from_utf8(&job).unwrap();
    other.send(to().key("k").payload(job)).map_err(|(e, _)| e).unwrap();
    other.send(to().key("k").payload(job).headers(headers("65538"))).map_err(|(e, _)| e).unwrap();
    other.send(to().key("k").payload(&job[..5]).headers(headers("65537"))).map_err(|(e, _)| e).unwrap();
    other.flush(Duration::from_secs(30)).unwrap();
    log.append(&at("jobs"), batch("a", 0, 2, 1)).unwrap();

    let all = read_all(&log, &at("jobs"));
    let seen: Vec<_> =
        all.iter().map(|s| (s.record.schema, &s.record.key[..], &s.record.payload[..])).collect();
    let ours: Vec<_> = (0..3).map(|seq| record("a", seq)).collect();
    let of = |r: &'static str| r.as_bytes();
    assert_eq!(seen[0], (ours[0].schema, &ours[0].key[..], &ours[0].payload[..]));
    assert_eq!(seen[2..5], [(0, of(""), of("poison")), (0, of("k"), of("")), (0, of("k"), of("p"))]);
    assert_eq!(seen[5..7], [(65_537, of("k"), of("p")), (65_537, of("k"), of("p"))]);
    assert_eq!(seen[7..9], [(0, of("k"), job.as_bytes()), (0, of("k"), &job.as_bytes()[..5])]);
    assert_eq!(seen[9], (ours[2].schema, &ours[2].key[..], &ours[2].payload[..]));
    assert_eq!(all[2].record.event_time_ms, 5);
}

#[test]
fn records_keep_any_time_and_any_bytes() {
    let Some(servers) = broker::shared() else { return };
    let log = KafkaLog::open(broker::options(&servers)).unwrap();
    log.create_topic("odd", ONE_PARTITION).unwrap();
    let year_3000 = 32_503_680_000_000;
    let odd = |event_time_ms, key: &'static [u8], payload: &'static [u8]| Record {
        key: Bytes::from_static(key),
        schema: u32::MAX,
        event_time_ms,
        payload: Bytes::from_static(payload),
    };
    let records = vec![
        odd(0, b"", b""),
        odd(-1, b"\0\xff", b"\0"),
        odd(-86_400_000, b"k", b"p"),
        odd(i64::MIN, b"k", b""),
        odd(1, b"k", b"p"),
        odd(year_3000, b"k", b"p"),
    ];
    let producer = Producer { source: "∞/\n\"s".into(), epoch: u64::MAX };
    let batch = Batch { producer, first_seq: 0, records: records.clone() };
    log.append(&at("odd"), batch.clone()).unwrap();
    assert_eq!(log.append(&at("odd"), batch).unwrap().duplicates, 6);
    let read: Vec<_> = read_all(&log, &at("odd")).into_iter().map(|stored| stored.record).collect();
    assert_eq!(read, records);
    assert_eq!(log.offset_for_time(&at("odd"), year_3000).unwrap(), 5);
    assert_eq!(log.offset_for_time(&at("odd"), -5).unwrap(), 0);
}

/// Retention by time drops at once, as the conformance suite requires of other logs.
#[test]
fn old_records_are_dropped_at_once_but_not_before_groups_passed_them() {
    let Some(servers) = broker::shared() else { return };
    let log = KafkaLog::open(broker::options(&servers)).unwrap();
    let config = TopicConfig { retain_ms: Some(10_000), ..ONE_PARTITION };
    log.create_topic("kept", config).unwrap();
    let now_ms = 1_800_000_000_000;
    let first = log.extent(&at("kept")).unwrap().start;
    log.commit_offset("slow", &at("kept"), first).unwrap();
    let starts: Vec<_> = (0..5)
        .map(|i| {
            let start = log.append(&at("kept"), batch("a", 0, i * 10, 10)).unwrap().first_offset;
            log.apply_retention(now_ms + i as i64 * 5_000).unwrap();
            start
        })
        .collect();
    log.commit_offset("slow", &at("kept"), starts[1] + 5).unwrap();
    log.apply_retention(now_ms + 20_000).unwrap();
    assert_eq!(log.extent(&at("kept")).unwrap().start, starts[1] + 5);
    log.commit_offset("slow", &at("kept"), starts[4]).unwrap();
    log.apply_retention(now_ms + 20_000).unwrap();
    // On Kafka the marker that ends a transaction belongs to what came before.
    assert_eq!(
        log.read(&at("kept"), log.extent(&at("kept")).unwrap().start, 1).unwrap()[0].offset,
        starts[3]
    );
    // Written fifteen seconds ago, and dated to the year 2300.
    let centuries = 300 * 365 * 86_400_000;
    let mut ahead = batch("b", 0, 0, 10);
    ahead.records[3].event_time_ms = now_ms + centuries;
    log.append(&at("kept"), ahead).unwrap();
    let end = log.extent(&at("kept")).unwrap().end;
    log.commit_offset("slow", &at("kept"), end).unwrap();
    log.apply_retention(now_ms + 30_000).unwrap();
    log.apply_retention(now_ms + 40_000).unwrap();
    let kept = log.extent(&at("kept")).unwrap();
    assert_eq!(kept.start, kept.end);
}

#[test]
fn two_processes_that_append_for_one_source_lose_and_double_nothing() {
    let Some(servers) = broker::shared() else { return };
    let options = broker::options(&servers);
    let logs: Vec<_> = (0..2).map(|_| KafkaLog::open(options.clone()).unwrap()).collect();
    logs[0].create_topic("jobs", ONE_PARTITION).unwrap();
    std::thread::scope(|scope| {
        for log in &logs {
            scope.spawn(move || {
                for i in 0..12 {
                    log.append(&at("jobs"), batch("twin", 0, i * 5, 5)).unwrap();
                }
            });
        }
    });
    let read: Vec<_> = read_all(&logs[0], &at("jobs")).into_iter().map(|stored| stored.record).collect();
    assert_eq!(read, (0..60).map(|seq| record("twin", seq)).collect::<Vec<_>>());
    let written: u64 = logs.iter().map(|log| log.stats().records).sum();
    assert!(written <= 60, "{written} counted as written");
}

#[test]
fn more_sources_than_producers_are_kept() {
    let Some(servers) = broker::shared() else { return };
    let log = KafkaLog::open(broker::options(&servers)).unwrap();
    log.create_topic("jobs", ONE_PARTITION).unwrap();
    let began = Instant::now();
    for round in 0..2 {
        for source in 0..30 {
            log.append(&at("jobs"), batch(&format!("s{source}"), 0, round, 1)).unwrap();
        }
    }
    println!("{:?} for an append of a source without a producer, {:?}", began.elapsed() / 60, log.stats());
    assert_eq!(read_all(&log, &at("jobs")).len(), 60);
    assert!(log.stats().sources <= 24 && log.stats().queued == 0, "{:?}", log.stats());
}
