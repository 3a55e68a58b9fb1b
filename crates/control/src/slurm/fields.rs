//! Lists the facts of a cluster that can reach a plan on Slurm. `crates/sim/tests/sim/fields.rs`
//! fails if the simulator tells the planner anything else. `TIDEGATE_BLESS=1` rewrites the list.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;
use tidegate_autopilot::state::ClusterState;
use tidegate_events::v1::{self, JobEventKind, NodeEventKind};
use tidegate_events::{Event, FinalState};
use tidegate_facts::Facts;
use tidegate_slurm::NodeState;

use super::config::{OwnerConfig, ShareConfig, SlurmConfig};
use super::inventory::{Limits, SlurmNode, SlurmReservation};
use super::notes::Notes;
use super::observe::state;
use super::queue;
use super::snapshot::Snapshot;

const FIXTURE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/slurm_fields.txt");
const NOW_S: i64 = 1_000_000;

/// squeue's answer: an elastic job that runs, a gang that waits, and a job that is ending.
const QUEUE: &str = r#"{"meta": {}, "errors": [], "jobs": [
  {"job_id": 1, "name": "train", "account": "ada", "partition": "p", "qos": "normal", "priority": 7,
   "job_state": "RUNNING", "submit_time": 990000, "start_time": 996400, "resize_time": 999000,
   "nodes": "n1", "batch_host": "n1", "restart_cnt": 1, "gres_detail": ["gpu:h100:8(IDX:0-7)"],
   "tres_per_node": "gres:gpu:8", "comment": "tidegate:elastic,min=8,max=16,grow=requeue,preemptible,notice"},
  {"job_id": 2, "name": "gang", "account": "ada", "partition": "p", "job_state": "PENDING",
   "submit_time": 999000, "tres_per_job": "gres:gpu:16", "comment": "tidegate:do-not-disrupt"},
  {"job_id": 3, "name": "ends", "account": "ada", "partition": "p", "job_state": "COMPLETING",
   "submit_time": 990000, "start_time": 990000, "nodes": "n1", "tres_per_job": "gres:gpu:8"}]}"#;

fn node() -> SlurmNode {
    SlurmNode {
        gpus: 8,
        model: "h100".into(),
        partitions: vec!["p".into()],
        features: Vec::new(),
        state: NodeState::parse("IDLE+DRAIN"),
        reason: "by hand".into(),
        reason_ms: Some(998_000_000),
        comment: "tidegate:do-not-disrupt".into(),
        extra: String::new(),
    }
}

/// What collectors and signals would have written of this cluster.
fn facts() -> Facts {
    let mut facts = Facts::default();
    let mut learn = |at_s: i64, mut event: Event| {
        event.envelope_mut().event_time_ms = at_s * 1_000;
        facts.observe(&event);
    };
    let job = |kind: JobEventKind, id: &str| v1::JobEvent {
        kind: kind.into(),
        job_id: id.into(),
        attempt_id: Some(1),
        team: Some("ada".into()),
        user_name: Some("ada".into()),
        job_name: Some("train".into()),
        gpus_milli: Some(8_000),
        ..v1::JobEvent::default()
    };
    let step = |id: &str, save_s: u64| v1::StepReport {
        job_id: id.into(),
        duration_us: (10 + save_s) * 1_000_000,
        checkpoint_us: (save_s > 0).then_some(save_s * 1_000_000),
        ..v1::StepReport::default()
    };
    learn(900_000, Event::Step(step("0", 0)));
    for n in 0..20 {
        let id = format!("old-{n}");
        learn(899_000 + n, Event::Job(job(JobEventKind::Eligible, &id)));
        learn(900_000 + n, Event::Job(job(JobEventKind::Started, &id)));
        let state = Some(FinalState::Completed.to_string());
        learn(910_000 + n, Event::Job(v1::JobEvent { final_state: state, ..job(JobEventKind::Ended, &id) }));
    }
    for n in 0..20 {
        let id = format!("again-{n}");
        let attempts = [(920_000, 15_000, FinalState::Preempted), (940_000, 5_000, FinalState::Completed)];
        for (start_s, ran_s, state) in attempts {
            learn(start_s + n, Event::Job(job(JobEventKind::Started, &id)));
            let (attempt_id, final_state) = (Some(0), Some(state.to_string()));
            let end = v1::JobEvent { attempt_id, final_state, ..job(JobEventKind::Ended, &id) };
            learn(start_s + ran_s + n, Event::Job(end));
        }
    }
    learn(996_400, Event::Job(job(JobEventKind::Started, "1")));
    learn(996_460, Event::Step(step("1", 0)));
    learn(999_000, Event::Job(job(JobEventKind::Resized, "1")));
    learn(999_020, Event::Step(step("1", 30)));
    for gpus in [1, 8, 16] {
        let curve = v1::ScalingCurve {
            family: "ada/ada/train/-".into(),
            unit: "STEPS".into(),
            gpus,
            rate_milli: 900 * u64::from(gpus),
            low_milli: 800 * u64::from(gpus),
            seen_steps: 100,
            points: 3,
            ..v1::ScalingCurve::default()
        };
        learn(999_100, Event::Scaling(curve));
    }
    let labeled = v1::NodeEvent {
        kind: NodeEventKind::NodeLabeled.into(),
        node: "n1".into(),
        rack: Some("r1".into()),
        ..v1::NodeEvent::default()
    };
    learn(999_200, Event::Node(labeled));
    let health = v1::NodeSignal {
        state: v1::NodeHealthState::Healthy.into(),
        node: "n1".into(),
        bad_ppm: 10_000,
        evidence: vec!["xid value=63.000 weight=3.00".into()],
        ..v1::NodeSignal::default()
    };
    learn(999_300, Event::NodeHealth(health));
    let straggler = v1::StragglerSignal {
        state: v1::SignalState::Confirmed.into(),
        job_id: "1".into(),
        blame: "RANK".into(),
        node: Some("n1".into()),
        slowdown_ppm: 160_000,
        ..v1::StragglerSignal::default()
    };
    learn(999_400, Event::Straggler(straggler));
    for (pool, price, contract) in [("p", 1_500_000, "reserved"), ("burst", 4_000_000, "on_demand")] {
        let price = v1::CapacityEvent {
            kind: v1::CapacityEventKind::PriceSet.into(),
            pool: Some(pool.into()),
            price_micros_per_gpu_hour: Some(price),
            contract: Some(contract.into()),
            ..v1::CapacityEvent::default()
        };
        learn(900_000, Event::Capacity(price));
    }
    facts
}

fn seen() -> ClusterState {
    let reservation = SlurmReservation {
        nodes: ["n1".to_owned()].into(),
        accounts: ["ada".to_owned()].into(),
        users: BTreeSet::new(),
        flags: BTreeSet::new(),
        start_s: NOW_S,
        end_s: NOW_S + 3_600,
        partition: Some("p".into()),
    };
    let snapshot = Snapshot {
        at_us: NOW_S * 1_000_000,
        jobs: queue::read(QUEUE.as_bytes()).unwrap(),
        nodes: [("n1".to_owned(), node())].into(),
        reservations: [("peak".to_owned(), reservation)].into(),
        limits: Limits { accounts: [("ada".to_owned(), Some(16))].into(), ..Limits::default() },
        notes: Notes::default(),
    };
    let share = ShareConfig { quota_account: Some("ada".into()), lendable: true, ..ShareConfig::default() };
    let owner = OwnerConfig { shares: [("p".to_owned(), share)].into(), ..OwnerConfig::default() };
    let config = SlurmConfig { owners: [("ada".to_owned(), owner)].into(), ..SlurmConfig::default() };
    let mut seen = state(&config, "c", &snapshot);
    facts().enrich(&mut seen);
    seen
}

/// Paths of all that is known in a value; names of objects are `*`.
fn paths(value: &Value, path: &str, into: &mut BTreeSet<String>) {
    match value {
        Value::Null => {}
        Value::Object(fields) => {
            let of_objects = ["nodes", "jobs", "owners", "pools", "reservations", "owners.*.shares"];
            for (name, value) in fields {
                let is_named = of_objects.contains(&path) || path.ends_with(".placement");
                let name = if is_named { "*" } else { name };
                let below = if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") };
                paths(value, &below, into);
            }
        }
        _ => {
            into.insert(path.to_owned());
        }
    }
}

#[test]
fn what_can_be_known_on_slurm_is_listed() {
    let state = serde_json::to_value(seen()).unwrap();
    let parts = ["nodes", "pools", "owners", "jobs", "reservations"];
    let known: BTreeMap<&str, Value> = parts.iter().map(|part| (*part, state[*part].clone())).collect();
    let mut fields = BTreeSet::new();
    paths(&serde_json::to_value(known).unwrap(), "", &mut fields);
    let listed = fields.into_iter().collect::<Vec<_>>().join("\n") + "\n";
    if std::env::var("TIDEGATE_BLESS").is_ok() {
        std::fs::write(FIXTURE, &listed).unwrap();
    }
    assert_eq!(std::fs::read_to_string(FIXTURE).unwrap(), listed, "write it with TIDEGATE_BLESS=1");
    for learned in [
        "expected_end_us",
        "remaining_work_ms",
        "checkpoint.last_us",
        "checkpoint.save_ms",
        "checkpoint.resumes",
        "curve",
    ] {
        assert!(listed.contains(&format!("jobs.*.{learned}\n")), "{learned} is not known in:\n{listed}");
    }
}
