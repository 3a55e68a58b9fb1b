//! What a start costs after a long history of device samples: with a snapshot it reads what came
//! since, without one everything.
//!
//! `TIDEGATE_RESTART_NODES` and `TIDEGATE_RESTART_MINUTES` choose the size; `--nocapture` prints
//! CPU seconds.

#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::sync::Arc;

use tidegate_events::v1::gpu_sample_batch::{Column, DeviceInfo};
use tidegate_events::{Event, SchemaId, v1};
use tidegate_log::{
    Batch, EmbeddedLog, EmbeddedOptions, EventLog, Producer, Record, TopicConfig, TopicPartition,
};
use tidegate_signals::{RunMode, ServiceStats, SignalService};

/// 2026-01-01T00:00:00Z, ms.
const START_MS: i64 = 1_767_225_600_000;
const NOW_MS: i64 = START_MS + 400 * 86_400_000;
/// Columns that an agent sends and the detectors use.
const COLUMNS: [(&str, i64); 6] = [
    ("sm_clock_mhz", 1_500),
    ("throttle_reasons_bits", 0),
    ("power_mw", 400_000),
    ("temperature_mc", 60_000),
    ("sm_active_ppm", 900_000),
    ("pcie_replay_count", 0),
];

fn size(name: &str, otherwise: i64) -> i64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(otherwise)
}

/// Ten seconds of a node's eight devices.
fn samples(node: i64, at_ms: i64) -> Event {
    let node = format!("n{node:04}");
    let device =
        |index: u32| DeviceInfo { uuid: format!("GPU-{node}-{index}"), index, ..DeviceInfo::default() };
    let column = |(name, value): (&str, i64)| {
        let of_device = |_| std::iter::once(value).chain(std::iter::repeat_n(0, 9));
        Column { name: name.into(), value_delta: (0..8).flat_map(of_device).collect(), ..Column::default() }
    };
    let mut event = Event::GpuSamples(v1::GpuSampleBatch {
        devices: (0..8).map(device).collect(),
        first_tick_ms: at_ms,
        tick_delta_ms: vec![1_000; 9],
        columns: COLUMNS.map(column).into(),
        node,
        ..v1::GpuSampleBatch::default()
    });
    let envelope = event.envelope_mut();
    (envelope.cluster, envelope.source) = ("c".into(), "test".into());
    (envelope.event_time_ms, envelope.observed_time_ms) = (at_ms, at_ms);
    event
}

struct Site {
    folder: tempfile::TempDir,
    log: Arc<dyn EventLog>,
    seq: u64,
}

impl Site {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let log = EmbeddedLog::open(folder.path().join("log"), EmbeddedOptions::default()).unwrap();
        for schema in SchemaId::ALL {
            let one = TopicConfig { partitions: 1, retain_ms: None, retain_bytes: None };
            log.create_topic(schema.topic(), one).unwrap();
        }
        Self { folder, log: Arc::new(log), seq: 0 }
    }

    /// Appends samples of all nodes for these minutes. Returns the number of records.
    fn live_through(&mut self, nodes: i64, minutes: std::ops::Range<i64>) -> u64 {
        let at = TopicPartition { topic: SchemaId::GpuSampleBatch.topic().into(), partition: 0 };
        let mut appended = 0;
        for at_ms in (START_MS + minutes.start * 60_000..START_MS + minutes.end * 60_000).step_by(10_000) {
            let records: Vec<Record> =
                (0..nodes).map(|node| Record::from(samples(node, at_ms).record().unwrap())).collect();
            let count = records.len() as u64;
            let producer = Producer { source: "test".into(), epoch: 0 };
            self.log.append(&at, Batch { producer, first_seq: self.seq, records }).unwrap();
            self.seq += count;
            appended += count;
        }
        appended
    }

    fn start(&self, snapshots: &Path) -> (ServiceStats, SignalService, f64) {
        let begun_s = cpu_s();
        let log = self.log.clone();
        let mut service = SignalService::with_snapshots(log, snapshots, "tidegate-signals").unwrap();
        let stats = service.catch_up(RunMode::Live, NOW_MS).unwrap();
        (stats, service, cpu_s() - begun_s)
    }
}

/// CPU seconds of this thread.
fn cpu_s() -> f64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    text.split(' ').next().unwrap().parse::<f64>().unwrap() / 1e9
}

#[test]
fn a_start_reads_what_came_since_the_snapshot_at_any_history() {
    let nodes = size("TIDEGATE_RESTART_NODES", 20);
    let whole = size("TIDEGATE_RESTART_MINUTES", 40);
    let mut site = Site::new();
    let snapshots = site.folder.path().join("snapshots");
    let (mut read, mut lived, mut pending) = (Vec::new(), 0, 0);
    // Two histories, the second twice as long; ten minutes come after each snapshot.
    for minutes in [whole / 2, whole] {
        pending += site.live_through(nodes, lived..minutes);
        let (first, mut service, _) = site.start(&snapshots);
        assert_eq!(first.read, pending);
        let begun_s = cpu_s();
        service.save(NOW_MS).unwrap();
        let saved_s = cpu_s() - begun_s;
        drop(service);
        let since = site.live_through(nodes, minutes..minutes + 10);
        (lived, pending) = (minutes + 10, since);
        let (with, _, with_s) = site.start(&snapshots);
        assert_eq!(with.read, since, "a start reads what came since, whatever came before");
        let (without, _, without_s) = site.start(&site.folder.path().join(format!("none-{minutes}")));
        assert_eq!(without.read, (nodes * (minutes + 10) * 6) as u64, "without one, everything");
        read.push((with.read, without.read));
        let snapshot = tidegate_log::snapshot::stored(&snapshots).unwrap().pop().unwrap();
        println!(
            "{nodes} nodes, {minutes} + 10 minutes: start with a snapshot reads {} records in {with_s:.2} CPU s, without {} in \
             {without_s:.2}; the snapshot has {} bytes and takes {saved_s:.3} CPU s",
            with.read, without.read, snapshot.bytes
        );
    }
    assert_eq!(read[0].0, read[1].0, "a history twice as long costs the same");
    assert!(read[1].1 > read[0].1);
}
