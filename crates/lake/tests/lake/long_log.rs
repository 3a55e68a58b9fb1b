//! A table's log after 30 days with a commit every ten seconds: commits stay cheap, a checkpoint
//! lets old versions be deleted, and a table that lacks deleted versions is recomputed.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use tidegate_events::Event;
use tidegate_lake::catalog::Catalog;
use tidegate_lake::catalog::committed_catalog;
use tidegate_lake::delta::next_checkpoint;
use tidegate_lake::engine::Limits;
use tidegate_lake::lake::{Lake, Sharing};
use tidegate_lake::maintenance::{self, Maintenance};
use tidegate_lake::pipeline::Plan;
use tidegate_lake::testing::equivalence::{TableContents, read_tables};
use url::Url;

use crate::counting_store::{self, Listings};
use crate::histories::history;

/// 30 days with a commit every ten seconds.
const VERSIONS: u64 = 259_200;
const SECONDS_PER_COMMIT: u64 = 10;
/// Versions that joined tables lack are kept for a week.
const LONGEST: u64 = 7 * 24 * 3_600 / SECONDS_PER_COMMIT;
const CHECKPOINT_EVERY: u64 = 100;

/// One log partition of each topic, written by one process.
pub struct Process {
    pub lake: Lake,
    next: BTreeMap<String, u64>,
}

impl Process {
    pub async fn start(root: &Url, plan: &Plan) -> Self {
        let mut lake = Lake::open(root, plan.clone(), Limits::default(), Sharing::Exclusive).await.unwrap();
        let mut next = BTreeMap::new();
        for group in &plan.groups {
            let topic = group.raw.schema.topic();
            next.insert(topic.to_owned(), lake.attach(topic, &[0]).await.unwrap()[0]);
        }
        Self { lake, next }
    }

    pub fn ingest(&mut self, events: &[Event]) {
        for (topic, next) in &mut self.next {
            let here: Vec<&Event> = events.iter().filter(|event| event.schema().topic() == topic).collect();
            let mut intake = self.lake.intake(topic, 0);
            (*next..).zip(&here).for_each(|(offset, event)| intake.push(offset, event));
            *next += here.len() as u64;
            self.lake.absorb(intake, *next).unwrap();
        }
    }

    pub async fn shown(&self) -> TableContents {
        stored(Catalog::clone(&self.lake.catalog().current())).await
    }
}

/// The folder of a table's log. It is inside the folder of the table's version.
fn log_of(root: &Path, table: &str) -> PathBuf {
    let mut versions = root.join(table).read_dir().unwrap();
    versions.next().unwrap().unwrap().path().join("_delta_log")
}

fn commit(log: &Path, version: u64) -> PathBuf {
    log.join(format!("{version:020}.json"))
}

fn checkpoint(log: &Path, version: u64) -> PathBuf {
    log.join(format!("{version:020}.checkpoint.parquet"))
}

/// The last of about this many versions: two commits before a checkpoint.
fn last_of(table: &str, versions: u64) -> u64 {
    next_checkpoint(table, versions as i64) as u64 - 2
}

/// Extends a log to `last` versions with empty commits. The checkpoints have the table's content.
/// Files of one hour are hard links to one file.
async fn lengthen(log: &Path, links: &Path, name: &str, last: u64) {
    let url = Url::from_directory_path(log.parent().unwrap()).unwrap();
    let table = deltalake::open_table(url).await.unwrap();
    let real = table.version().unwrap();
    deltalake::protocol::checkpoints::create_checkpoint(&table, None).await.unwrap();
    let state = checkpoint(log, real);
    let age = |version: u64| Duration::from_secs((last - version) * SECONDS_PER_COMMIT);
    let dated = |path: &Path, version: u64| {
        let written = SystemTime::now() - age(version);
        File::options().write(true).open(path).unwrap().set_modified(written).unwrap();
    };
    (0..=real).for_each(|version| dated(&commit(log, version), version));
    let says_nothing = r#"{"commitInfo":{"timestamp":0,"operation":"WRITE","operationParameters":{}}}"#;
    let (one_commit, one_checkpoint) = (links.join("commit"), links.join("checkpoint"));
    let mut hour = u64::MAX;
    for version in real + 1..=last {
        if age(version).as_secs() / 3_600 != hour {
            hour = age(version).as_secs() / 3_600;
            for file in [&one_commit, &one_checkpoint].into_iter().filter(|file| file.exists()) {
                fs::remove_file(file).unwrap();
            }
            fs::write(&one_commit, says_nothing).unwrap();
            fs::copy(&state, &one_checkpoint).unwrap();
            [&one_commit, &one_checkpoint].into_iter().for_each(|file| dated(file, version));
        }
        fs::hard_link(&one_commit, commit(log, version)).unwrap();
        if next_checkpoint(name, version as i64) as u64 == version {
            fs::hard_link(&one_checkpoint, checkpoint(log, version)).unwrap();
            let hint = serde_json::json!({ "version": version, "size": 1 });
            fs::write(log.join("_last_checkpoint"), hint.to_string()).unwrap();
        }
    }
    [state, one_commit, one_checkpoint].into_iter().for_each(|file| fs::remove_file(file).unwrap());
}

/// Extends the logs of these tables, and returns how long a flush takes then.
async fn flushes_over_a_long_log(tables: &[&str]) -> Duration {
    counting_store::install();
    let plan = Plan::compile(tidegate_lake::pipeline::shipped()).await.unwrap();
    let events = history(11, 12);
    let parts: Vec<&[Event]> = events.chunks(events.len().div_ceil(4)).collect();

    let undisturbed = {
        let folder = tempfile::tempdir().unwrap();
        let mut process = Process::start(&Url::from_directory_path(folder.path()).unwrap(), &plan).await;
        process.ingest(&events);
        process.lake.flush().await.unwrap();
        process.lake.update_joined().await.unwrap();
        process.shown().await
    };

    let (folder, links) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let root = Url::from_directory_path(folder.path()).unwrap();
    let mut process = Process::start(&root, &plan).await;
    process.ingest(parts[0]);
    process.lake.flush().await.unwrap();
    process.lake.update_joined().await.unwrap();
    drop(process);
    let logs: Vec<PathBuf> = tables.iter().map(|table| log_of(folder.path(), table)).collect();
    for (log, table) in logs.iter().zip(tables) {
        lengthen(log, links.path(), table, last_of(table, VERSIONS)).await;
    }

    let mut process = Process::start(&root, &plan).await;
    process.ingest(parts[1]);
    for log in &logs {
        counting_store::take(log);
    }
    let started = Instant::now();
    process.lake.flush().await.unwrap();
    let took = started.elapsed();
    for (log, table) in logs.iter().zip(tables) {
        assert!(commit(log, last_of(table, VERSIONS) + 1).exists(), "{} got a commit", log.display());
        let listed = counting_store::take(log);
        assert_eq!(listed, Listings { from_offset: 1, whole: 0 }, "a commit lists {} once", log.display());
    }

    // The next commit is followed by a checkpoint, and that by a log cleanup.
    process.ingest(parts[2]);
    process.lake.flush().await.unwrap();
    let maintenance = Maintenance::default();
    maintenance::run_due(&mut process.lake, &maintenance).await.unwrap();
    let an_hour = maintenance.keep_log.num_seconds() as u64 / SECONDS_PER_COMMIT;
    for (log, table) in logs.iter().zip(tables) {
        assert!(checkpoint(log, last_of(table, VERSIONS) + 2).exists());
        let listed = counting_store::take(log);
        assert!(listed.whole <= 2 && listed.from_offset <= 8, "{listed:?}");
        let left = log.read_dir().unwrap().count() as u64;
        // Files of an hour share one date, and the oldest files are those since the checkpoint
        // before.
        let is_anchor = plan.groups.iter().any(|group| group.commit_order().pop().unwrap().name == *table);
        let kept = if is_anchor { LONGEST } else { an_hour };
        let allowed = kept - an_hour..kept + an_hour + kept / CHECKPOINT_EVERY + 2 * CHECKPOINT_EVERY;
        assert!(allowed.contains(&left), "{left} files are left in {}", log.display());
    }
    let after = Instant::now();
    process.ingest(parts[3]);
    process.lake.flush().await.unwrap();
    println!(
        "flush over {VERSIONS} versions of {tables:?}: {took:?}; after a log cleanup: {:?}",
        after.elapsed()
    );

    // The log no longer has all invalidated spans since joined tables were updated, so they are
    // recomputed.
    process.lake.update_joined().await.unwrap();
    assert_same(&process.shown().await, &undisturbed);
    drop(process);
    let committed = committed_catalog(&root, &plan, Limits::default()).await.unwrap();
    assert_same(&stored(committed).await, &undisturbed);
    Process::start(&root, &plan).await;
    took
}

/// Content of the tables that are not views.
pub async fn stored(mut catalog: Catalog) -> TableContents {
    let views = catalog.views.clone();
    catalog.specs.retain(|table, _| !views.contains(table));
    read_tables(&catalog).await.unwrap()
}

pub fn assert_same(here: &TableContents, there: &TableContents) {
    for (table, rows) in there {
        assert!(here.get(table) == Some(rows), "{table} differs");
    }
}

#[tokio::test]
async fn a_commit_lists_its_log_once_and_a_checkpoint_deletes_old_versions() {
    flushes_over_a_long_log(&["job_events"]).await;
}

const FIVE: [&str; 5] = ["job_events", "attempts", "usage_1h", "usage_1d", "queue_delay_1d"];

/// `cargo test --release -p tidegate-lake --test lake -- --ignored --nocapture five_tables`
#[tokio::test]
#[ignore = "times a flush; makes 1.3 million files"]
async fn five_tables_with_long_logs() {
    flushes_over_a_long_log(&FIVE).await;
}
