//! The cost of the log's guarantees, compared with Kafka's own tools on the same broker. Run by
//! hand, in a release build:
//!
//! `CI=true cargo test --release -p tidegate-log --test kafka -- --ignored --nocapture throughput`

use std::process::Command;
use std::time::{Duration, Instant};

use bytes::Bytes;
use rdkafka::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::message::Message;
use rdkafka::producer::{BaseProducer, BaseRecord, Producer as _};
use rdkafka::{Offset, TopicPartitionList};
use tidegate_log::{Batch, EventLog, KafkaLog, Producer, Record};

use crate::broker;
use crate::wire::{ONE_PARTITION, at};

const RECORDS: u64 = 600_000;
const PAYLOAD_BYTES: usize = 180;
const KEY_BYTES: usize = 20;

/// Half of it repeats, as in events.
pub fn records(first: u64, count: u64) -> Vec<Record> {
    let record = |seq: u64| {
        let mut payload = vec![b'x'; PAYLOAD_BYTES];
        let mut state = seq.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        for byte in &mut payload[..PAYLOAD_BYTES / 2] {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            *byte = state as u8;
        }
        let key = Bytes::from(format!("cluster/{:012}", seq % 1000));
        Record {
            key,
            schema: 0x1_0001,
            event_time_ms: 1_700_000_000_000 + seq as i64,
            payload: payload.into(),
        }
    };
    (first..first + count).map(record).collect()
}

fn report(what: &str, records: u64, took: Duration) -> f64 {
    let rate = records as f64 / took.as_secs_f64();
    println!(
        "{what:48} {rate:>10.0} records/s {:>7.1} MB/s",
        rate * (PAYLOAD_BYTES + KEY_BYTES) as f64 / 1e6
    );
    rate
}

#[test]
#[ignore = "a measurement"]
fn throughput_beside_kafkas_own() {
    let Some(servers) = broker::shared() else { return };
    let log = KafkaLog::open(broker::options(&servers)).unwrap();
    let mut appended = Vec::new();
    for size in [1_000, 10_000, 50_000] {
        let topic = format!("by-{size}");
        log.create_topic(&topic, ONE_PARTITION).unwrap();
        let batches: Vec<_> = (0..RECORDS / size)
            .map(|i| {
                let producer = Producer { source: format!("bench/{size}"), epoch: 0 };
                Batch { producer, first_seq: i * size, records: records(i * size, size) }
            })
            .collect();
        let began = Instant::now();
        for batch in batches {
            log.append(&at(&topic), batch).unwrap();
        }
        appended.push(report(&format!("append, batches of {size}"), RECORDS, began.elapsed()));
    }
    let produced = produce_raw(&servers);
    let (began, mut next, mut count) = (Instant::now(), 0, 0);
    while count < RECORDS {
        let read = log.read(&at("by-10000"), next, 4 << 20).unwrap();
        next = read.last().unwrap().offset + 1;
        count += read.len() as u64;
    }
    let read = report("read, 4 MiB at a time", RECORDS, began.elapsed());
    let consumed = consume_raw(&servers);
    for (size, rate) in [1_000, 10_000, 50_000].iter().zip(&appended) {
        println!("append in batches of {size} / librdkafka without transactions: {:.2}", rate / produced);
    }
    println!("read / librdkafka: {:.2}", read / consumed);
    println!("{:?}", log.stats());
    perf_tool(&servers);
}

/// The same records by librdkafka, acks=all and zstd, without transactions, progress or headers.
fn produce_raw(servers: &str) -> f64 {
    let producer: BaseProducer = ClientConfig::new()
        .set("bootstrap.servers", servers)
        .set("enable.idempotence", "true")
        .set("compression.type", "zstd")
        .set("compression.level", "1")
        .set("batch.size", "1000000")
        .create()
        .unwrap();
    let records = records(0, RECORDS);
    let began = Instant::now();
    for record in &records {
        let mut message =
            BaseRecord::to("raw").partition(0).key(&record.key[..]).payload(&record.payload[..]);
        while let Err((_, again)) = producer.send(message.timestamp(record.event_time_ms)) {
            message = again;
            producer.poll(Duration::from_millis(5));
        }
    }
    producer.flush(Duration::from_secs(60)).unwrap();
    report("librdkafka, idempotent, no transactions", RECORDS, began.elapsed())
}

fn consume_raw(servers: &str) -> f64 {
    let consumer: BaseConsumer =
        ClientConfig::new().set("bootstrap.servers", servers).set("group.id", "raw").create().unwrap();
    let mut all = TopicPartitionList::new();
    all.add_partition_offset("raw", 0, Offset::Beginning).unwrap();
    consumer.assign(&all).unwrap();
    let (began, mut count, mut bytes) = (Instant::now(), 0, 0);
    while count < RECORDS {
        let Some(message) = consumer.poll(Duration::from_secs(30)) else { panic!("only {count} records") };
        bytes += message.unwrap().payload().unwrap().len();
        count += 1;
    }
    assert_eq!(bytes as u64, RECORDS * PAYLOAD_BYTES as u64);
    report("librdkafka consumer", RECORDS, began.elapsed())
}

/// kafka-producer-perf-test of the same Kafka.
fn perf_tool(servers: &str) {
    let script = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/kafka/broker.sh");
    let jars = Command::new(script).arg("install").output().unwrap();
    let jars = format!("{}/*", String::from_utf8(jars.stdout).unwrap().trim());
    let output = Command::new("java")
        .args([
            "-cp",
            &jars,
            "org.apache.kafka.tools.ProducerPerformance",
            "--topic",
            "perf",
            "--throughput",
            "-1",
        ])
        .args([
            "--num-records",
            &RECORDS.to_string(),
            "--record-size",
            &(PAYLOAD_BYTES + KEY_BYTES).to_string(),
        ])
        .args([
            "--producer-props",
            &format!("bootstrap.servers={servers}"),
            "acks=all",
            "compression.type=zstd",
        ])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    println!("kafka-producer-perf-test: {}", said.lines().last().unwrap_or("no output"));
    println!("{}", String::from_utf8_lossy(&output.stderr).lines().next().unwrap_or(""));
}
