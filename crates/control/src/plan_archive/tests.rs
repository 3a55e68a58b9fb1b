use std::sync::Arc;

use tidegate_autopilot::executor::{Executor, Journal, JournalEntry, JournalEvent, Settings};
use tidegate_autopilot::forecast::{SelectedForecast, SeriesNames};
use tidegate_autopilot::guard::KillSwitch;
use tidegate_autopilot::policy::Policy;
use tidegate_events::SchemaId;
use tidegate_log::{EmbeddedLog, EmbeddedOptions, EventLog, TopicConfig, TopicPartition};

use super::*;
use crate::LogJournal;
use crate::forecast_reader::tests::{ISSUED_MS, Still};

const MINUTE_US: i64 = 60_000_000;

fn log(folder: &Path) -> Arc<dyn EventLog> {
    let log = EmbeddedLog::open(folder.join("log"), EmbeddedOptions::default()).unwrap();
    let one = TopicConfig { partitions: 1, retain_ms: None, retain_bytes: None };
    log.create_topic(SchemaId::AutopilotEvent.topic(), one).unwrap();
    Arc::new(log)
}

/// What an autopilot records in `minutes` on a cluster of this size.
fn recorded(journal: LogJournal, nodes: u32, jobs: u32, minutes: i64) {
    let policy = Policy::auto();
    let forecast = SelectedForecast::new(&policy, SeriesNames::default());
    let mut executor = Executor::new(policy, Settings::default(), journal, forecast);
    for minute in 0..minutes {
        let now_us = ISSUED_MS * 1_000 + minute * MINUTE_US;
        let mut target = Still::sized(now_us, nodes, jobs);
        executor.step(&mut target, &mut || KillSwitch::On, &[], now_us).unwrap();
    }
}

fn plans(log: &Arc<dyn EventLog>) -> Vec<PlanRecord> {
    let entries: Vec<JournalEntry> = LogJournal::open(log.clone(), "c", "reader").unwrap().read().unwrap();
    let plan = |entry: JournalEntry| match entry.event {
        JournalEvent::Planned(planned) => Some(*planned),
        _ => None,
    };
    entries.into_iter().filter_map(plan).collect()
}

/// Bytes of the journal's records.
fn journal_bytes(log: &dyn EventLog) -> usize {
    let at = TopicPartition { topic: SchemaId::AutopilotEvent.topic().into(), partition: 0 };
    log.read(&at, 0, usize::MAX).unwrap().iter().map(|stored| stored.record.payload.len()).sum()
}

#[test]
fn a_plan_is_whole_in_the_archive_and_small_in_the_journal() {
    let folder = tempfile::tempdir().unwrap();
    let (log, archive) = (log(folder.path()), PlanArchive::in_data(folder.path()));
    let journal = LogJournal::open(log.clone(), "c", "one").unwrap().archiving(archive.clone());
    recorded(journal, 16, 25, 25);
    let plans = plans(&log);
    assert!(plans.len() > 2, "{}", plans.len());
    let mut parent = None;
    for planned in &plans {
        assert!(planned.state.nodes.is_empty() && planned.report.considered.is_empty());
        let whole = archive.read(&planned.plan.id).unwrap().unwrap();
        assert_eq!(
            (&whole.plan, &whole.policy, &whole.kept),
            (&planned.plan, &planned.policy, &planned.kept)
        );
        assert_eq!(whole.state.nodes.len(), 17);
        // It can be made again, byte for byte.
        let (plan, report) = whole.replay(parent.as_ref());
        assert_eq!((&plan, &report), (&whole.plan, &whole.report));
        parent = Some(whole.plan);
    }
    assert!(archive.read("no-such-plan").unwrap().is_none());
    assert!(archive.read("../../log/LOCK").unwrap().is_none(), "an id is no path");
}

#[test]
fn a_journal_of_an_older_version_with_whole_states_is_read_and_folded_the_same() {
    let (before, now) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (old, new) = (log(before.path()), log(now.path()));
    recorded(LogJournal::open(old.clone(), "c", "one").unwrap(), 16, 25, 25);
    let archive = PlanArchive::in_data(now.path());
    recorded(LogJournal::open(new.clone(), "c", "one").unwrap().archiving(archive.clone()), 16, 25, 25);
    let (whole, slim) = (plans(&old), plans(&new));
    assert!(whole.iter().all(|planned| planned.state.nodes.len() == 17));
    assert_eq!(whole.len(), slim.len());
    for (whole, slim) in whole.iter().zip(&slim) {
        assert_eq!(archive.read(&slim.plan.id).unwrap().as_ref(), Some(whole));
    }
    // A new process goes on from an old journal, and an old record stays whole.
    let fold = |log: &Arc<dyn EventLog>| {
        let mut state = tidegate_autopilot::executor::ExecutorState::default();
        let entries = LogJournal::open(log.clone(), "c", "reader").unwrap().read().unwrap();
        entries.into_iter().for_each(|entry| state.fold(entry));
        state
    };
    assert_eq!(fold(&old), fold(&new));
    assert!(journal_bytes(old.as_ref()) > 2 * journal_bytes(new.as_ref()));
}

/// An hour of a cluster of 10,000 GPUs on which nothing new is decided: what a day costs.
#[test]
fn a_day_of_plans_does_not_hold_the_cluster_144_times() {
    let bytes = |archive: bool| {
        let folder = tempfile::tempdir().unwrap();
        let log = log(folder.path());
        let mut journal = LogJournal::open(log.clone(), "c", "one").unwrap();
        if archive {
            journal = journal.archiving(PlanArchive::in_data(folder.path()));
        }
        recorded(journal, 1_250, 2_000, 61);
        journal_bytes(log.as_ref())
    };
    let (before, after) = (bytes(false), bytes(true));
    println!("journal of an hour, 1,250 nodes and 2,000 jobs: {before} bytes before, {after} now");
    assert!(after * 10 < before, "{before} bytes before, {after} now");
}

#[test]
fn the_oldest_files_make_room_and_damage_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let log = log(folder.path());
    recorded(LogJournal::open(log.clone(), "c", "one").unwrap(), 16, 25, 2);
    let mut planned = plans(&log).remove(0);
    let archive = PlanArchive::in_data(folder.path());
    let mut write = |archive: &PlanArchive, id: &str| {
        planned.plan.id = id.to_owned();
        archive.write(&planned).unwrap();
        // Files of one tick of the clock have no order.
        std::thread::sleep(std::time::Duration::from_millis(20));
    };
    write(&archive, "a");
    let one = std::fs::metadata(archive.path("a").unwrap()).unwrap().len();
    let small = archive.clone().keeping(2 * one + one / 2);
    ["b", "c", "d"].into_iter().for_each(|id| write(&small, id));
    let kept = ["a", "b", "c", "d"].map(|id| small.read(id).unwrap().is_some());
    assert_eq!(kept, [false, false, true, true]);
    write(&archive.clone().keeping(1), "e");
    assert!(small.read("e").unwrap().is_some(), "the newest stays");
    // Half a file, another plan's file, and a file that grows when it is read.
    let path = archive.path("e").unwrap();
    let whole = std::fs::read(&path).unwrap();
    std::fs::write(&path, &whole[..whole.len() / 2]).unwrap();
    assert!(archive.read("e").is_err());
    std::fs::write(archive.path("f").unwrap(), &whole).unwrap();
    assert!(archive.read("f").unwrap().is_none(), "it is of plan e");
    let bomb = zstd::encode_all(std::io::repeat(b' ').take(MAX_RECORD_BYTES + 1), 1).unwrap();
    std::fs::write(&path, bomb).unwrap();
    assert!(archive.read("e").is_err());
}

#[test]
fn a_plan_that_cannot_be_archived_is_journaled_all_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let log = log(folder.path());
    std::fs::write(folder.path().join("autopilot"), "a file where the folder should be").unwrap();
    let archive = PlanArchive::in_data(folder.path());
    recorded(LogJournal::open(log.clone(), "c", "one").unwrap().archiving(archive), 16, 25, 12);
    assert!(plans(&log).iter().all(|planned| planned.state.nodes.is_empty()));
    assert!(!plans(&log).is_empty());
}
