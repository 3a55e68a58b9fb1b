//! Files that were replaced: queries that use them keep them, and nothing else does for long.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use chrono::Duration;
use tidegate_lake::catalog::CatalogSource;
use tidegate_lake::catalog::disk::disk_use;
use tidegate_lake::clock::Clock;
use tidegate_lake::engine::{self, Limits};
use tidegate_lake::lake::{Lake, Sharing};
use tidegate_lake::maintenance::{self, Maintenance};
use tidegate_lake::pipeline::{Plan, shipped};
use tidegate_lake::testing::with_dependencies;
use url::Url;

use crate::counting_store;
use crate::histories::history;
use crate::long_log::Process;

const HOUR_MS: i64 = 3_600_000;

async fn plan() -> Plan {
    Plan::compile(with_dependencies(shipped(), vec!["usage_1h".into()])).await.unwrap()
}

fn data_files(table: &Path) -> Vec<PathBuf> {
    let (mut files, mut open) = (Vec::new(), vec![table.to_path_buf()]);
    while let Some(folder) = open.pop() {
        for entry in folder.read_dir().unwrap().map(|entry| entry.unwrap().path()) {
            match (entry.is_dir(), entry.extension().is_some_and(|e| e == "parquet")) {
                (true, _) if !entry.ends_with("_delta_log") => open.push(entry),
                (false, true) => files.push(entry),
                _ => {}
            }
        }
    }
    files
}

async fn rows(tables: &CatalogSource) -> usize {
    let limits = Limits::default();
    let ctx = engine::session(&engine::runtime(limits).unwrap(), limits);
    tables.current().register(&ctx).unwrap();
    let rows = ctx.sql("SELECT * FROM usage_1h").await.unwrap().collect().await.unwrap();
    rows.iter().map(|batch| batch.num_rows()).sum()
}

/// A clock that starts now, and the hours by which it is ahead.
fn clock() -> (Arc<AtomicI64>, Clock) {
    let (started, hours) = (chrono::Utc::now(), Arc::new(AtomicI64::new(0)));
    let shared = Arc::clone(&hours);
    (hours, Clock::new(move || started + Duration::milliseconds(shared.load(Ordering::Relaxed) * HOUR_MS)))
}

#[tokio::test]
async fn replaced_files_stay_as_long_as_a_query_or_the_setting_needs_them() {
    let plan = plan().await;
    let folder = tempfile::tempdir().unwrap();
    let root = Url::from_directory_path(folder.path()).unwrap();
    let (hours, clock) = clock();
    counting_store::watch(folder.path(), &clock);
    let mut process = Process::start(&root, &plan).await;
    process.lake.set_clock(&clock);
    let events = history(3, 30);
    let (first, rest) = events.split_at(events.len() / 2);
    process.ingest(first);
    process.lake.flush().await.unwrap();
    let when = Maintenance { keep_replaced: Duration::hours(2), ..Maintenance::default() };
    maintenance::run_due(&mut process.lake, &when).await.unwrap();
    let table = folder.path().join("usage_1h");
    let before = data_files(&table);
    let in_use = CatalogSource::fixed(process.lake.catalog().current().as_ref().clone());
    let held = process.lake.catalog().current();
    let rows_before = rows(&in_use).await;

    process.ingest(rest);
    process.lake.flush().await.unwrap();
    let dead = process.lake.dead_files()["usage_1h"].files;
    assert!(dead > 0, "segments were replaced");
    maintenance::run_due(&mut process.lake, &when).await.unwrap();
    assert!(before.iter().all(|file| file.exists()), "the setting keeps them for two hours");
    hours.store(3, Ordering::Relaxed);
    maintenance::run_due(&mut process.lake, &when).await.unwrap();
    assert!(before.iter().all(|file| file.exists()), "a query keeps them for as long as it takes");
    assert_eq!(rows(&in_use).await, rows_before);
    drop(held);
    maintenance::run_due(&mut process.lake, &when).await.unwrap();
    assert_eq!(before.iter().filter(|file| !file.exists()).count() as u64, dead);
    assert_eq!(process.lake.dead_files()["usage_1h"].files, 0);
    let live = process.lake.live_files().unwrap()["usage_1h"].files;
    assert_eq!(data_files(&table).len() as u64, live);
}

#[tokio::test]
async fn a_restart_deletes_what_was_left_and_what_no_commit_names() {
    let plan = plan().await;
    let folder = tempfile::tempdir().unwrap();
    let root = Url::from_directory_path(folder.path()).unwrap();
    let (hours, clock) = clock();
    counting_store::watch(folder.path(), &clock);
    let mut process = Process::start(&root, &plan).await;
    process.lake.set_clock(&clock);
    let events = history(3, 30);
    for part in events.chunks(events.len().div_ceil(3)) {
        process.ingest(part);
        process.lake.flush().await.unwrap();
    }
    let live = process.lake.live_files().unwrap()["usage_1h"].files;
    let dead = process.lake.dead_files()["usage_1h"].files;
    drop(process);
    // The process died after it had written a file, and before the commit that names it.
    let table = folder.path().join("usage_1h");
    let one = data_files(&table).remove(0);
    let unnamed = one.with_file_name("unnamed.parquet");
    std::fs::copy(&one, &unnamed).unwrap();
    // Of another one it had written a part only.
    let part = one.with_file_name("part.parquet#1");
    std::fs::copy(&one, &part).unwrap();
    let told = disk_use(&root, &plan).await.unwrap();
    let told = told.iter().find(|disk| disk.table == "usage_1h").unwrap();
    assert_eq!((told.live.files, told.dead.files), (live, dead + 1));

    let mut lake = Lake::open(&root, plan.clone(), Limits::default(), Sharing::Exclusive).await.unwrap();
    lake.set_clock(&clock);
    lake.attach("jobs", &[0]).await.unwrap();
    let when = Maintenance::default();
    maintenance::run_due(&mut lake, &when).await.unwrap();
    assert_eq!(data_files(&table).len() as u64, live + dead + 1);
    hours.store(2, Ordering::Relaxed);
    // No query uses what was there when the process started.
    lake.refresh().await.unwrap();
    maintenance::run_due(&mut lake, &when).await.unwrap();
    assert_eq!(data_files(&table).len() as u64, live + 1, "an hour after they were replaced");
    assert!(part.exists(), "its process may be writing it");
    hours.store(26, Ordering::Relaxed);
    maintenance::run_due(&mut lake, &when).await.unwrap();
    assert_eq!(data_files(&table).len() as u64, live);
    assert!(!unnamed.exists() && !part.exists(), "a day after they were written");
}
