//! Other programs read our topics, and write what we read: Kafka's own tools, kcat, and Python with
//! `schemas/` alone.

use std::collections::HashMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use bytes::Bytes;
use rdkafka::ClientConfig;
use rdkafka::producer::{BaseProducer, BaseRecord, Producer as _};
use serde_json::{Value, json};
use tidegate_events::{Event, v1};
use tidegate_log::{
    Batch, EventLog, KafkaLog, KafkaOptions, Producer, Record, TopicConfig, TopicPartition, partition_for,
};
use tidegate_testing::conformance::read_all;
use tidegate_testing::needs;

use crate::broker;
use crate::wire::{ONE_PARTITION, at, framed};

/// A log with three job events in its topic `jobs`.
struct Jobs {
    log: KafkaLog,
    options: KafkaOptions,
    events: Vec<Event>,
    records: Vec<Record>,
}

impl Jobs {
    fn append(servers: &str) -> Self {
        let options = broker::options(servers);
        let log = KafkaLog::open(options.clone()).unwrap();
        log.create_topic("jobs", ONE_PARTITION).unwrap();
        let mut events: Vec<_> = (0..3).map(job).collect();
        let records: Vec<_> = events.iter_mut().map(record).collect();
        let producer = Producer { source: "agent/node 1".into(), epoch: 7 };
        log.append(&at("jobs"), Batch { producer, first_seq: 0, records: records.clone() }).unwrap();
        Self { log, options, events, records }
    }

    /// The topic as Kafka knows it.
    fn topic(&self) -> String {
        format!("{}.jobs", self.options.url.prefix())
    }
}

pub fn job(seq: i64) -> Event {
    let time = 1_763_712_000_500 + seq;
    Event::Job(v1::JobEvent {
        envelope: Some(v1::Envelope {
            cluster: "prod-h100".into(),
            source: "agent/node 1".into(),
            epoch: 7,
            seq: seq.cast_unsigned(),
            event_time_ms: time,
            observed_time_ms: time + 1_250,
            ..Default::default()
        }),
        kind: v1::JobEventKind::Started.into(),
        job_id: format!("job ∞ {seq}"),
        attempt_id: Some(-seq),
        gpus_milli: Some(8_000),
        ..Default::default()
    })
}

pub fn record(event: &mut Event) -> Record {
    let sealed = event.record().unwrap();
    Record {
        key: sealed.key,
        schema: sealed.schema,
        event_time_ms: sealed.event_time_ms,
        payload: sealed.payload,
    }
}

fn script(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests").join(name)
}

/// Runs a program with `input` on its standard input and returns its output; it must succeed.
fn said(command: &mut Command, input: &[u8]) -> Vec<u8> {
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap_or_else(|error| panic!("{command:?}: {error}"));
    child.stdin.take().unwrap().write_all(input).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    output.stdout
}

/// As the tools of Kafka print bytes: what is no plain character of ASCII as `\xNN`.
fn printed(bytes: &[u8]) -> String {
    let plain = |byte: u8| byte.is_ascii_graphic() && byte != b'\\' || byte == b' ';
    bytes.iter().map(|&b| if plain(b) { char::from(b).to_string() } else { format!("\\x{b:02X}") }).collect()
}

#[test]
fn the_console_consumer_shows_keys_times_headers_and_values() {
    let Some(servers) = broker::shared() else { return };
    let jobs = Jobs::append(&servers);
    let mut command = Command::new(script("kafka/broker.sh"));
    command.args(["tool", "org.apache.kafka.tools.consumer.ConsoleConsumer"]);
    command.args(["--bootstrap-server", &servers, "--topic", &jobs.topic(), "--from-beginning"]);
    command.args(["--max-messages", "3", "--timeout-ms", "60000"]);
    command.args(["--isolation-level", "read_committed"]);
    for property in [
        "print.timestamp=true",
        "print.headers=true",
        "print.key=true",
        "value.deserializer=org.apache.kafka.common.serialization.BytesDeserializer",
    ] {
        command.args(["--formatter-property", property]);
    }
    let shown = String::from_utf8(said(&mut command, b"")).unwrap();
    let expected = jobs.records.iter().enumerate().map(|(seq, record)| {
        let (time, key) = (record.event_time_ms, str::from_utf8(&record.key).unwrap());
        let (schema, value) = (record.schema, printed(&framed(record.schema, &record.payload)));
        format!("CreateTime:{time}\tschema:{schema},source:agent/node 1,epoch:7,seq:{seq}\t{key}\t{value}")
    });
    assert_eq!(shown.lines().collect::<Vec<_>>(), expected.collect::<Vec<_>>());
}

#[test]
fn kcat_shows_keys_times_headers_and_values() {
    let Some(servers) = broker::shared() else { return };
    if !needs::can("kcat", Command::new("kcat").arg("-V")) {
        return;
    }
    let jobs = Jobs::append(&servers);
    let mut command = Command::new("kcat");
    command.args(["-b", &servers, "-C", "-t", &jobs.topic(), "-o", "beginning", "-e", "-q"]);
    command.args(["-X", "isolation.level=read_committed", "-f", "%T|%h|%k|%S|%s\n"]);
    let expected = jobs.records.iter().enumerate().flat_map(|(seq, record)| {
        let value = framed(record.schema, &record.payload);
        let key = str::from_utf8(&record.key).unwrap();
        let head = format!(
            "{}|schema={},source=agent/node 1,epoch=7,seq={seq}|{key}|{}|",
            record.event_time_ms,
            record.schema,
            value.len()
        );
        [head.as_bytes(), &value, b"\n"].concat()
    });
    assert_eq!(printed(&said(&mut command, b"")), printed(&expected.collect::<Vec<_>>()));
}

/// With the files of `schemas/` and Confluent's client: reads what we wrote, and writes what we
/// read.
#[test]
fn python_reads_and_writes_events() {
    let Some(servers) = broker::shared() else { return };
    let python = |arguments: &[&str]| {
        let mut command = Command::new("python3");
        command.arg(script("kafka/read_topic.py")).args(arguments);
        command
    };
    if !needs::can("Python with Confluent's client", &mut python(&["install"])) {
        return;
    }
    let jobs = Jobs::append(&servers);
    let read = String::from_utf8(said(&mut python(&["read", &servers, &jobs.topic()]), b"")).unwrap();
    let read: Vec<Value> = read.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(read.len(), 3);
    for (seq, found) in read.iter().enumerate() {
        let Event::Job(event) = &jobs.events[seq] else { unreachable!() };
        let envelope = event.envelope.as_ref().unwrap();
        let id = found["event"]["envelope"]["event_id"].as_str().unwrap();
        let schema = jobs.records[seq].schema;
        let mut theirs = json!({
            "key": format!("prod-h100/job ∞ {seq}"),
            "headers": { "schema": schema.to_string(), "source": "agent/node 1", "epoch": "7", "seq": seq.to_string() },
            "time_ms": envelope.event_time_ms,
            "schema": schema,
            "event": {
                // Protobuf's JSON leaves out what is zero, and writes 64 bits as text.
                "envelope": {
                    "event_id": id,
                    "cluster": "prod-h100",
                    "source": "agent/node 1",
                    "epoch": "7",
                    "seq": seq.to_string(),
                    "event_time_ms": envelope.event_time_ms.to_string(),
                    "observed_time_ms": envelope.observed_time_ms.to_string(),
                },
                "kind": "STARTED",
                "job_id": format!("job ∞ {seq}"),
                "attempt_id": (-(seq as i64)).to_string(),
                "gpus_milli": "8000",
            },
        });
        if seq == 0 {
            theirs["event"]["envelope"].as_object_mut().unwrap().remove("seq");
        }
        assert_eq!(*found, theirs);
    }

    // Back, without our headers: byte for byte the same events.
    let lines: String = read.iter().map(|line| format!("{line}\n")).collect();
    said(&mut python(&["write", &servers, &jobs.topic()]), lines.as_bytes());
    let all = read_all(&jobs.log, &at("jobs"));
    assert_eq!(all.len(), 6);
    for (stored, event) in all[3..].iter().zip(&jobs.events) {
        assert_eq!(Event::decode(stored.record.schema, &stored.record.payload).as_ref(), Ok(event));
        assert_eq!(stored.record.key, event.key());
        assert_eq!(stored.record.event_time_ms, event.event_time_ms());
    }
}

/// Kafka's Java clients by default, librdkafka if asked: all records of a key are in the partition
/// where ours are.
#[test]
fn other_producers_choose_our_partitions() {
    const PARTITIONS: u32 = 7;
    let Some(servers) = broker::shared() else { return };
    let options = broker::options(&servers);
    let log = KafkaLog::open(options.clone()).unwrap();
    log.create_topic("spread", TopicConfig { partitions: PARTITIONS, ..ONE_PARTITION }).unwrap();
    let topic = format!("{}.spread", options.url.prefix());
    let keys: Vec<_> =
        (0..100).map(|i| format!("prod-h100/job ∞ {}", "x".repeat(i % 9) + &i.to_string())).collect();

    let mut command = Command::new(script("kafka/broker.sh"));
    command.args(["tool", "org.apache.kafka.tools.ConsoleProducer", "--bootstrap-server", &servers]);
    command.args(["--topic", &topic, "--reader-property", "parse.key=true"]);
    let lines: String = keys.iter().map(|key| format!("{key}\tjava\n")).collect();
    said(&mut command, lines.as_bytes());
    let other: BaseProducer = ClientConfig::new()
        .set("bootstrap.servers", &servers)
        .set("partitioner", "murmur2_random")
        .create()
        .unwrap();
    for key in &keys {
        other.send(BaseRecord::to(&topic).key(key).payload("librdkafka")).map_err(|(e, _)| e).unwrap();
    }
    other.flush(std::time::Duration::from_secs(30)).unwrap();

    let mut found: HashMap<Bytes, Vec<(Bytes, u32)>> = HashMap::new();
    for partition in 0..PARTITIONS {
        let at = TopicPartition { topic: "spread".into(), partition };
        for stored in read_all(&log, &at) {
            found.entry(stored.record.key).or_default().push((stored.record.payload, partition));
        }
    }
    for key in &keys {
        let ours = partition_for(key.as_bytes(), PARTITIONS);
        let mut theirs = found.remove(key.as_bytes()).unwrap();
        theirs.sort();
        assert_eq!(theirs, [(Bytes::from("java"), ours), (Bytes::from("librdkafka"), ours)], "{key}");
    }
    assert!(found.is_empty(), "{found:?}");
}
