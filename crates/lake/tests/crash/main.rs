//! Crash points: at whatever instant a process dies, the tables end up as those of a process that
//! never did.
//!
//! Long form: `TIDEGATE_LONG=1`, or `TIDEGATE_CRASH_SEEDS=0..8` for the histories, with every
//! instant of each instead of one of each kind. `TIDEGATE_CRASH_POINT=1:104` repeats one instant of
//! one history.

#![allow(clippy::unwrap_used)]

mod consumer_group;
mod recorded;
mod scenario;
mod snapshots;
mod tables;
mod two_processes;
mod victim;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use recorded::RecordedHistory;
use snapshots::Snapshot;
use tables::Tables;
use tempfile::TempDir;
use tidegate_events::{Event, SchemaId};
use tidegate_lake::testing::histories::History;
use tokio::sync::Mutex;
use two_processes::TwoProcesses;
use victim::Fate;

/// As in the program. The system's took 29 % of the tests' CPU time.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// One test at a time receives fault points.
static WATCHING: Mutex<()> = Mutex::const_new(());

/// A history takes about 50 MB; containers often have only 64 MB of /dev/shm.
const ENOUGH_BYTES: u64 = 1 << 30;

/// A temporary folder, in memory if there is room. `kill -9` leaves the page cache intact, so tmpfs
/// shows the same state as a disk, and fsync returns at once.
fn scratch() -> TempDir {
    let memory = "/dev/shm";
    let free = rustix::fs::statvfs(memory).map_or(0, |fs| fs.f_bavail * fs.f_frsize);
    if free > ENOUGH_BYTES { tempfile::tempdir_in(memory) } else { tempfile::tempdir() }.unwrap()
}

/// Histories to play at every instant; `None` in short form.
fn seeds() -> Option<Range<u64>> {
    let is_long = std::env::var("TIDEGATE_LONG").is_ok_and(|long| long == "1");
    let range = std::env::var("TIDEGATE_CRASH_SEEDS").ok().or(is_long.then(|| "1..3".into()))?;
    let (from, to) = range.split_once("..").expect("TIDEGATE_CRASH_SEEDS is FROM..TO");
    Some(from.parse().unwrap()..to.parse().unwrap())
}

/// The single instant to repeat: history and number.
fn point() -> Option<(u64, usize)> {
    let point = std::env::var("TIDEGATE_CRASH_POINT").ok()?;
    let (seed, number) = point.split_once(':').expect("TIDEGATE_CRASH_POINT is SEED:NUMBER");
    Some((seed.parse().unwrap(), number.parse().unwrap()))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crash_at_any_instant_leaves_the_tables_of_an_undisturbed_process() {
    let _alone = WATCHING.lock().await;
    let only = point();
    let seeds = only.map(|(seed, _)| seed..seed + 1).or_else(seeds);
    let is_long = seeds.is_some();
    let (mut points, mut kinds, mut differences) = (0, BTreeMap::<String, usize>::new(), Vec::new());
    for seed in seeds.unwrap_or(1..2) {
        let mut recorded = RecordedHistory::new(seed, Tables::Few).await;
        let mut seen = BTreeSet::new();
        let mut is_wanted = |snapshot: &Snapshot| match only {
            Some((_, number)) => snapshot.number == number,
            // A file without its final name changes nothing.
            None => is_long || (!snapshot.done.contains("aside") && seen.insert(snapshot.done.clone())),
        };
        points += recorded.die_at(&mut is_wanted, &mut kinds).await;
        differences.append(&mut recorded.differences);
    }
    println!("{points} crash points: {kinds:#?}");
    assert!(differences.is_empty(), "{differences:#?}");
}

/// Every commit of a table that is not its group's last. A flush is to be repaired then, in more
/// than one read, while joined tables are updated with what other groups committed. All shipped
/// tables, at a few instants of one history: it takes several times as long.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_shipped_table_survives_a_crash_unchanged() {
    let _alone = WATCHING.lock().await;
    let every = if seeds().is_some() { 40 } else { 1_200 };
    let mut recorded = RecordedHistory::new(2, Tables::Shipped).await;
    let mut kinds = BTreeMap::new();
    let points = recorded.die_at(&mut |snapshot| snapshot.number % every == every / 2, &mut kinds).await;
    assert!(points > 0, "{points} crash points");
    assert!(recorded.differences.is_empty(), "{:#?}", recorded.differences);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn windows_of_windows_are_complete_after_a_repair() {
    let _alone = WATCHING.lock().await;
    let mut recorded = RecordedHistory::new(1, Tables::Few).await;
    let mut kinds = BTreeMap::new();
    let mut is_wanted = |snapshot: &Snapshot| snapshot.done == "file: commit" && snapshot.table == "gpu_1m";
    let points = recorded.die_at(&mut is_wanted, &mut kinds).await;
    assert!(points > 2, "{points} flushes died after their first commit");
    assert!(recorded.differences.is_empty(), "{:#?}", recorded.differences);
}

/// One of two processes dies or hangs at an instant, and the other one takes over with its memory
/// intact. A process that hung comes back when everything is done, and cannot commit what it still
/// believes to own.
#[test]
fn two_processes_give_the_tables_of_one_wherever_one_dies_or_hangs() {
    let _alone = WATCHING.blocking_lock();
    let (seeds, step) = match seeds() {
        Some(seeds) => (seeds, 1),
        None => (1..2, 53),
    };
    let (mut last_steps, mut differences) = (BTreeMap::<String, usize>::new(), Vec::new());
    for seed in seeds {
        let two_processes = TwoProcesses::new(seed);
        for at in (7..).step_by(step) {
            let fate = if at % 2 == 0 { Fate::Dies } else { Fate::Hangs };
            let (done, tables) = two_processes.with_fate(fate, at);
            let others = two_processes.others(&tables).into_iter();
            differences
                .extend(others.map(|table| format!("seed {seed}, {fate:?} at {at} ({done:?}): {table}")));
            println!("seed {seed}: {fate:?} at {at}, {done:?}");
            let Some(done) = done else { break };
            *last_steps.entry(format!("{fate:?}, {done}")).or_default() += 1;
        }
    }
    println!("{} crash points: {last_steps:#?}", last_steps.values().sum::<usize>());
    assert!(last_steps.keys().any(|what| what.contains("claim")), "{last_steps:?}");
    assert!(differences.is_empty(), "{differences:#?}");
}

/// Joined tables combine what this process and the other one committed.
#[test]
fn joined_tables_combine_what_two_processes_committed() {
    let _alone = WATCHING.blocking_lock();
    let two_processes = TwoProcesses::new(1);
    let differ: Vec<Vec<String>> =
        (0..3).map(|_| two_processes.others(&two_processes.with_fate(Fate::Dies, usize::MAX).1)).collect();
    assert!(differ.iter().all(Vec::is_empty), "{differ:?}");
}

#[test]
fn a_history_has_every_topic_and_no_record_twice() {
    let history = History { seed: 1, jobs: 8, minutes: 100 };
    let schemas: BTreeSet<SchemaId> = history.events().iter().map(Event::schema).collect();
    assert_eq!(schemas, BTreeSet::from(SchemaId::ALL));
    for partitions in [1, 3] {
        let records = history.records(partitions).unwrap();
        for (at, records) in &records {
            let payloads: BTreeSet<_> = records.iter().map(|record| &record.payload).collect();
            assert_eq!(payloads.len(), records.len(), "{at:?}");
        }
        assert_eq!(records, history.records(partitions).unwrap());
    }
}
