//! What the start of a job and the scheduler's holds change in windows before them: random
//! histories of jobs that wait, of which the scheduler says more or less, give the same bytes
//! whether tables are updated once or between any two events.

use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use tidegate_events::Event;
use tidegate_events::v1::{JobEvent, JobEventKind, NodeEvent, NodeEventKind};
use tidegate_lake::pipeline::{Plan, shipped};
use tidegate_lake::testing::equivalence::{Delivery, ViewSelection, tables_after};
use tidegate_lake::testing::with_dependencies;
use url::Url;

use crate::equivalence::seeds;
use crate::histories::{envelope, job_event, sealed};

/// 2023-11-14 23:20:00 UTC: midnight is in between.
const START_MS: i64 = 1_700_004_000_000;
const MINUTE_MS: i64 = 60_000;
const END_MS: i64 = START_MS + 80 * MINUTE_MS;
const NODES: [&str; 2] = ["n0", "n1"];
const GPUS_PER_NODE: u64 = 8;

fn history(rng: &mut ChaCha8Rng) -> Vec<Event> {
    let mut events = vec![Event::Job(job_event("c", "", JobEventKind::Observed, END_MS))];
    for node in NODES {
        let of_node = |kind: NodeEventKind| NodeEvent {
            envelope: envelope("c", START_MS),
            kind: kind.into(),
            node: node.into(),
            ..NodeEvent::default()
        };
        events.push(Event::Node(NodeEvent {
            pool: Some("p".into()),
            gpu_model: Some("h100".into()),
            gpus_milli: Some(GPUS_PER_NODE * 1_000),
            ..of_node(NodeEventKind::NodeRegistered)
        }));
        events.push(Event::Node(of_node(NodeEventKind::CollectorStarted)));
    }
    (0..8).for_each(|number| job(rng, number, &mut events));
    sealed(events)
}

/// Where an attempt runs.
#[derive(Clone)]
struct Place {
    nodes: Vec<&'static str>,
    gpus_per_node: u64,
}

impl Place {
    fn any(rng: &mut ChaCha8Rng) -> Self {
        let nodes = [vec!["n0"], vec!["n1"], NODES.to_vec()].choose(rng).unwrap().clone();
        Self { nodes, gpus_per_node: rng.random_range(1..=4) }
    }

    fn gpus_milli(&self) -> u64 {
        self.nodes.len() as u64 * self.gpus_per_node * 1_000
    }
}

fn job(rng: &mut ChaCha8Rng, number: usize, events: &mut Vec<Event>) {
    let id = format!("j{number}");
    let mut place = Place::any(rng);
    let mut at_ms = rng.random_range(START_MS..END_MS - 40 * MINUTE_MS);
    let described = |kind, at_ms| JobEvent {
        team: Some(format!("t{}", number % 2)),
        user_name: Some("u".into()),
        pool: Some("p".into()),
        ..job_event("c", &id, kind, at_ms)
    };
    let asked = place.gpus_milli();
    events.push(Event::Job(JobEvent {
        gpus_milli: rng.random_bool(0.8).then_some(asked),
        team: rng.random_bool(0.9).then(|| format!("t{}", number % 2)),
        ..described(JobEventKind::Submitted, at_ms)
    }));
    if rng.random_bool(0.7) {
        events.push(Event::Job(JobEvent {
            reason: Some((*["Resources", "QOSMaxGRESPerUser"].choose(rng).unwrap()).into()),
            priority: rng.random_bool(0.5).then_some(number as i64),
            asked_node_count: rng.random_bool(0.8).then_some(place.nodes.len() as u32),
            asked_gpus_per_node_milli: rng.random_bool(0.8).then_some(place.gpus_per_node * 1_000),
            ..job_event("c", &id, JobEventKind::Waiting, at_ms + 5_000)
        }));
    }
    at_ms += rng.random_range(6_000..30 * MINUTE_MS);
    for attempt in 0..rng.random_range(1..3_i64) {
        let end_ms = at_ms + rng.random_range(2 * MINUTE_MS..25 * MINUTE_MS);
        events.push(Event::Job(JobEvent {
            attempt_id: Some(attempt),
            gpus_milli: rng.random_bool(0.9).then(|| place.gpus_milli()),
            gpu_model: rng.random_bool(0.6).then(|| "h100".into()),
            nodes: Some(place.nodes.join(",")),
            node_count: Some(place.nodes.len() as u32),
            ..described(JobEventKind::Started, at_ms)
        }));
        if rng.random_bool(0.3) {
            events.push(Event::Job(JobEvent {
                attempt_id: Some(attempt),
                step_id: Some("0".into()),
                nodes: Some("n0".into()),
                ..job_event("c", &id, JobEventKind::Started, at_ms + 30_000)
            }));
        }
        devices(rng, (&id, attempt), &place, (at_ms, end_ms), events);
        if end_ms > END_MS {
            return;
        }
        let state = *["COMPLETED", "REQUEUED", "RESIZED"].choose(rng).unwrap();
        events.push(Event::Job(JobEvent {
            attempt_id: Some(attempt),
            final_state: Some(state.into()),
            ..described(JobEventKind::Ended, end_ms)
        }));
        if state == "COMPLETED" {
            return;
        }
        (at_ms, place) = match state {
            "RESIZED" => (end_ms, Place::any(rng)),
            _ => (end_ms + rng.random_range(1_000..15 * MINUTE_MS), place),
        };
    }
}

/// What agents saw of the devices of an attempt, and what the scheduler says of them, at once or
/// minutes later.
fn devices(
    rng: &mut ChaCha8Rng,
    (id, attempt): (&str, i64),
    place: &Place,
    (from_ms, to_ms): (i64, i64),
    events: &mut Vec<Event>,
) {
    let (seen, held) = (rng.random_bool(0.5), rng.random_bool(0.7));
    let later_ms = if rng.random_bool(0.4) { rng.random_range(1_000..to_ms - from_ms) } else { 0 };
    for node in &place.nodes {
        for gpu in 0..place.gpus_per_node as u32 {
            let hold = |by: &str, kind, at_ms| JobEvent {
                hold_id: Some(format!("{by}/{id}/{attempt}/{node}/{gpu}")),
                hold_evidence: Some(by.into()),
                node: Some((*node).into()),
                gpu_index: Some(gpu),
                ..job_event("c", id, kind, at_ms)
            };
            if seen {
                events.push(Event::Job(JobEvent {
                    hold_quality: Some("UNKNOWN".into()),
                    ..hold("process", JobEventKind::DeviceHeld, from_ms + 1_500)
                }));
            }
            if held {
                let exact = |kind, at_ms| JobEvent {
                    attempt_id: Some(attempt),
                    hold_quality: Some("EXACT".into()),
                    ..hold("slurm", kind, at_ms)
                };
                events.push(Event::Job(exact(JobEventKind::DeviceHeld, from_ms + later_ms)));
                events.push(Event::Job(exact(JobEventKind::DeviceReleased, to_ms)));
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn tables_updated_between_waits_and_starts_are_those_of_one_shot() {
    let names = ["ledger_1d", "pending_days", "first_in_line", "fragmentation", "quota_use"];
    let tables = names.map(str::to_owned).to_vec();
    let plan = Plan::compile(with_dependencies(shipped(), tables)).await.unwrap();
    let mut minutes = 0;
    for seed in 0..seeds() {
        let events = history(&mut ChaCha8Rng::seed_from_u64(seed));
        let mut first = None;
        let others = [Delivery::RandomCuts, Delivery::RandomCuts, Delivery::KilledAndResumed];
        for (number, delivery) in (0..).zip([Delivery::OneShot].into_iter().chain(others)) {
            let folder = tempfile::tempdir().unwrap();
            let root = Url::from_directory_path(folder.path()).unwrap();
            let views = ViewSelection::Only("no view");
            let tables =
                tables_after(&plan, &root, &events, delivery, 100 * seed + number, views).await.unwrap();
            let Some(expected) = &first else {
                minutes += tables["device_ledger_1m"].num_rows();
                first = Some(tables);
                continue;
            };
            for (name, rows) in &tables {
                assert_eq!(rows, &expected[name], "seed {seed}, {delivery:?} {number}: {name}");
            }
        }
    }
    assert!(minutes > 500, "the ledger has {minutes} rows of minutes");
}
