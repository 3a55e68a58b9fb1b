//! Months of commits: what a flush costs and how many files a table has do not grow with time.
//!
//! The clock is the test's, and everything is counted: listings, reads, writes and deletions. Long
//! form: `TIDEGATE_LONG=1`.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use chrono::{DateTime, Duration};
use tidegate_events::Event;
use tidegate_events::v1::{JobEvent, JobEventKind, StepReport};
use tidegate_lake::catalog::committed_catalog;
use tidegate_lake::clock::Clock;
use tidegate_lake::engine::Limits;
use tidegate_lake::maintenance::{self, Maintenance};
use tidegate_lake::pipeline::{Pipeline, Plan, shipped};
use tidegate_lake::testing::with_dependencies;
use url::Url;

use crate::counting_store::{self, Costs};
use crate::histories::{envelope, job_event, samples_at};
use crate::long_log::{Process, assert_same, stored};

/// 2023-11-15 00:00 UTC.
const START_MS: i64 = 1_700_006_400_000;
const HOUR_MS: i64 = 3_600_000;
const DAY_MS: i64 = 24 * HOUR_MS;
/// Time between two flushes. It stands for the ten seconds of a site that has more events.
const STEP_MS: i64 = 3 * HOUR_MS;
/// Versions of a log, and flushes after which a replaced file is deleted.
const KEEP_LOG: i64 = 40;
const KEEP_REPLACED: i64 = 20;
/// Flushes between two updates of joined tables.
const JOINED_EVERY: i64 = 6;
/// Flushes between two events that are ten days late.
const LATE_EVERY: i64 = 40;

/// Tables of each kind: raw, samples, keyed, windows, partial aggregates, joined windows by hour.
const TABLES: [&str; 4] = ["attempts", "usage_1h", "training_1m", "gpu_1m"];

async fn plan() -> Plan {
    let mut pipelines = with_dependencies(shipped(), TABLES.map(str::to_owned).to_vec());
    let joined = include_str!("../crash/activity_1m.sql");
    pipelines.push(Pipeline::parse("activity_1m.sql", joined).unwrap());
    Plan::compile(pipelines).await.unwrap()
}

fn maintenance() -> Maintenance {
    Maintenance {
        small_files: 8,
        keep_log: Duration::milliseconds(KEEP_LOG * STEP_MS),
        keep_replaced: Duration::milliseconds(KEEP_REPLACED * STEP_MS),
        ..Maintenance::default()
    }
}

/// What happens between two flushes: a job of 20 minutes, a step of it, some samples. Now and then
/// news of ten days ago.
fn events(number: i64) -> Vec<Event> {
    let now_ms = START_MS + number * STEP_MS;
    let mut events = vec![samples_at(now_ms - 60_000)];
    job(&format!("j{number}"), now_ms - 30 * 60_000, &mut events);
    if number % LATE_EVERY == LATE_EVERY - 1 && number > 60 {
        job(&format!("late{number}"), now_ms - 10 * DAY_MS, &mut events);
        events.push(samples_at(now_ms - 10 * DAY_MS));
    }
    events.push(Event::Job(job_event("east", "", JobEventKind::Observed, now_ms)));
    events
}

fn job(name: &str, from_ms: i64, events: &mut Vec<Event>) {
    let event = |kind, at_ms| JobEvent {
        attempt_id: Some(from_ms),
        gpus_milli: Some(1_000),
        ..job_event("east", name, kind, at_ms)
    };
    events.push(Event::Job(event(JobEventKind::Started, from_ms)));
    events.push(Event::Step(StepReport {
        envelope: envelope("east", from_ms + 60_000),
        job_id: name.into(),
        duration_us: 5_000_000,
        ..StepReport::default()
    }));
    let ended = event(JobEventKind::Ended, from_ms + 20 * 60_000);
    events.push(Event::Job(JobEvent { final_state: Some("COMPLETED".into()), ..ended }));
}

/// Files below a table's folder: data files, and files of its log.
fn files_of(root: &Path, table: &str) -> (u64, u64) {
    let (mut data, mut log, mut open) = (0, 0, vec![root.join(table)]);
    while let Some(folder) = open.pop() {
        for entry in folder.read_dir().unwrap() {
            let entry = entry.unwrap();
            match (entry.file_type().unwrap().is_dir(), folder.ends_with("_delta_log")) {
                (true, _) => open.push(entry.path()),
                (false, true) => log += 1,
                (false, false) => data += 1,
            }
        }
    }
    (data, log)
}

/// One of the costs of a stretch of flushes.
type Count = fn(&Costs) -> u64;

#[tokio::test]
async fn a_flush_costs_the_same_after_months_as_in_the_first_weeks() {
    let is_long = std::env::var("TIDEGATE_LONG").is_ok_and(|long| long == "1");
    let flushes: i64 = if is_long { 2_900 } else { 300 };
    let stretch = flushes / 5;
    let plan = plan().await;
    let arrivals = arrivals(flushes);
    let (time, clock) = clock();
    let folder = tempfile::tempdir().unwrap();
    let root = Url::from_directory_path(folder.path()).unwrap();
    counting_store::watch(folder.path(), &clock);
    let mut process = Process::start(&root, &plan).await;
    process.lake.set_clock(&clock);
    let mut stretches: BTreeMap<i64, Costs> = BTreeMap::new();
    let mut dead: BTreeMap<i64, u64> = BTreeMap::new();
    for number in 0..flushes {
        time.store(START_MS + number * STEP_MS, Ordering::Relaxed);
        if number == flushes / 2 {
            process = Process::start(&root, &plan).await;
            process.lake.set_clock(&clock);
        }
        process.ingest(&arrivals[number as usize]);
        counting_store::take_costs(folder.path());
        process.lake.flush().await.unwrap();
        if number % JOINED_EVERY == JOINED_EVERY - 1 {
            process.lake.update_joined().await.unwrap();
        }
        maintenance::run_due(&mut process.lake, &maintenance()).await.unwrap();
        stretches.entry(number / stretch).or_default().add(counting_store::take_costs(folder.path()));
        let dead_now: u64 = process.lake.dead_files().values().map(|dead| dead.files).sum();
        *dead.entry(number / stretch).or_default() += dead_now;
    }
    process.lake.update_joined().await.unwrap();
    println!("{flushes} flushes, {stretch} a stretch: {stretches:#?}; sums of dead files {dead:?}");

    // In the first two stretches the logs reach their length.
    let (early, late) = (&stretches[&2], &stretches[&4]);
    let kinds: [(&str, Count); 6] = [
        ("log listings", |costs| costs.log_listings),
        ("entries of listed logs", |costs| costs.log_entries),
        ("data listings", |costs| costs.data_listings),
        ("reads", |costs| costs.reads),
        ("writes", |costs| costs.writes),
        ("deletions", |costs| costs.deletions),
    ];
    for (what, of) in kinds {
        let (then, now) = (of(early), of(late));
        assert!(now * 5 <= then * 6, "{what}: {then}, later {now}");
    }
    assert!(dead[&4] * 5 <= dead[&2] * 6, "sums of dead files: {dead:?}");

    let days = (flushes * STEP_MS / DAY_MS) as u64;
    let live = process.lake.live_files().unwrap();
    let dead = process.lake.dead_files();
    for (table, live) in &live {
        let (data, log) = files_of(folder.path(), table);
        let known = live.files + dead[table].files;
        assert!(data == known, "{table}: {data} files on disk, of which {known} are live or to be deleted");
        // Versions that are kept, those since the checkpoint before, and the checkpoints. A table
        // may have several commits a flush.
        assert!(log <= 2 * KEEP_LOG as u64 + 2 * 100 + 10, "{table}: {log} files in the log");
        // A file for each day, and what the last days and sizes have of small ones.
        let allowed = if ["steps", "job_events", "gpu_samples", "attempts"].contains(&table.as_str()) {
            8 * 5
        } else {
            days + 100
        };
        assert!(live.files <= allowed, "{table}: {} files after {days} days", live.files);
    }

    // Packed days, closed segments and merged rows are the rows of a process that did none of it.
    let undisturbed = {
        let folder = tempfile::tempdir().unwrap();
        let mut process = Process::start(&Url::from_directory_path(folder.path()).unwrap(), &plan).await;
        arrivals.iter().for_each(|events| process.ingest(events));
        process.lake.flush().await.unwrap();
        process.lake.update_joined().await.unwrap();
        process.shown().await
    };
    assert_same(&process.shown().await, &undisturbed);
    drop(process);
    let committed = committed_catalog(&root, &plan, Limits::default()).await.unwrap();
    assert_same(&stored(committed).await, &undisturbed);
}

/// The events of each flush. Late ones come late.
fn arrivals(flushes: i64) -> Vec<Vec<Event>> {
    let mut seq = 0;
    let of_flush = |number: i64| {
        let mut here = events(number);
        for event in &mut here {
            seq += 1;
            event.envelope_mut().source = "test".into();
            event.envelope_mut().seq = seq;
            event.seal();
        }
        here.sort_by_key(Event::event_time_ms);
        here
    };
    (0..flushes).map(of_flush).collect()
}

/// A clock that tells what is stored.
fn clock() -> (Arc<AtomicI64>, Clock) {
    let time = Arc::new(AtomicI64::new(START_MS));
    let shared = Arc::clone(&time);
    let now = move || DateTime::from_timestamp_millis(shared.load(Ordering::Relaxed)).unwrap();
    (time, Clock::new(now))
}

/// Flushes before and after joined tables are no longer updated.
const UPDATED: u64 = 30;
const NOT_UPDATED: u64 = 120;

/// While joined tables are not updated, the log keeps what they lack, whatever its age. So a pause
/// costs what happened in it, and not all of history.
#[tokio::test]
async fn a_log_keeps_the_versions_that_joined_tables_lack() {
    let plan = plan().await;
    let (time, clock) = clock();
    let folder = tempfile::tempdir().unwrap();
    let root = Url::from_directory_path(folder.path()).unwrap();
    counting_store::watch(folder.path(), &clock);
    let mut process = Process::start(&root, &plan).await;
    process.lake.set_clock(&clock);
    let maintenance =
        Maintenance { keep_log: Duration::zero(), keep_replaced: Duration::zero(), ..Maintenance::default() };
    for (number, events) in (0..).zip(&arrivals((UPDATED + NOT_UPDATED) as i64)) {
        // Ten seconds, unlike the time of the events.
        time.fetch_add(10_000, Ordering::Relaxed);
        process.ingest(events);
        process.lake.flush().await.unwrap();
        if number < UPDATED && number as i64 % JOINED_EVERY == 0 {
            process.lake.update_joined().await.unwrap();
        }
        maintenance::run_due(&mut process.lake, &maintenance).await.unwrap();
        let (_, log) = files_of(folder.path(), "job_events");
        assert!(number >= UPDATED || log <= 2 * 100 + 10, "{log} files");
    }
    let (_, log) = files_of(folder.path(), "gpu_samples");
    assert!(log >= NOT_UPDATED, "{log} files");
    // What is recomputed is these flushes, of which each made an hour's segment.
    let updated = process.lake.update_joined().await.unwrap();
    assert!(updated.files_added < NOT_UPDATED + 50, "{updated:?}: history was recomputed");
}
