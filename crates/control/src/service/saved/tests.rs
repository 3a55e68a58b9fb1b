use std::collections::BTreeMap;
use std::sync::Arc;

use tidegate_autopilot::executor::{Executor, Journal, Settings};
use tidegate_autopilot::forecast::{SelectedForecast, SeriesNames};
use tidegate_autopilot::guard::KillSwitch;
use tidegate_autopilot::policy::Policy;
use tidegate_autopilot::state::ClusterState;
use tidegate_autopilot::target::Target;
use tidegate_events::{Event, SchemaId, v1};
use tidegate_log::{Batch, EmbeddedLog, EmbeddedOptions, EventLog, Producer, TopicConfig, TopicPartition};

use super::*;
use crate::forecast_reader::tests::{ISSUED_MS, Still};
use crate::{EnrichedTarget, LogJournal};

const GROUP: &str = "tidegate-autopilot";
const MINUTE_US: i64 = 60_000_000;

fn log(folder: &Path) -> Arc<dyn EventLog> {
    let log = EmbeddedLog::open(folder.join("log"), EmbeddedOptions::default()).unwrap();
    for schema in SchemaId::ALL {
        let one = TopicConfig { partitions: 1, retain_ms: None, retain_bytes: None };
        log.create_topic(schema.topic(), one).unwrap();
    }
    Arc::new(log)
}

fn publish(log: &dyn EventLog, mut event: Event, at_ms: i64) {
    let envelope = event.envelope_mut();
    (envelope.cluster, envelope.source) = ("c".into(), "test".into());
    (envelope.event_time_ms, envelope.observed_time_ms) = (at_ms, at_ms);
    let at = TopicPartition { topic: event.schema().topic().into(), partition: 0 };
    let producer = Producer { source: format!("test#{}", log.extent(&at).unwrap().end), epoch: 0 };
    let records = vec![event.record().unwrap().into()];
    log.append(&at, Batch { producer, first_seq: 0, records }).unwrap();
}

/// A process: executor and enriched target, from a state and where it stands.
struct Process {
    executor: Executor<LogJournal, SelectedForecast>,
    target: EnrichedTarget<Still>,
}

impl Process {
    fn new(log: &Arc<dyn EventLog>, saved: Saved) -> Self {
        let Saved { executor, read, positions, .. } = saved;
        let policy = Policy::auto();
        let forecast = SelectedForecast::new(&policy, SeriesNames::default());
        let journal = LogJournal::open(log.clone(), "c", "one").unwrap().resumed(&positions);
        let settings = Settings { holder: "one".into(), ..Settings::default() };
        let target =
            EnrichedTarget::new(Still::at(0), log.clone(), "c", None).unwrap().resumed(read, &positions);
        Self { executor: Executor::new(policy, settings, journal, forecast).resumed(executor), target }
    }

    fn step(&mut self, minute: i64) {
        let now_us = ISSUED_MS * 1_000 + minute * MINUTE_US;
        *self.target.target_mut() = Still::at(now_us);
        self.executor.step(&mut self.target, &mut || KillSwitch::On, &[], now_us).unwrap();
    }

    fn positions(&self) -> Vec<Position> {
        let mut positions = self.target.read_so_far().unwrap().1;
        positions.push(self.executor.journal().position().unwrap());
        positions
    }

    fn observe(&mut self) -> ClusterState {
        self.target.observe().unwrap()
    }
}

/// Health of a node, a slow node, a family's curve and a job of it, at a minute.
fn happen(log: &dyn EventLog, minute: i64) {
    let at_ms = ISSUED_MS + minute * 60_000;
    let node = format!("s{:02}", minute % 16);
    // One node fails, and is drained.
    let (state, bad_ppm) = match minute {
        5 => (v1::NodeHealthState::Failed, 999_000),
        _ => (v1::NodeHealthState::Watch, 1_000 * minute as u32),
    };
    publish(
        log,
        Event::NodeHealth(v1::NodeSignal {
            node: node.clone(),
            state: state.into(),
            bad_ppm,
            evidence: vec!["xid value=79 weight=4".into()],
            ..v1::NodeSignal::default()
        }),
        at_ms,
    );
    publish(
        log,
        Event::Straggler(v1::StragglerSignal {
            job_id: "w01".into(),
            episode: 1 + minute as u64,
            state: v1::SignalState::Confirmed.into(),
            blame: "NODE".into(),
            node: Some(node),
            slowdown_ppm: 200_000 + minute,
            ..v1::StragglerSignal::default()
        }),
        at_ms,
    );
    for (gpus, rate_milli) in [(1, 1_000), (2, 1_900), (4, 3_000 + minute as u64)] {
        publish(
            log,
            Event::Scaling(v1::ScalingCurve {
                family: "t/-/train/-".into(),
                unit: "STEPS".into(),
                gpus,
                rate_milli,
                low_milli: rate_milli,
                seen_steps: 100,
                points: 3,
                ..v1::ScalingCurve::default()
            }),
            at_ms,
        );
    }
    publish(
        log,
        Event::Job(v1::JobEvent {
            kind: v1::JobEventKind::Started.into(),
            job_id: format!("w{:02}", minute % 25),
            team: Some("t".into()),
            job_name: Some("train".into()),
            ..v1::JobEvent::default()
        }),
        at_ms,
    );
}

#[test]
fn a_start_from_a_snapshot_knows_what_one_from_the_beginning_knows() {
    let folder = tempfile::tempdir().unwrap();
    let log = log(folder.path());
    let mut first = Process::new(&log, Saved::default());
    let mut saved_at = BTreeMap::new();
    for minute in 0..40 {
        happen(log.as_ref(), minute);
        first.step(minute);
        if minute % 7 == 3 {
            let data = folder.path().join(format!("data-{minute}"));
            let mut snapshots = Snapshots::in_data(&data, "c", GROUP);
            let positions = first.positions();
            let chains = first.executor.journal().chains();
            let state = (first.executor.state(), first.target.read_so_far().unwrap().0, chains);
            snapshots.save(log.as_ref(), state, positions, ISSUED_MS);
            saved_at.insert(minute, data);
        }
    }
    let fold = |saved: Saved| {
        let mut process = Process::new(&log, saved);
        let state = process.observe();
        // A step would write; the journal is read as a step does.
        let mut journal = LogJournal::open(log.clone(), "c", "reader").unwrap();
        let mut known = process.executor.state().clone();
        if let Some(stands) = process.positions().last().filter(|_| known != ExecutorState::default()) {
            journal = journal.resumed(std::slice::from_ref(stands));
        }
        let entries = journal.read().unwrap();
        let count = entries.len();
        entries.into_iter().for_each(|entry| known.fold(entry));
        (known, state, count)
    };
    let (known, state, all) = fold(Saved::default());
    assert!(known.intents.all().count() > 0 && state.nodes["s01"].health.bad_ppm > Some(0));
    assert!(state.jobs.values().any(|job| job.curve.is_some()));
    for (minute, data) in saved_at {
        let saved = Snapshots::in_data(&data, "c", GROUP).restore(log.as_ref()).unwrap();
        assert!(!saved.positions.is_empty(), "minute {minute}");
        let (resumed, enriched, count) = fold(saved);
        assert_eq!(resumed, known, "minute {minute}");
        assert_eq!(enriched, state, "minute {minute}");
        assert!(count < all, "it reads what came since: {count} of {all} entries");
    }
    // The log keeps what the snapshot lacks.
    let at = TopicPartition { topic: SchemaId::AutopilotEvent.topic().into(), partition: 0 };
    let consumers = log.consumers(&at).unwrap();
    assert_eq!(consumers.len(), 1);
    assert!(consumers[0].1 > 0);
}

#[test]
fn a_snapshot_of_another_cluster_or_version_is_not_this_ones() {
    let folder = tempfile::tempdir().unwrap();
    let log = log(folder.path());
    let mut process = Process::new(&log, Saved::default());
    process.step(0);
    let mut snapshots = Snapshots::in_data(folder.path(), "c", GROUP);
    let chains = process.executor.journal().chains();
    let state = (process.executor.state(), process.target.read_so_far().unwrap().0, chains);
    snapshots.save(log.as_ref(), state, process.positions(), ISSUED_MS);
    let restored = |cluster: &str| {
        Snapshots::in_data(folder.path(), cluster, GROUP).restore(log.as_ref()).unwrap().executor
    };
    assert_eq!(restored("c"), *process.executor.state());
    assert_eq!(restored("d"), ExecutorState::default());
    let store = |version| SnapshotStore::new(&folder.path().join("snapshots"), "autopilot", "c", version);
    for (version, state) in [(VERSION + 1, &b"{}"[..]), (VERSION - 1, b"{}"), (VERSION, b"{\"executor\":7}")]
    {
        store(version).save(process.positions(), state, ISSUED_MS).unwrap();
        assert_eq!(restored("c"), *process.executor.state(), "the one before it");
        let newest = tidegate_log::snapshot::stored(&folder.path().join("snapshots")).unwrap();
        assert_eq!(newest.len(), 2);
        let file = std::fs::read_dir(store(1).folder()).unwrap().map(|entry| entry.unwrap().path()).max();
        std::fs::remove_file(file.unwrap()).unwrap();
    }
}

/// The committed snapshot of version 3: a state with a lease, a plan, intents and read signals.
const FIXTURE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/autopilot-v3.json");

#[test]
fn the_committed_state_of_this_version_is_still_read_whole() {
    let folder = tempfile::tempdir().unwrap();
    let log = log(folder.path());
    let mut process = Process::new(&log, Saved::default());
    for minute in 0..12 {
        happen(log.as_ref(), minute);
        process.step(minute);
    }
    let read = process.target.read_so_far().unwrap().0;
    let state =
        SavedRef { executor: process.executor.state(), read, chains: process.executor.journal().chains() };
    if std::env::var("TIDEGATE_BLESS").is_ok() {
        std::fs::write(FIXTURE, serde_json::to_vec_pretty(&state).unwrap()).unwrap();
    }
    let said = "the layout changed: raise VERSION in service/saved.rs, name the fixture after it, and write it with TIDEGATE_BLESS=1";
    let text = std::fs::read_to_string(FIXTURE).unwrap();
    let saved: Saved = serde_json::from_str(&text).expect(said);
    let again = SavedRef { executor: &saved.executor, read: &saved.read, chains: &saved.chains };
    let stored: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(serde_json::to_value(&again).unwrap(), stored, "{said}");
    assert_eq!(saved.executor.intents.all().count(), process.executor.state().intents.all().count());
}
