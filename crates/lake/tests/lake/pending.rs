//! Why jobs wait: the stored pieces of `pending` are what its definition as one view over all
//! history gives, for random histories and every delivery.

use std::fs;
use std::path::Path;

use arrow::array::{AsArray, RecordBatch};
use arrow::datatypes::{Int64Type, TimestampMicrosecondType};
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use tidegate_events::Event;
use tidegate_events::v1::{
    CapacityEvent, CapacityEventKind, JobEvent, JobEventKind, NodeEvent, NodeEventKind,
};
use tidegate_lake::pipeline::{Pipeline, Plan};
use tidegate_lake::testing::equivalence::{Delivery, ViewSelection, tables_after};
use tidegate_lake::testing::with_dependencies;
use url::Url;

use crate::equivalence::{deliveries, seeds};
use crate::histories::{envelope, job_event, sealed};

/// 2023-11-14 16:00 UTC.
pub const START_MS: i64 = 1_699_977_600_000;
const HOUR_MS: i64 = 3_600_000;
/// The last day is still open when the history ends.
const HOURS: i64 = 77;
pub const END_MS: i64 = START_MS + HOURS * HOUR_MS;
const JOBS: usize = 40;
/// Nodes with their pools and GPUs. Pools a and b share n3.
const NODES: [(&str, &str, u64); 5] =
    [("n1", "a", 8), ("n2", "a", 8), ("n3", "a,b", 4), ("n4", "b", 8), ("n5", "c", 2)];
const REASONS: [&str; 9] = [
    "Resources",
    "Resources",
    "Priority",
    "Priority",
    "AssocGrpGRES",
    "Dependency",
    "BeginTime",
    "ReqNodeNotAvail",
    "SomethingNew",
];

/// Three days of a small cluster. Jobs wait over midnights, with and without reasons, priorities,
/// shapes and pools, and are requeued; nodes drain and come back; quotas change.
pub struct History {
    rng: ChaCha8Rng,
    events: Vec<Event>,
}

impl History {
    pub fn events(seed: u64) -> Vec<Event> {
        let mut history = Self { rng: ChaCha8Rng::seed_from_u64(seed), events: Vec::new() };
        for (node, pools, gpus) in NODES {
            // Every third history has a node that serves all pools.
            let pools = if node == "n2" && seed % 3 == 2 { None } else { Some(pools) };
            history.node(node, pools, gpus);
        }
        for _ in 0..8 {
            history.quota();
        }
        for number in 0..JOBS {
            history.job(number);
        }
        history.events.push(Event::Job(job_event("c", "", JobEventKind::Observed, END_MS)));
        sealed(history.events)
    }

    /// Whole minutes, so that changes coincide.
    fn time(&mut self, from_hour: i64, to_hour: i64) -> i64 {
        START_MS + self.rng.random_range(from_hour * 60..to_hour * 60) * 60_000
    }

    fn node(&mut self, node: &str, pools: Option<&str>, gpus: u64) {
        let event = |kind: NodeEventKind, at: i64, state: Option<&str>| {
            let registers = kind == NodeEventKind::NodeRegistered;
            Event::Node(NodeEvent {
                envelope: envelope("c", at),
                kind: kind.into(),
                node: node.into(),
                pool: pools.filter(|_| registers).map(str::to_owned),
                gpu_model: registers.then(|| "H100".into()),
                gpus_milli: registers.then_some(gpus * 1_000),
                state: state.map(str::to_owned),
                ..NodeEvent::default()
            })
        };
        self.events.push(event(NodeEventKind::NodeRegistered, START_MS, None));
        for _ in 0..self.rng.random_range(0..6) {
            let at = self.time(0, HOURS);
            let state = *["IDLE", "DOWN*", "IDLE+DRAIN", "MIXED"].choose(&mut self.rng).unwrap();
            self.events.push(event(NodeEventKind::StateChanged, at, Some(state)));
        }
        // All of pool c may be gone for days.
        if node == "n5" || node == "n1" {
            let at = self.time(0, HOURS);
            self.events.push(event(NodeEventKind::NodeRemoved, at, None));
            if self.rng.random_bool(0.5) {
                let back = at + self.rng.random_range(0..50) * HOUR_MS;
                self.events.push(event(NodeEventKind::NodeRegistered, back.min(END_MS), None));
            }
        }
    }

    fn quota(&mut self) {
        let at = self.time(0, HOURS);
        let kind = *[CapacityEventKind::QuotaSet, CapacityEventKind::LimitSet].choose(&mut self.rng).unwrap();
        self.events.push(Event::Capacity(CapacityEvent {
            envelope: envelope("c", at),
            kind: kind.into(),
            owner: (*["t0", "t1", "qos/high"].choose(&mut self.rng).unwrap()).into(),
            pool: self.rng.random_bool(0.4).then(|| "a".into()),
            gpus_milli: self.rng.random_bool(0.9).then(|| self.rng.random_range(0..4) * 4_000),
            ..CapacityEvent::default()
        }));
    }

    fn job(&mut self, number: usize) {
        let id = format!("j{number}");
        let mut time = self.time(0, HOURS - 2);
        let mut known = job_event("c", &id, JobEventKind::Submitted, time);
        let gpus = *[0, 500, 1_000, 2_000, 4_000, 8_000, 16_000, 64_000].choose(&mut self.rng).unwrap();
        known.gpus_milli = self.rng.random_bool(0.95).then_some(gpus);
        known.team = self.rng.random_bool(0.9).then(|| format!("t{}", self.rng.random_range(0..3)));
        known.qos = self.rng.random_bool(0.3).then(|| "high".into());
        known.user_name = Some(format!("u{}", self.rng.random_range(0..3)));
        known.pool =
            (["a", "b", "c", "d", ""].choose(&mut self.rng)).filter(|p| !p.is_empty()).map(|p| (*p).into());
        known.priority = self.rng.random_bool(0.5).then(|| self.rng.random_range(0..4));
        self.events.push(Event::Job(known.clone()));
        if self.rng.random_bool(0.3) {
            let at = time + self.rng.random_range(0..180) * 60_000;
            self.push(&known, JobEventKind::Eligible, at, |_| {});
        }
        for attempt in 0..self.rng.random_range(0..3_i64) {
            let wait = self.rng.random_range(0..40 * 60) * 60_000;
            self.reports(&known, time, time + wait);
            time += wait;
            let nodes: &[&str] = if self.rng.random_bool(0.3) { &[] } else { &["n1", "n2", "n3", "n4"] };
            let node = nodes.choose(&mut self.rng).copied();
            self.push(&known, JobEventKind::Started, time, |event| {
                event.attempt_id = Some(attempt);
                event.nodes = node.map(str::to_owned);
                event.node_count = Some(1);
            });
            if self.rng.random_bool(0.1) {
                return;
            }
            time += self.rng.random_range(0..10 * 60) * 60_000;
            let state = *["COMPLETED", "REQUEUED", "REQUEUED"].choose(&mut self.rng).unwrap();
            self.push(&known, JobEventKind::Ended, time, |event| {
                event.attempt_id = Some(attempt);
                event.final_state = Some(state.into());
            });
            if state == "COMPLETED" {
                return;
            }
        }
        self.reports(&known, time, END_MS);
        if self.rng.random_bool(0.2) {
            let at = time + self.rng.random_range(0..60) * HOUR_MS;
            self.push(&known, JobEventKind::Ended, at, |event| {
                event.final_state = Some("CANCELLED".into());
            });
        }
    }

    /// What the scheduler says while the job waits.
    fn reports(&mut self, known: &JobEvent, from: i64, to: i64) {
        for _ in 0..self.rng.random_range(0..4) {
            let at = from + self.rng.random_range(0..=(to - from).max(0) / 60_000) * 60_000;
            let reason = *REASONS.choose(&mut self.rng).unwrap();
            let priority = self.rng.random_bool(0.4).then(|| self.rng.random_range(0..4));
            let gpus = known.gpus_milli.unwrap_or(0);
            let nodes = self.rng.random_bool(0.4).then_some(if gpus >= 8_000 { gpus / 8_000 } else { 1 });
            self.push(known, JobEventKind::Waiting, at, |event| {
                event.reason = Some(reason.into());
                event.priority = priority;
                event.asked_node_count = nodes.map(|nodes| nodes as u32);
                event.asked_gpus_per_node_milli = nodes.map(|nodes| gpus / nodes);
            });
        }
    }

    fn push(&mut self, known: &JobEvent, kind: JobEventKind, at: i64, set: impl Fn(&mut JobEvent)) {
        let mut event = job_event("c", &known.job_id, kind, at.min(END_MS));
        event.gpus_milli = known.gpus_milli.filter(|_| kind == JobEventKind::Started);
        set(&mut event);
        self.events.push(Event::Job(event));
    }
}

/// The pipelines that these tables need, with definitions over all history.
pub async fn plan(tables: &[&str]) -> Plan {
    let mut pipelines = tidegate_lake::pipeline::shipped();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/lake/pending_reference");
    for file in fs::read_dir(folder).unwrap().map(|file| file.unwrap().path()) {
        if file.extension().is_some_and(|extension| extension == "sql") {
            let name = file.file_name().unwrap().to_str().unwrap();
            pipelines.push(Pipeline::parse(name, &fs::read_to_string(&file).unwrap()).unwrap());
        }
    }
    let tables = tables.iter().map(|&table| table.to_owned()).collect();
    Plan::compile(with_dependencies(pipelines, tables)).await.unwrap()
}

pub async fn view(plan: &Plan, events: &[Event], delivery: Delivery, seed: u64, name: &str) -> RecordBatch {
    let folder = tempfile::tempdir().unwrap();
    let root = Url::from_directory_path(folder.path()).unwrap();
    let tables = tables_after(plan, &root, events, delivery, seed, ViewSelection::Only(name)).await;
    tables.unwrap_or_else(|e| panic!("seed {seed}, {delivery:?}: {e:?}")).remove(name).unwrap()
}

/// The rows that differ, as text.
pub fn differences(found: &RecordBatch, expected: &RecordBatch) -> String {
    let lines = |rows: &RecordBatch| -> Vec<String> {
        let shown = arrow::util::pretty::pretty_format_batches(std::slice::from_ref(rows)).unwrap();
        shown.to_string().lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect()
    };
    let (found, expected) = (lines(found), lines(expected));
    let only = |a: &[String], b: &[String], sign: &str| -> String {
        a.iter().filter(|line| !b.contains(line)).map(|line| format!("{sign} {line}\n")).collect()
    };
    format!("{}{}{}", found.get(1).unwrap(), only(&found, &expected, "\n+"), only(&expected, &found, "\n-"))
}

#[tokio::test(flavor = "multi_thread")]
async fn stored_pieces_are_those_of_the_view_over_all_history() {
    let plan = plan(&["pending", "pending_before"]).await;
    let (mut rows, mut over_midnight, mut constraints) = (0, 0, std::collections::BTreeSet::new());
    // One history alone has not every reason to wait.
    for seed in 0..seeds().max(2) {
        let events = History::events(seed);
        let expected = view(&plan, &events, Delivery::OneShot, seed, "pending_before").await;
        for delivery in deliveries(seed + 2) {
            let found = view(&plan, &events, delivery, seed, "pending").await;
            assert!(
                found.columns() == expected.columns(),
                "seed {seed}, {delivery:?}: \n{}",
                differences(&found, &expected)
            );
        }
        rows += expected.num_rows();
        let times = |name| expected[name].as_primitive::<TimestampMicrosecondType>().iter();
        let day = |time: i64| time.div_euclid(24 * HOUR_MS * 1_000);
        over_midnight += times("since")
            .zip(times("until"))
            .filter(|(since, until)| until.is_some_and(|until| day(since.unwrap()) != day(until)))
            .count();
        let named = expected["constraint"].as_string_view().iter().flatten();
        constraints.extend(named.map(str::to_owned));
        assert!(expected["gpu_ms_waited"].as_primitive::<Int64Type>().iter().flatten().sum::<i64>() > 0);
    }
    assert!(rows > 60 && over_midnight > 10, "{rows} rows, {over_midnight} over midnight");
    let derived = ["behind_others", "capacity_taken", "not_eligible", "quota", "not_provisioned", "not_gpus"];
    for constraint in derived {
        assert!(constraints.contains(constraint), "{constraint} does not occur in {constraints:?}");
    }
}
