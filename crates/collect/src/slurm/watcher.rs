//! The watcher: polls Slurm and passes events to a sink.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use std::{fmt, fs, io};

use tidegate_events::Event;
use tidegate_slurm::sacct::Attempts;
use tidegate_slurm::{CommandError, SlurmClient};

use super::inventory::{Answers, Limits};
use super::observed::ObservedJob;
use super::state::State;
use super::tracker::{ACCOUNT_EVERY_MS, Tracker};
use crate::checkpoint::Checkpoint;
use crate::reading::Sink;

/// How to watch a cluster.
#[derive(Debug, Clone)]
pub struct SlurmOptions {
    /// Name of the cluster in events.
    pub cluster: String,
    /// Interval between queries for jobs.
    pub interval: Duration,
    /// Interval between queries for nodes, partitions, reservations and limits.
    pub inventory_interval: Duration,
    /// Time limit of one answer.
    pub time_limit: Duration,
    /// Folder of the checkpoint; without it, a restart emits again what Slurm still knows.
    pub state: Option<PathBuf>,
    /// Folder of Slurm's programs, if they are not on the path.
    pub programs: Option<PathBuf>,
    /// `slurm.conf`, if it is not where the programs look.
    pub conf: Option<PathBuf>,
    /// Confirm ends by accounting; by default, if slurmctld uses slurmdbd.
    pub accounting: Option<bool>,
    /// Emit each device that a job holds on each node.
    pub devices: bool,
}

impl SlurmOptions {
    /// Options with the defaults for a cluster.
    pub fn new(cluster: impl Into<String>) -> Self {
        Self {
            cluster: cluster.into(),
            interval: Duration::from_secs(5),
            inventory_interval: Duration::from_secs(30),
            time_limit: Duration::from_secs(60),
            state: None,
            programs: None,
            conf: None,
            accounting: None,
            devices: true,
        }
    }
}

/// Why a poll gave nothing. Nothing is concluded from it.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages describe the variants")]
pub enum PollError {
    #[error(transparent)]
    Command(#[from] CommandError),
    #[error("cannot save the state of jobs: {0}")]
    State(#[from] io::Error),
    #[error("cannot pass on events: {0}")]
    Store(String),
}

/// Watches a cluster.
///
/// [`Watcher::poll`] returns the same events until [`Watcher::commit`] confirms that they were
/// passed on. State and events are saved before they are returned: after a crash the same events
/// come again, with the same ids, and count once.
pub struct Watcher {
    options: SlurmOptions,
    client: SlurmClient,
    /// State and events that are not committed.
    checkpoint: Checkpoint,
    tracker: Tracker,
    setup: Option<Found>,
    inventoried_ms: Option<i64>,
    /// When accounting was last asked for starts that Slurm undid.
    undone_asked_ms: Option<i64>,
    /// Whether the last query of accounting failed.
    accounting_failed: bool,
    /// What was warned of at the last answer of accounting: records that cannot be used.
    set_aside: BTreeSet<String>,
    saved_ms: i64,
    /// The state is saved, or need not be.
    saved: bool,
}

/// The cluster's configuration, as far as the watcher depends on it.
#[derive(Debug, Clone)]
struct Found {
    /// Whether TRES name GPUs.
    tracks_gpus: bool,
    at_ms: i64,
    accounting: bool,
    /// Its name in accounting.
    name: Option<String>,
}

/// The configuration is read again after this time.
const SETUP_MS: i64 = 600_000;
/// A state without news is saved this often.
const SAVE_MS: i64 = 60_000;

impl fmt::Debug for Watcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watcher").field("options", &self.options).finish_non_exhaustive()
    }
}

impl Watcher {
    /// A watcher that continues from its checkpoint. Does not query Slurm yet.
    ///
    /// # Errors
    /// The checkpoint cannot be read.
    pub fn new(options: SlurmOptions) -> io::Result<Self> {
        let file =
            options.state.as_ref().map(|folder| folder.join(format!("slurm-{}.json", options.cluster)));
        options.state.as_ref().map_or(Ok(()), fs::create_dir_all)?;
        let (state, checkpoint) = Checkpoint::open::<State>(file)?;
        let client = SlurmClient {
            folder: options.programs.clone(),
            conf: options.conf.clone(),
            time_limit: options.time_limit,
            most_bytes: SlurmClient::MOST_BYTES,
        };
        let tracker =
            Tracker::new(state.unwrap_or_default(), options.accounting.unwrap_or(false), options.devices);
        Ok(Self {
            options,
            client,
            checkpoint,
            tracker,
            setup: None,
            inventoried_ms: None,
            undone_asked_ms: None,
            accounting_failed: false,
            set_aside: BTreeSet::new(),
            saved_ms: 0,
            saved: true,
        })
    }

    /// Events since the last poll, up to now (ms since 1970); or again those that were not
    /// committed.
    ///
    /// # Errors
    /// Slurm did not answer, or its answer cannot be used: the state is unchanged. Or the events
    /// could not be saved: they come again.
    pub fn poll(&mut self, now_ms: i64) -> Result<Vec<Event>, PollError> {
        if self.checkpoint.pending().is_empty() {
            let events = self.ask(now_ms)?;
            let heartbeat = |event: &Event| matches!(event, Event::Job(job) if job.job_id.is_empty());
            let news = events.iter().any(|event| !heartbeat(event));
            self.saved = !news && now_ms - self.saved_ms < SAVE_MS;
            self.checkpoint.add(events);
        }
        if !self.saved {
            self.checkpoint.save(&self.tracker.state)?;
            (self.saved, self.saved_ms) = (true, now_ms);
        }
        Ok(self.checkpoint.pending().to_vec())
    }

    /// Confirms that the events of the last poll were passed on.
    pub fn commit(&mut self) {
        self.checkpoint.forget();
    }

    /// Queries Slurm and compares.
    fn ask(&mut self, now_ms: i64) -> Result<Vec<Event>, PollError> {
        let found = self.setup(now_ms)?;
        let jobs = self.client.all_jobs()?.into_iter();
        let jobs = jobs.map(|job| ObservedJob::from_queue(job, found.tracks_gpus));
        self.tracker.queue(now_ms, &jobs.collect::<Result<Vec<_>, _>>()?);
        if self.tracker.wants_accounting(now_ms) {
            self.ask_accounting(now_ms, &found);
        }
        self.tracker.settle(now_ms, !self.accounting_failed);
        if self.inventoried_ms.is_none_or(|at_ms| now_ms - at_ms >= millis(self.options.inventory_interval)) {
            self.inventoried_ms = Some(now_ms);
            match self.inventory(now_ms, &found) {
                Ok(events) => self.tracker.emit(events),
                Err(error) => tracing::warn!(cluster = self.options.cluster, "nodes and partitions: {error}"),
            }
        }
        self.tracker.observe();
        let mut events = self.tracker.take();
        for event in &mut events {
            event.envelope_mut().cluster.clone_from(&self.options.cluster);
            event.envelope_mut().observed_time_ms = now_ms;
        }
        Ok(events)
    }

    fn setup(&mut self, now_ms: i64) -> Result<Found, PollError> {
        if let Some(found) = self.setup.as_ref().filter(|found| now_ms - found.at_ms < SETUP_MS) {
            return Ok(found.clone());
        }
        let config = self.client.config()?;
        if config.accounting_storage().is_none() {
            return Err(
                CommandError::unusable("scontrol show config", "it has no AccountingStorageType").into()
            );
        }
        let tracks_gpus = config.tracks_gpus();
        let accounting = self.options.accounting.unwrap_or(config.has_slurmdbd());
        if accounting && !tracks_gpus {
            tracing::warn!(
                cluster = self.options.cluster,
                "AccountingStorageTRES does not name gres/gpu: accounting does not know how many GPUs jobs had; add it to slurm.conf"
            );
        }
        let name = config.cluster_name().map(str::to_owned);
        let found = Found { tracks_gpus, at_ms: now_ms, accounting, name };
        self.tracker.set_accounting(found.accounting);
        self.setup = Some(found.clone());
        Ok(found)
    }

    fn ask_accounting(&mut self, now_ms: i64, found: &Found) {
        match self.attempts(now_ms, found) {
            Ok(attempts) => {
                let Attempts { records, set_aside } = attempts;
                self.warn_once(set_aside);
                let records: Vec<_> = records.into_iter().map(ObservedJob::from_accounting).collect();
                self.tracker.accounting(now_ms, &records);
                self.accounting_failed = false;
            }
            Err(error) => {
                if !self.accounting_failed {
                    tracing::warn!(
                        cluster = self.options.cluster,
                        "{error}; ends wait some minutes for accounting"
                    );
                }
                self.accounting_failed = true;
            }
        }
    }

    /// Warns of records that accounting did not have at the last answer: answers overlap.
    fn warn_once(&mut self, set_aside: Vec<String>) {
        let set_aside: BTreeSet<String> = set_aside.into_iter().collect();
        for message in set_aside.difference(&self.set_aside) {
            tracing::warn!(cluster = self.options.cluster, "{message}");
        }
        self.set_aside = set_aside;
    }

    /// What accounting has of attempts that ended. Those whose start was undone are asked for now
    /// and then, because the answer is long: a job waits two minutes after it, so that none is
    /// missed.
    fn attempts(&mut self, now_ms: i64, found: &Found) -> Result<Attempts, CommandError> {
        let since_ms = self.tracker.account_since_ms(now_ms);
        let (name, tracks_gpus) = (found.name.as_deref(), found.tracks_gpus);
        let mut attempts = self.client.ended_attempts(name, since_ms, now_ms, tracks_gpus)?;
        let due = match self.undone_asked_ms {
            None => true,
            Some(asked_ms) => now_ms - asked_ms >= ACCOUNT_EVERY_MS && self.tracker.has_heterogeneous_jobs(),
        };
        if due {
            let undone = self.client.undone_starts(name, since_ms, now_ms, tracks_gpus)?;
            attempts.records.extend(undone.records);
            attempts.set_aside.extend(undone.set_aside);
            self.undone_asked_ms = Some(now_ms);
        }
        Ok(attempts)
    }

    fn inventory(&mut self, now_ms: i64, found: &Found) -> Result<Vec<Event>, CommandError> {
        let answers = Answers {
            nodes: self.client.configured_nodes()?,
            partitions: self.client.partitions()?,
            reservations: self.client.reservations()?,
        };
        let at_ms = now_ms / 1000 * 1000;
        let mut events = self.tracker.state.inventory.update(at_ms, answers);
        if found.accounting {
            let qos = self.client.qos_limits();
            let associations = self.client.associations(found.name.as_deref().unwrap_or_default());
            match (qos, associations) {
                // There is always the QOS `normal`: an answer without one is incomplete.
                (Ok(qos), Ok(associations)) if !qos.is_empty() && !associations.is_empty() => {
                    let complete = qos.iter().all(Result::is_ok) && associations.iter().all(Result::is_ok);
                    // Lines that cannot be read are left out.
                    let qos: Vec<_> = qos.into_iter().flatten().collect();
                    let associations: Vec<_> = associations.into_iter().flatten().collect();
                    let limits = Limits { qos: &qos, associations: &associations, complete };
                    events.extend(self.tracker.state.inventory.limits(at_ms, &limits));
                }
                (Err(error), _) | (_, Err(error)) => {
                    tracing::warn!(cluster = self.options.cluster, "limits: {error}");
                }
                _ => {}
            }
        }
        Ok(events)
    }
}

/// A watcher on a thread of its own; dropping it stops the thread after the present poll.
#[derive(Debug)]
pub struct WatcherHandle {
    stop: Mutex<Option<mpsc::Sender<()>>>,
    thread: Option<JoinHandle<()>>,
}

impl WatcherHandle {
    /// Stops the thread and waits for it.
    pub fn stop(mut self) {
        self.end();
    }

    fn end(&mut self) {
        if let Ok(mut stop) = self.stop.lock() {
            stop.take();
        }
        if let Some(thread) = self.thread.take() {
            // A panic was printed already.
            thread.join().ok();
        }
    }
}

impl Drop for WatcherHandle {
    fn drop(&mut self) {
        self.end();
    }
}

/// Watches a cluster until the handle is dropped. If slurmctld does not answer, that is logged once
/// and retried.
///
/// # Errors
/// The checkpoint cannot be read, or no thread can be started.
pub fn start(options: SlurmOptions, sink: Arc<dyn Sink>) -> io::Result<WatcherHandle> {
    let mut watcher = Watcher::new(options)?;
    let (stop, stopped) = mpsc::channel();
    let work = move || {
        let mut failing = false;
        loop {
            match turn(&mut watcher, &*sink) {
                Ok(()) if failing => {
                    tracing::info!(cluster = watcher.options.cluster, "Slurm answers again");
                    failing = false;
                }
                Ok(()) => {}
                Err(error) => {
                    if !failing {
                        tracing::warn!(cluster = watcher.options.cluster, "{error}; retrying until it works");
                    }
                    failing = true;
                }
            }
            if stopped.recv_timeout(watcher.options.interval) != Err(RecvTimeoutError::Timeout) {
                return;
            }
        }
    };
    let thread = thread::Builder::new().name("watch-slurm".into()).spawn(work)?;
    Ok(WatcherHandle { stop: Mutex::new(Some(stop)), thread: Some(thread) })
}

/// One poll, passed to the sink. What could not be passed on comes again.
fn turn(watcher: &mut Watcher, sink: &dyn Sink) -> Result<(), PollError> {
    watcher.poll(now_ms())?.into_iter().for_each(|event| sink.event(event));
    sink.store().map_err(PollError::Store)?;
    watcher.commit();
    Ok(())
}

fn now_ms() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, millis)
}

fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}
