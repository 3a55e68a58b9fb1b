//! What the start of a job, and a hold that the scheduler reports, change in windows before them.
//! Each history is short, so that tables are updated between any two of its events: a window that
//! should have been recomputed and was not differs from one shot.

use tidegate_events::Event;
use tidegate_events::v1::{JobEvent, JobEventKind as Kind, NodeEvent, NodeEventKind};
use tidegate_lake::pipeline::{Plan, shipped};
use tidegate_lake::testing::equivalence::{Delivery, TableContents, ViewSelection, tables_after};
use tidegate_lake::testing::with_dependencies;
use url::Url;

use crate::histories::{envelope, job_event, sealed};

/// 2023-11-14 23:50:00 UTC, ten minutes before midnight.
const START_MS: i64 = 1_700_005_800_000;
const NODES: [&str; 2] = ["n0", "n1"];

/// An event of a job, so many seconds after the beginning.
fn event(job: &str, kind: Kind, at_s: i64, more: JobEvent) -> Event {
    let named = job_event("c", job, kind, START_MS + at_s * 1_000);
    Event::Job(JobEvent { envelope: named.envelope, job_id: named.job_id, kind: named.kind, ..more })
}

fn asks(gpus: u64) -> JobEvent {
    JobEvent {
        gpus_milli: Some(gpus * 1_000),
        team: Some("t".into()),
        pool: Some("p".into()),
        ..JobEvent::default()
    }
}

/// An attempt on whole nodes.
fn on(nodes: &[&str], attempt: i64, more: JobEvent) -> JobEvent {
    JobEvent {
        attempt_id: Some(attempt),
        nodes: Some(nodes.join(",")),
        node_count: Some(nodes.len() as u32),
        ..more
    }
}

fn ends(attempt: i64, state: &str) -> JobEvent {
    JobEvent { attempt_id: Some(attempt), final_state: Some(state.into()), ..JobEvent::default() }
}

/// A hold of a device by an attempt, known by `evidence`.
fn device(evidence: &str, node: &str, gpu: u32) -> JobEvent {
    let by_scheduler = evidence == "slurm";
    JobEvent {
        attempt_id: by_scheduler.then_some(0),
        hold_id: Some(format!("{evidence}/{node}/{gpu}")),
        hold_quality: Some(if by_scheduler { "EXACT" } else { "UNKNOWN" }.into()),
        hold_evidence: Some(evidence.into()),
        node: Some(node.into()),
        gpu_index: Some(gpu),
        ..JobEvent::default()
    }
}

/// Two nodes of eight GPUs with agents, and a last answer of the watcher, beside these events.
fn on_a_cluster(mut events: Vec<Event>) -> Vec<Event> {
    for node in NODES {
        let of_node = |kind: NodeEventKind| NodeEvent {
            envelope: envelope("c", START_MS),
            kind: kind.into(),
            node: node.into(),
            ..NodeEvent::default()
        };
        events.push(Event::Node(NodeEvent {
            pool: Some("p".into()),
            gpus_milli: Some(8_000),
            ..of_node(NodeEventKind::NodeRegistered)
        }));
        events.push(Event::Node(of_node(NodeEventKind::CollectorStarted)));
    }
    events.push(event("", Kind::Observed, 2_400, JobEvent::default()));
    sealed(events)
}

/// The tables of one shot, which are those of any other delivery.
async fn tables_of(events: Vec<Event>) -> TableContents {
    let events = on_a_cluster(events);
    let names = ["ledger_1h", "pending_days", "fragmentation"];
    let plan = Plan::compile(with_dependencies(shipped(), names.map(str::to_owned).to_vec())).await.unwrap();
    let mut found = Vec::new();
    for delivery in [Delivery::OneShot, Delivery::OneByOne] {
        let folder = tempfile::tempdir().unwrap();
        let root = Url::from_directory_path(folder.path()).unwrap();
        let views = ViewSelection::Only("no view");
        found.push(tables_after(&plan, &root, &events, delivery, 0, views).await.unwrap());
    }
    let [expected, updated] = found.try_into().expect("two deliveries");
    assert!(expected["device_ledger_1m"].num_rows() > 50, "the ledger has minutes");
    for (name, rows) in &updated {
        assert_eq!(rows, &expected[name], "{name}");
    }
    expected
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wait_whose_shape_was_reported() {
    let shape = JobEvent {
        reason: Some("Resources".into()),
        asked_node_count: Some(2),
        asked_gpus_per_node_milli: Some(6_000),
        ..JobEvent::default()
    };
    // Half of each node is taken, so that a gang of twelve waits over midnight beside eight free.
    let tables = tables_of(vec![
        event("a", Kind::Submitted, 1, asks(8)),
        event("a", Kind::Started, 2, on(&NODES, 0, asks(8))),
        event("b", Kind::Submitted, 60, asks(12)),
        event("b", Kind::Waiting, 70, shape),
        event("a", Kind::Ended, 1_500, ends(0, "COMPLETED")),
        event("b", Kind::Started, 1_500, on(&NODES, 0, asks(12))),
    ])
    .await;
    assert!(tables["pending_days"].num_rows() > 2, "the wait has pieces on both days");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wait_whose_shape_only_the_start_tells() {
    tables_of(vec![
        event("a", Kind::Submitted, 1, asks(8)),
        event("a", Kind::Started, 2, on(&NODES, 0, asks(8))),
        event("b", Kind::Submitted, 60, asks(12)),
        event("a", Kind::Ended, 1_500, ends(0, "COMPLETED")),
        event("b", Kind::Started, 1_500, on(&NODES, 0, asks(12))),
    ])
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_attempt_that_takes_its_gpus_from_the_next_one() {
    let unknown = || JobEvent { gpus_milli: None, ..asks(0) };
    tables_of(vec![
        event("a", Kind::Submitted, 1, unknown()),
        event("a", Kind::Started, 60, on(&["n0"], 0, unknown())),
        event("a", Kind::Ended, 900, ends(0, "RESIZED")),
        event("a", Kind::Started, 900, on(&["n1"], 1, asks(4))),
        event("a", Kind::Ended, 1_800, ends(1, "COMPLETED")),
    ])
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn devices_that_an_agent_saw_before_the_scheduler_named_them() {
    tables_of(vec![
        event("a", Kind::Submitted, 1, asks(2)),
        // The agent's clock is ahead: it saw the process before the job started.
        event("a", Kind::DeviceHeld, 30, device("process", "n0", 0)),
        event("a", Kind::Started, 120, on(&["n0"], 0, asks(2))),
        event("a", Kind::DeviceHeld, 900, device("slurm", "n0", 0)),
        event("a", Kind::DeviceHeld, 900, device("slurm", "n0", 1)),
        event("a", Kind::Ended, 1_800, ends(0, "COMPLETED")),
    ])
    .await;
}
