//! The ledger of random histories: complete in every minute and on every node, and the same for
//! every delivery.

use std::collections::BTreeMap;

use arrow::array::{Array, AsArray, RecordBatch};
use arrow::datatypes::{Int64Type, TimestampMicrosecondType};
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use tidegate_events::Event;
use tidegate_events::v1::gpu_sample_batch::{Column, DeviceInfo};
use tidegate_events::v1::{GpuSampleBatch, JobEvent, JobEventKind, NodeEvent, NodeEventKind, StepReport};
use tidegate_lake::pipeline::{Plan, shipped};
use tidegate_lake::testing::equivalence::{ViewSelection, tables_after};
use tidegate_lake::testing::with_dependencies;
use url::Url;

use crate::equivalence::{deliveries, seeds};
use crate::histories::{envelope, job_event, sealed};

const START_MS: i64 = 1_700_000_040_000;
const MINUTE_MS: i64 = 60_000;
const MINUTES: i64 = 50;
const END_MS: i64 = START_MS + MINUTES * MINUTE_MS;
const NODES: [(&str, u64); 2] = [("n1", 4), ("n2", 2)];

/// Jobs that hold devices one by one or by node, sometimes a device that another job holds; steps
/// that report more or less than was held; nodes that drain, fail and leave; samples with gaps.
/// Holds the expected capacity beside them.
struct History {
    rng: ChaCha8Rng,
    events: Vec<Event>,
    /// Per node: times from which on it has so many GPUs.
    capacity: BTreeMap<&'static str, Vec<(i64, u64)>>,
    /// First minute in which an agent ran.
    watched_from: i64,
}

impl History {
    fn new(seed: u64) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let watched_from = rng.random_range(0..MINUTES / 2);
        let mut history = Self { rng, events: Vec::new(), capacity: BTreeMap::new(), watched_from };
        for (node, later) in [("n1", 20_000), ("n2", 5 * MINUTE_MS)] {
            history.events.push(Event::Node(NodeEvent {
                envelope: envelope("c", START_MS + watched_from * MINUTE_MS + later),
                kind: NodeEventKind::CollectorStarted.into(),
                node: node.into(),
                ..NodeEvent::default()
            }));
        }
        for (node, gpus) in NODES {
            history.node(node, gpus);
            history.samples(node, gpus);
        }
        for number in 0..7 {
            history.job(number);
        }
        history.events.push(Event::Job(job_event("c", "", JobEventKind::Observed, END_MS)));
        history
    }

    fn time(&mut self) -> i64 {
        self.rng.random_range(START_MS + MINUTE_MS..END_MS - 10 * MINUTE_MS)
    }

    fn node(&mut self, node: &'static str, gpus: u64) {
        let mut tell = |kind: NodeEventKind, time: i64, gpus: Option<u64>, state: Option<&str>| {
            self.events.push(Event::Node(NodeEvent {
                envelope: envelope("c", time),
                kind: kind.into(),
                node: node.into(),
                pool: gpus.map(|_| "p".into()),
                gpus_milli: gpus.map(|gpus| gpus * 1000),
                state: state.map(str::to_owned),
                ..NodeEvent::default()
            }));
        };
        let mut time = START_MS + self.rng.random_range(0..MINUTE_MS);
        tell(NodeEventKind::NodeRegistered, time, Some(gpus), None);
        let mut capacity = vec![(time, gpus)];
        for _ in 0..6 {
            time += self.rng.random_range(1_000..9 * MINUTE_MS);
            match self.rng.random_range(0..5) {
                0 => {
                    tell(NodeEventKind::NodeRemoved, time, None, None);
                    capacity.push((time, 0));
                }
                1 => {
                    tell(NodeEventKind::NodeRegistered, time, Some(gpus), None);
                    capacity.push((time, gpus));
                }
                _ => {
                    let state =
                        *["IDLE", "DOWN*", "IDLE+DRAIN", "MIXED", "FAIL"].choose(&mut self.rng).unwrap();
                    tell(NodeEventKind::StateChanged, time, None, Some(state));
                }
            }
        }
        self.capacity.insert(node, capacity);
    }

    fn samples(&mut self, node: &str, gpus: u64) {
        for minute in 0..MINUTES {
            if self.rng.random_bool(0.2) {
                continue;
            }
            let devices = (0..gpus as usize).filter(|_| self.rng.random_bool(0.9)).collect::<Vec<_>>();
            let mut column = |name: &str, values: &[i64]| {
                let mut column = Column { name: name.into(), ..Column::default() };
                for _ in &devices {
                    let values: Vec<i64> = (0..6).map(|_| *values.choose(&mut self.rng).unwrap()).collect();
                    column.value_delta.push(values[0]);
                    column.value_delta.extend(values.windows(2).map(|pair| pair[1] - pair[0]));
                }
                column
            };
            let columns = vec![
                column("interval_us", &[10_000_000]),
                column("gpu_util_ppm", &[0, 0, 1_000_000]),
                column("process_count", &[0, 1]),
            ];
            let info = |device: &usize| DeviceInfo {
                uuid: format!("GPU-{node}-{device}"),
                index: *device as u32,
                ..DeviceInfo::default()
            };
            let first_tick_ms = START_MS + minute * MINUTE_MS;
            self.events.push(Event::GpuSamples(GpuSampleBatch {
                envelope: envelope("c", first_tick_ms),
                node: node.into(),
                devices: devices.iter().map(info).collect(),
                first_tick_ms,
                tick_delta_ms: vec![10_000; 5],
                columns,
                processes: Vec::new(),
            }));
        }
    }

    fn job(&mut self, number: usize) {
        let id = format!("j{number}");
        let (node, gpus) = *NODES.choose(&mut self.rng).unwrap();
        let gpus_held = self.rng.random_range(1..=gpus);
        let mut time = self.time();
        for attempt in 0..self.rng.random_range(1..3) {
            let end = (time + self.rng.random_range(1_000..20 * MINUTE_MS)).min(END_MS - 2_000);
            let by_device = self.rng.random_bool(0.6);
            let event = |kind, at: i64| JobEvent {
                attempt_id: Some(attempt),
                team: Some(format!("t{}", number % 2)),
                pool: Some("p".into()),
                gpus_milli: Some(gpus_held * 1000 - if number.is_multiple_of(3) { 333 } else { 0 }),
                nodes: Some(node.into()),
                node_count: Some(1),
                ..job_event("c", &id, kind, at)
            };
            self.events.push(Event::Job(event(JobEventKind::Started, time)));
            let is_open = attempt > 0 && self.rng.random_bool(0.3);
            if !is_open {
                let ended =
                    JobEvent { final_state: Some("REQUEUED".into()), ..event(JobEventKind::Ended, end) };
                self.events.push(Event::Job(ended));
            }
            for gpu in 0..if by_device { gpus_held } else { 0 } {
                // An epilog comes late or never.
                let released = end + self.rng.random_range(0..3) * 40_000;
                let is_lost = is_open || self.rng.random_bool(0.2);
                for (kind, at) in [(JobEventKind::DeviceHeld, time), (JobEventKind::DeviceReleased, released)]
                {
                    if is_lost && kind == JobEventKind::DeviceReleased {
                        continue;
                    }
                    self.events.push(Event::Job(JobEvent {
                        attempt_id: Some(attempt),
                        hold_id: Some(format!("{id}/{attempt}/{gpu}")),
                        hold_evidence: Some("slurm".into()),
                        node: Some(node.into()),
                        gpu_index: Some(gpu as u32),
                        ..job_event("c", &id, kind, at)
                    }));
                }
            }
            if self.rng.random_bool(0.6) {
                self.steps(&id, node, time, end);
            }
            time = end + self.rng.random_range(0..3 * MINUTE_MS);
            if time > END_MS - 5 * MINUTE_MS {
                return;
            }
        }
    }

    fn steps(&mut self, job: &str, node: &str, from: i64, to: i64) {
        let mut time = from + self.rng.random_range(0..MINUTE_MS);
        let ranks = self.rng.random_range(1..4);
        for step in 0.. {
            let duration_ms = self.rng.random_range(1_000..40_000);
            if time + duration_ms > to {
                return;
            }
            for rank in 0..ranks {
                let mut part = || {
                    self.rng
                        .random_bool(0.5)
                        .then(|| self.rng.random_range(0..400_000 * duration_ms as u64 / 1000))
                };
                self.events.push(Event::Step(StepReport {
                    envelope: envelope("c", time),
                    job_id: job.into(),
                    rank,
                    step,
                    duration_us: duration_ms as u64 * 1000,
                    checkpoint_us: part(),
                    data_wait_us: part(),
                    communication_us: part(),
                    node: Some(node.into()),
                    ..StepReport::default()
                }));
            }
            time += duration_ms;
        }
    }

    /// GPU-ms that the node has in the minute, by what was registered.
    fn provisioned(&self, node: &str, minute: i64) -> i64 {
        let (low, high) = (START_MS + minute * MINUTE_MS, START_MS + (minute + 1) * MINUTE_MS);
        let steps = &self.capacity[node];
        let ends = steps.iter().skip(1).map(|(time, _)| *time).chain([i64::MAX]);
        let parts = steps
            .iter()
            .zip(ends)
            .map(|((from, gpus), to)| (to.min(high) - from.max(&low).to_owned()).max(0) * *gpus as i64);
        parts.sum()
    }
}

/// GPU-ms of the ledger by node and minute. The node is empty where the ledger names none.
fn sums(ledger: &RecordBatch) -> BTreeMap<(String, i64), i64> {
    let starts = ledger.column_by_name("window_start").unwrap().as_primitive::<TimestampMicrosecondType>();
    let nodes = ledger.column_by_name("node").unwrap().as_string_view();
    let classes = ledger.column_by_name("class").unwrap().as_string_view();
    let gpu_ms = ledger.column_by_name("gpu_ms").unwrap().as_primitive::<Int64Type>();
    let mut sums = BTreeMap::new();
    for row in 0..ledger.num_rows() {
        let is_imbalance = classes.value(row) == "imbalance";
        assert!(gpu_ms.value(row) > 0 || is_imbalance && gpu_ms.value(row) < 0, "a class holds time");
        let minute = (starts.value(row) / 1000 - START_MS) / MINUTE_MS;
        let node = if nodes.is_valid(row) { nodes.value(row) } else { "" };
        *sums.entry((node.to_owned(), minute)).or_default() += gpu_ms.value(row);
    }
    sums
}

/// A node that is not registered has what is held there, so the classes may add up to more than was
/// registered.
fn check(found: i64, registered: i64, whole: i64, what: &str) {
    if registered == whole {
        assert_eq!(found, registered, "{what}");
    } else {
        assert!(found >= registered, "{what}: {found} of {registered}");
    }
}

/// Sum of `gpu_ms` of a table.
fn total(rows: &RecordBatch) -> i64 {
    rows.column_by_name("gpu_ms").unwrap().as_primitive::<Int64Type>().iter().flatten().sum()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_ledger_is_complete_and_the_same_for_every_delivery() {
    let pipelines = with_dependencies(shipped(), vec!["ledger_1m".into(), "ledger_1d".into()]);
    let plan = Plan::compile(pipelines).await.unwrap();
    for seed in 0..seeds() {
        let history = History::new(seed);
        let events = sealed(history.events.clone());
        let mut first: Option<RecordBatch> = None;
        for delivery in deliveries(seed + 3) {
            let folder = tempfile::tempdir().unwrap();
            let root = Url::from_directory_path(folder.path()).unwrap();
            let tables =
                tables_after(&plan, &root, &events, delivery, seed, ViewSelection::All).await.unwrap();
            let ledger = &tables["ledger_1m"];
            match &first {
                Some(expected) => {
                    assert_eq!(ledger, expected, "seed {seed}: {delivery:?} differs from one shot")
                }
                None => first = Some(ledger.clone()),
            }
            for level in ["ledger_1h", "ledger_1d"] {
                assert_eq!(total(&tables[level]), total(ledger), "seed {seed}, {delivery:?}: {level}");
            }
        }
        let sums = sums(&first.unwrap());
        for minute in 0..history.watched_from {
            let expected: i64 = NODES.iter().map(|(node, _)| history.provisioned(node, minute)).sum();
            let found: i64 = sums.iter().filter(|((_, at), _)| *at == minute).map(|(_, ms)| ms).sum();
            let whole: i64 = NODES.iter().map(|(_, gpus)| *gpus as i64 * MINUTE_MS).sum();
            // Parts of a GPU are counted in whole ms up to a time, so the part of a row in a minute
            // may be a ms more or less.
            let rounded = if (found - expected).abs() < 10 { expected } else { found };
            check(rounded, expected, whole, &format!("seed {seed}, minute {minute}, which no agent watched"));
        }
        for (node, gpus) in NODES {
            for minute in history.watched_from..MINUTES {
                let expected = history.provisioned(node, minute);
                let found = sums.get(&(node.to_owned(), minute)).copied().unwrap_or(0);
                check(
                    found,
                    expected,
                    gpus as i64 * MINUTE_MS,
                    &format!("seed {seed}, {node}, minute {minute}"),
                );
            }
        }
    }
}
