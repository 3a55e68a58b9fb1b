//! What a process does with a history: it absorbs it in parts, maintains the tables, and restarts
//! now and then.

use std::fs;
use std::num::NonZeroU64;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use arrow::array::{AsArray, BooleanArray, RecordBatch};
use arrow::compute::filter_record_batch;
use arrow::datatypes::TimestampMicrosecondType;
use tidegate_events::SchemaId;
use tidegate_lake::catalog::committed_catalog;
use tidegate_lake::engine::Limits;
use tidegate_lake::lake::{Lake, Sharing};
use tidegate_lake::maintenance::Maintenance;
use tidegate_lake::maintenance::retention::Retention;
use tidegate_lake::pipeline::Plan;
use tidegate_lake::runner::{Pace, Runner};
use tidegate_lake::testing::equivalence::{TableContents, read_tables};
use tidegate_lake::testing::histories::{History, LATEST_MS, Records};
use tidegate_log::{
    Batch, DataDir, EmbeddedLog, EmbeddedOptions, EventLog, Producer, TopicConfig, TopicPartition,
};
use tokio::sync::watch;
use url::Url;

use crate::snapshots;
use crate::tables::Tables;

/// Parts in which a history is absorbed.
pub const ACTS: usize = 3;
/// Small segments, so that some fill up and are dropped.
const OPTIONS: EmbeddedOptions =
    EmbeddedOptions { segment_bytes: 64 << 10, segment_batches: 4, memory_table_bytes: 1 << 20 };
const SAYS_NOTHING: &str = r#"{"commitInfo":{"timestamp":0,"operation":"WRITE","operationParameters":{}}}"#;
/// Records per append.
const BATCH: usize = 50;
/// Samples older than this, measured from the newest one, are dropped from their table. A repeat of
/// a dropped one would count again.
pub const KEEP_SAMPLES_MS: i64 = LATEST_MS + 5 * 60_000;

pub struct Scenario {
    pub plan: Plan,
    pub records: Records,
    pace: Pace,
}

impl Scenario {
    pub async fn new(seed: u64, tables: Tables) -> Self {
        let plan = tables.plan().await;
        let records = History { seed, jobs: 5, minutes: 100 }.records(1).unwrap();
        let retention = [("gpu_samples".to_owned(), chrono::Duration::milliseconds(KEEP_SAMPLES_MS))];
        let maintenance = Maintenance {
            target_bytes: NonZeroU64::new(1 << 20).unwrap(),
            small_files: 2,
            keep_replaced: chrono::Duration::zero(),
            keep_log: chrono::Duration::zero(),
            retention: Retention::new(retention.into(), &plan).unwrap(),
        };
        // In odd histories a flush takes several reads, so that a repair reads more than once.
        let (flush_every, read_bytes) = match seed % 2 {
            0 => (Duration::ZERO, 64 << 10),
            _ => (Duration::from_secs(3600), 16 << 10),
        };
        let pace = Pace {
            read_bytes,
            flush_events: 400,
            flush_every,
            commits_per_hour: NonZeroU64::MAX,
            joined_every: Duration::ZERO,
            repair_at_stop: Duration::from_secs(3600),
            refresh_every: None,
            maintenance,
            oldest_ms: Pace::default().oldest_ms,
        };
        Self { plan, records, pace }
    }

    /// Plays the acts from `from` on. Work of an interrupted act is done again: producers append
    /// their records once more, and the runner continues from the tables.
    pub async fn play(&self, data: &Path, from: usize) {
        for act in from..ACTS {
            snapshots::act(act);
            let (log, mut runner) = self.open(data, self.pace.clone()).await;
            self.append(log.as_ref(), act);
            run_until_done(&mut runner).await;
            runner.maintain().await.unwrap();
            drop(runner);
            if act == 0 {
                snapshots::close(true);
                lengthen_logs(data).await;
                snapshots::close(false);
            }
        }
    }

    /// Appends everything that is left at once, and lets the runner catch up.
    pub async fn play_rest_at_once(&self, data: &Path) {
        let pace = Pace { read_bytes: 8 << 20, flush_events: 1 << 20, ..self.pace.clone() };
        let (log, mut runner) = self.open(data, pace).await;
        (0..ACTS).for_each(|act| self.append(log.as_ref(), act));
        run_until_done(&mut runner).await;
        runner.maintain().await.unwrap();
    }

    async fn open(&self, data: &Path, pace: Pace) -> (Arc<dyn EventLog>, Runner) {
        let folder = DataDir::open(data).unwrap();
        let log: Arc<dyn EventLog> = Arc::new(EmbeddedLog::open(folder.log(), OPTIONS).unwrap());
        for topic in SchemaId::ALL.map(SchemaId::topic) {
            let retain_bytes = (topic == SchemaId::GpuSampleBatch.topic()).then_some(16 << 10);
            log.create_topic(topic, TopicConfig { partitions: 1, retain_ms: None, retain_bytes }).unwrap();
        }
        let lake =
            Lake::open(&lake_url(data), self.plan.clone(), Limits::default(), Sharing::Exclusive).await;
        let runner = Runner::start_exclusive(Arc::clone(&log), lake.unwrap(), pace).await.unwrap();
        (log, runner)
    }

    fn append(&self, log: &dyn EventLog, act: usize) {
        for (at, records) in &self.records {
            let part = |act: usize| records.len() * act / ACTS;
            let mut first = part(act);
            while first < part(act + 1) {
                let end = (first + BATCH).min(part(act + 1));
                let producer = Producer { source: "history".into(), epoch: 1 };
                let batch =
                    Batch { producer, first_seq: first as u64, records: records[first..end].to_vec() };
                log.append(at, batch).unwrap();
                first = end;
            }
        }
    }

    /// Result in a folder: each producer's records that the log still holds, and every table.
    pub async fn outcome(&self, data: &Path) -> TableContents {
        let log = EmbeddedLog::open(data.join("log"), OPTIONS).unwrap();
        log.verify().unwrap();
        for (at, records) in &self.records {
            holds(&log, at, records);
        }
        let mut contents = tables_below(data, &self.plan).await;
        let samples = contents.get_mut("gpu_samples").unwrap();
        *samples = retained_rows(samples);
        contents
    }
}

/// Content of the tables of a folder. Views are computed from them.
pub async fn tables_below(data: &Path, plan: &Plan) -> TableContents {
    let mut catalog = committed_catalog(&lake_url(data), plan, Limits::default()).await.unwrap();
    let views = catalog.views.clone();
    catalog.specs.retain(|table, _| !views.contains(table));
    read_tables(&catalog).await.unwrap()
}

/// Extends each table's log with empty commits, so that its next commit is followed by a
/// checkpoint.
async fn lengthen_logs(data: &Path) {
    for table in data.join("lake").read_dir().unwrap() {
        let table = table.unwrap();
        let folder = table.path().read_dir().unwrap().next().unwrap().unwrap().path();
        let (log, url) = (folder.join("_delta_log"), Url::from_directory_path(&folder).unwrap());
        let commit = |version: u64| log.join(format!("{version:020}.json"));
        let checkpoint = |version: u64| log.join(format!("{version:020}.checkpoint.parquet"));
        let table_name = table.file_name();
        let table = deltalake::open_table(url).await.unwrap();
        let version = table.version().unwrap() as u64;
        let due = tidegate_lake::delta::next_checkpoint(table_name.to_str().unwrap(), version as i64 + 2);
        let before = due as u64 - 1;
        deltalake::protocol::checkpoints::create_checkpoint(&table, None).await.unwrap();
        fs::rename(checkpoint(version), checkpoint(before)).unwrap();
        fs::write(commit(before), SAYS_NOTHING).unwrap();
        let hint = log.join("_last_checkpoint");
        fs::remove_file(&hint).unwrap();
        fs::write(hint, format!(r#"{{"version":{before},"size":1}}"#)).unwrap();
        (0..=version).for_each(|version| fs::remove_file(commit(version)).unwrap_or_default());
    }
}

/// Rows that retention keeps. Which older ones are left depends on the files they are in.
fn retained_rows(rows: &RecordBatch) -> RecordBatch {
    let times = rows.column_by_name("event_time").unwrap().as_primitive::<TimestampMicrosecondType>();
    let border = times.values().iter().max().map_or(0, |newest| newest - KEEP_SAMPLES_MS * 1_000);
    let keep: BooleanArray = times.values().iter().map(|time| Some(*time >= border)).collect();
    filter_record_batch(rows, &keep).unwrap()
}

/// Checks that a partition holds the end of what was appended, each record once and in order,
/// beside the misplaced records that the runner routed there.
fn holds(log: &EmbeddedLog, at: &TopicPartition, records: &[tidegate_log::Record]) {
    let mut held = Vec::new();
    let mut next = log.extent(at).unwrap().start;
    loop {
        let read = log.read(at, next, 8 << 20).unwrap();
        let Some(last) = read.last() else { break };
        next = last.offset + 1;
        held.extend(read.into_iter().map(|stored| stored.record));
    }
    held.retain(|record| records.contains(record));
    assert!(
        records.ends_with(&held),
        "{at:?}: {} of {} records, in another order",
        held.len(),
        records.len()
    );
    let may_be_trimmed = at.topic == SchemaId::GpuSampleBatch.topic();
    assert!(may_be_trimmed || held.len() == records.len(), "{at:?}: {} of {}", held.len(), records.len());
}

pub fn lake_url(data: &Path) -> Url {
    Url::from_directory_path(data.join("lake")).unwrap()
}

/// Runs until a round brings nothing new, then commits what is left.
async fn run_until_done(runner: &mut Runner) {
    let (stop, stopped) = watch::channel(false);
    let mut before = None;
    let mut seen = |progress: &tidegate_lake::runner::Progress| {
        if before.replace(progress.records) == Some(progress.records) {
            stop.send_replace(true);
        }
    };
    runner.run(stopped, &mut seen).await.unwrap();
}
