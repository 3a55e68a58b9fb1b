//! Several processes on one lake: one dies or hangs at an instant, and the other takes over with
//! its memory intact.

use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use tidegate_events::SchemaId;
use tidegate_lake::engine::Limits;
use tidegate_lake::lake::{Lake, Sharing};
use tidegate_lake::pipeline::Plan;
use tidegate_lake::runner::{Pace, Runner};
use tidegate_lake::testing::equivalence::TableContents;
use tidegate_lake::testing::histories::{History, Records};
use tidegate_log::{Batch, EmbeddedLog, EmbeddedOptions, EventLog, Producer, TopicConfig};

use crate::consumer_group::Handle;
use crate::scenario::{lake_url, tables_below};
use crate::scratch;
use crate::tables::Tables;
use crate::victim::{self, Fate, VICTIM};

const PARTITIONS: u32 = 2;
/// Longer than anything left to do takes.
const PATIENCE: Duration = Duration::from_secs(240);

/// A history on a log that two processes share.
pub struct TwoProcesses {
    seed: u64,
    plan: Plan,
    records: Records,
    expected: TableContents,
}

impl TwoProcesses {
    pub fn new(seed: u64) -> Self {
        let plan = single_threaded("plan").block_on(Tables::Few.plan());
        let records = History { seed, jobs: 4, minutes: 100 }.records(PARTITIONS).unwrap();
        let mut two_processes = Self { seed, plan, records, expected: TableContents::new() };
        let folder = scratch();
        two_processes.expected = two_processes.undisturbed(folder.path());
        two_processes
    }

    /// The result of one process alone.
    fn undisturbed(&self, data: &Path) -> TableContents {
        let log = self.log(data);
        let catch_up = async {
            let lake =
                Lake::open(&lake_url(data), self.plan.clone(), Limits::default(), Sharing::Exclusive).await;
            let mut runner = Runner::start_exclusive(Arc::new(log), lake.unwrap(), pace()).await.unwrap();
            runner.catch_up(&mut |_| {}).await.unwrap();
            tables_below(data, &self.plan).await
        };
        single_threaded("undisturbed").block_on(catch_up)
    }

    /// A log with the whole history.
    fn log(&self, data: &Path) -> EmbeddedLog {
        let log = EmbeddedLog::open(data.join("log"), EmbeddedOptions::default()).unwrap();
        for topic in SchemaId::ALL.map(SchemaId::topic) {
            let config = TopicConfig { partitions: PARTITIONS, retain_ms: None, retain_bytes: None };
            log.create_topic(topic, config).unwrap();
        }
        for (at, records) in &self.records {
            let producer = Producer { source: "history".into(), epoch: 1 };
            log.append(at, Batch { producer, first_seq: 0, records: records.clone() }).unwrap();
        }
        std::fs::create_dir_all(data.join("lake")).unwrap();
        log
    }

    /// Tables that differ from those of one process alone.
    pub fn others(&self, found: &TableContents) -> Vec<String> {
        let others = self.expected.iter().filter(|(table, rows)| found[*table] != **rows);
        others.map(|(table, _)| table.clone()).collect()
    }

    /// Runs two processes, of which one meets its fate at an instant. Returns its last step and the
    /// resulting tables; `None` if it was done before that instant.
    pub fn with_fate(&self, fate: Fate, at: usize) -> (Option<String>, TableContents) {
        let folder = scratch();
        let data = folder.path();
        let log = self.log(data);
        let [first, second] = Handle::pair(&log);
        victim::schedule(fate, at);
        thread::scope(|scope| {
            // It runs until everything is done, as one process of several does in production.
            let victim = thread::Builder::new().name(VICTIM.into());
            let mine = first.clone();
            let victim = victim.spawn_scoped(scope, move || self.run_until_done(data, mine, VICTIM)).unwrap();
            let other = scope.spawn(|| self.run_until_done(data, second.clone(), "other"));
            let (begun, mut is_gone) = (Instant::now(), false);
            while !other.is_finished() {
                // A process that has finished leaves its group, as a dead one does. The other one
                // must take its partitions over to update joined tables with what it commits later.
                if !is_gone && (victim::last_step().is_some() || victim.is_finished()) {
                    first.is_gone();
                    is_gone = true;
                }
                if begun.elapsed() > PATIENCE {
                    let last_step = victim::last_step();
                    eprintln!(
                        "seed {}: not done after {fate:?} at {at}, having done {last_step:?}",
                        self.seed
                    );
                    std::process::exit(1);
                }
                thread::sleep(Duration::from_millis(2));
            }
            let done = other.join();
            // The process that hung comes back as if nothing had happened, and the other one is
            // gone.
            second.is_gone();
            first.is_back();
            victim::resume();
            let back = victim.join();
            done.unwrap().unwrap();
            // A dead process ends with an error or not at all.
            if fate == Fate::Hangs || victim::last_step().is_none() {
                back.unwrap().unwrap();
            }
        });
        let tables = single_threaded("outcome").block_on(tables_below(data, &self.plan));
        (victim::last_step(), tables)
    }

    /// One process: absorbs its share until everything is in the tables.
    fn run_until_done(&self, data: &Path, log: Handle, name: &str) -> Result<(), String> {
        let work = async {
            let (root, plan) = (lake_url(data), self.plan.clone());
            let lake = Lake::open(&root, plan, Limits::default(), Sharing::Shared).await;
            let lake = lake.map_err(|e| e.to_string())?;
            let runner = Runner::start(Arc::new(log), "crash", lake, pace()).await;
            let mut runner = runner.map_err(|e| e.to_string())?;
            runner.catch_up(&mut |_| {}).await.map_err(|e| e.to_string())?;
            Ok(())
        };
        single_threaded(name).block_on(work)
    }
}

/// Small reads and flushes, so that there are many.
fn pace() -> Pace {
    Pace { read_bytes: 16 << 10, flush_events: 400, refresh_every: None, ..Pace::default() }
}

/// A runtime whose threads have this name.
fn single_threaded(name: &str) -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().thread_name(name).enable_all().build().unwrap()
}
