//! What a process takes that reads more events of nodes than its memory holds: all of them within
//! the 20 s for which they wait.

#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use tidegate_events::{Event, SchemaId, v1};
use tidegate_log::{Batch, EmbeddedLog, EmbeddedOptions, EventLog, Producer, TopicConfig, TopicPartition};
use tidegate_signals::{RunMode, SignalService};

/// 2026-01-01T00:00:00Z, ms.
const START_MS: i64 = 1_767_225_600_000;
const EVENTS: i64 = 200_000;
const LIMIT: usize = 32 << 20;
/// Log, its caches and the program itself.
const BASE_MIB: u64 = 64;
/// Environment variable with the folder of the log, for the process that reads it.
const FOLDER: &str = "TIDEGATE_TEST_FLOOD";

fn open(folder: &Path) -> EmbeddedLog {
    EmbeddedLog::open(folder, EmbeddedOptions::default()).unwrap()
}

/// A fault of one of a hundred nodes, 20 of them in each millisecond.
fn fault(number: i64) -> Event {
    let mut event = Event::Node(v1::NodeEvent {
        kind: v1::NodeEventKind::Xid.into(),
        node: format!("n{}", number % 100),
        gpu_uuid: Some(format!("GPU-{number}")),
        xid: Some(79),
        ..v1::NodeEvent::default()
    });
    let envelope = event.envelope_mut();
    (envelope.cluster, envelope.source) = ("c".into(), "test".into());
    envelope.event_time_ms = START_MS + number / 20;
    envelope.observed_time_ms = envelope.event_time_ms;
    event
}

fn flood(log: &EmbeddedLog) {
    for schema in SchemaId::ALL {
        let one = TopicConfig { partitions: 1, retain_ms: None, retain_bytes: None };
        log.create_topic(schema.topic(), one).unwrap();
    }
    let at = TopicPartition { topic: SchemaId::NodeEvent.topic().into(), partition: 0 };
    let numbers: Vec<i64> = (0..EVENTS).collect();
    for numbers in numbers.chunks(10_000) {
        let records = numbers.iter().map(|number| fault(*number).record().unwrap().into()).collect();
        let producer = Producer { source: "test".into(), epoch: 0 };
        log.append(&at, Batch { producer, first_seq: numbers[0] as u64, records }).unwrap();
    }
}

/// Most memory that this process has had, MiB.
fn peak_mib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    peak.trim().trim_end_matches(" kB").parse::<u64>().unwrap() / 1024
}

/// Reads the log and prints what that took.
fn read(folder: &Path) {
    let mut service = SignalService::new(Arc::new(open(folder))).unwrap().limited_to(LIMIT);
    let stats = service.catch_up(RunMode::Live, START_MS + 86_400_000).unwrap();
    let memory = stats.memory;
    println!("{} {} {} {} peak", stats.read, memory.held_bytes, memory.early, peak_mib());
}

#[test]
fn events_that_wait_take_no_more_than_the_limit() {
    // It starts itself once more: that process reads, and its memory is the one that counts.
    if let Some(folder) = std::env::var_os(FOLDER) {
        return read(folder.as_ref());
    }
    let folder = tempfile::tempdir().unwrap();
    flood(&open(folder.path()));
    let reader = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "events_that_wait_take_no_more_than_the_limit", "--nocapture"])
        .env(FOLDER, folder.path())
        .output()
        .unwrap();
    let said = String::from_utf8(reader.stdout).unwrap();
    let line = said.lines().find_map(|line| line.strip_suffix(" peak")).unwrap_or_else(|| panic!("{said}"));
    let numbers: Vec<u64> = line.split(' ').rev().take(4).map(|word| word.parse().unwrap()).collect();
    let [peak_mib, early, held, read] = numbers[..] else { panic!("{line}") };
    assert_eq!(read, EVENTS as u64);
    assert!(held <= LIMIT as u64 && early > 0, "{line}");
    assert!(peak_mib <= BASE_MIB + (LIMIT >> 20) as u64, "{peak_mib} MiB for {early} events applied early");
}
