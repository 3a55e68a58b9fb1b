//! The agent: what sources tell becomes records, waits on disk, and goes to the log in order, once.
//!
//! Three parts work side by side. Sources call the [`Sink`] from their own threads. The *keeper*
//! gathers readings into batches, seals and numbers everything, and writes it to the [`spool`]. The
//! *deliverer* sends what the spool holds to an [`Outlet`](crate::outlet::Outlet), as soon as there
//! is one.
//!
//! A record is numbered by its place in the spool, `(source, epoch, seq)`. It is appended to the
//! log under numbers that follow from the spool alone, so that what is sent again after a crash is
//! known there. An epoch is a life of the spool: another boot, or a copy of its folder, begins a
//! newer one, and the log refuses whoever comes with an older one. The refused agent says so in the
//! log under a source of its own and stops; nothing of two agents is ever mixed.

mod batches;
mod clock;
mod columns;
mod deliver;
mod gather;
mod growth;
mod intake;
mod keeper;
mod notes;
pub mod spool;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use tidegate_log::LogError;

pub use batches::Batches;
use clock::StepWatch;
pub use clock::{Clock, SystemClock};
use deliver::Deliverer;
use intake::Intake;
use spool::{Spool, SpoolError, SpoolOptions};

use crate::outlet::Outlet;
use crate::reading::{Reading, Sink};
use tidegate_events::Event;

/// Opens the way to the log; tried again as long as it fails.
pub type Connect = Box<dyn Fn() -> Result<Box<dyn Outlet>, LogError> + Send>;

/// Who reports, and how.
#[derive(Clone)]
pub struct AgentOptions {
    /// `agent/NODE` or `watch/slurm/CLUSTER`.
    pub source: String,
    pub cluster: String,
    /// The node that readings are of, and node events that name none.
    pub node: String,
    /// Time that a batch of readings spans.
    pub flush: Duration,
    pub spool: SpoolOptions,
    /// Least time between two deliveries of little: an append costs a log the same however small it
    /// is.
    pub deliver_every: Duration,
    /// How often the node's clock is compared with the log's.
    pub compare_clocks: Duration,
    pub clock: Arc<dyn Clock>,
}

impl AgentOptions {
    /// Of an agent on a node, with the usual pace.
    pub fn of_node(cluster: &str, node: &str, spool: SpoolOptions) -> Self {
        Self {
            source: format!("agent/{node}"),
            cluster: cluster.into(),
            node: node.into(),
            flush: Duration::from_secs(10),
            spool,
            deliver_every: Duration::from_secs(2),
            compare_clocks: Duration::from_secs(600),
            clock: Arc::new(SystemClock),
        }
    }
}

impl std::fmt::Debug for AgentOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { source, cluster, flush, spool, .. } = self;
        f.debug_struct("AgentOptions")
            .field("source", source)
            .field("cluster", cluster)
            .field("flush", flush)
            .field("spool", spool)
            .finish_non_exhaustive()
    }
}

/// What an agent counted since it started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct AgentStats {
    /// Records that were given a place in the spool.
    pub records: u64,
    /// Records that the log acknowledged.
    pub delivered: u64,
    /// Records that the log will never get: see [`spool::Dropped`].
    pub dropped: u64,
    /// Readings that came after their batch was closed, and were dropped.
    pub late_readings: u64,
    /// Events that were none, and became dead letters.
    pub dead_letters: u64,
    /// Events that were told while too many waited, and were dropped.
    pub overrun_events: u64,
    /// Attempts to send that failed.
    pub failed_attempts: u64,
}

#[derive(Debug, Default)]
struct Counters {
    records: AtomicU64,
    delivered: AtomicU64,
    dropped: AtomicU64,
    dead_letters: AtomicU64,
    failed_attempts: AtomicU64,
}

/// Why an agent ends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum End {
    /// It was asked to.
    Asked,
    /// Another collector reports under its name; says what to do.
    Conflict(String),
}

/// Where the parts stand that end one after the other.
#[derive(Debug, Default)]
struct Progress {
    end: Option<End>,
    keeper_done: bool,
    deliverer_done: bool,
    /// Deliver until then, once the end has come.
    deadline: Option<Instant>,
    /// Counts what was written to the spool.
    written: u64,
}

struct Shared {
    options: AgentOptions,
    boot_id: String,
    steps: StepWatch,
    intake: Mutex<Intake>,
    /// Something was told, was stored, or the end has come.
    told: Condvar,
    spool: Mutex<Spool>,
    progress: Mutex<Progress>,
    /// `progress` changed.
    moved: Condvar,
    counters: Counters,
}

/// A running agent. Dropping it without [`Agent::stop`] leaves its threads to end with the process.
pub struct Agent {
    shared: Arc<Shared>,
    keeper: Mutex<Option<JoinHandle<()>>>,
    deliverer: Mutex<Option<JoinHandle<()>>>,
    has_started: AtomicBool,
}

impl Agent {
    /// Opens the spool and begins to deliver what it holds.
    pub fn start(options: AgentOptions, connect: Connect) -> Result<Self, SpoolError> {
        let (source, cluster) = (&options.source, &options.cluster);
        let spool = Spool::open(&options.spool, source, cluster, options.clock.wall_ms())?;
        let span_ms = i64::try_from(options.flush.as_millis()).unwrap_or(i64::MAX);
        let shared = Arc::new(Shared {
            boot_id: spool::boot_id(),
            steps: StepWatch::new(&*options.clock),
            intake: Mutex::new(Intake::new(span_ms)),
            told: Condvar::new(),
            spool: Mutex::new(spool),
            progress: Mutex::default(),
            moved: Condvar::new(),
            counters: Counters::default(),
            options,
        });
        let (for_keeper, for_deliverer) = (shared.clone(), shared.clone());
        let dir = &shared.options.spool.dir;
        let keeper = spawn("keeper", dir, move || keeper::run(&for_keeper))?;
        let deliverer = spawn("deliverer", dir, move || Deliverer::new(for_deliverer, connect).run())?;
        Ok(Self {
            shared,
            keeper: Mutex::new(Some(keeper)),
            deliverer: Mutex::new(Some(deliverer)),
            has_started: AtomicBool::new(false),
        })
    }

    /// Takes what sources tell.
    pub fn sink(&self) -> Arc<dyn Sink> {
        self.shared.clone()
    }

    /// Records that collecting begins, with the version of the driver where it is known.
    pub fn started(&self, driver_version: Option<String>) {
        self.has_started.store(true, Ordering::Relaxed);
        let now_ms = self.shared.options.clock.wall_ms();
        self.shared.event(notes::started(now_ms, self.shared.boot_id.clone(), driver_version));
    }

    /// As [`Sink::store`].
    ///
    /// # Errors
    /// The disk does not take what was told.
    pub fn store(&self) -> Result<(), String> {
        self.shared.store()
    }

    /// What was counted so far.
    pub fn stats(&self) -> AgentStats {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let Counters { records, delivered, dropped, dead_letters, failed_attempts } = &self.shared.counters;
        let intake = lock(&self.shared.intake);
        AgentStats {
            records: load(records),
            delivered: load(delivered),
            dropped: load(dropped),
            late_readings: intake.gatherer.late,
            dead_letters: load(dead_letters),
            overrun_events: intake.overrun,
            failed_attempts: load(failed_attempts),
        }
    }

    /// Whether the log has everything that is in the spool; [`Sink::store`] brings what was told
    /// there.
    pub fn is_drained(&self) -> bool {
        lock(&self.shared.spool).is_drained()
    }

    /// Asks the agent to end, which [`Agent::wait`] then tells.
    pub fn ask_to_end(&self) {
        self.shared.end(End::Asked);
    }

    /// The reason to end, if there is one by now.
    pub fn ended(&self) -> Option<End> {
        lock(&self.shared.progress).end.clone()
    }

    /// Waits until there is a reason to end.
    pub fn wait(&self) -> End {
        let mut progress = lock(&self.shared.progress);
        loop {
            if let Some(end) = &progress.end {
                return end.clone();
            }
            progress = self.shared.moved.wait(progress).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Writes everything that was told to the spool, and delivers until it is empty or `patience`
    /// is over. Tells whether all was delivered; the rest waits in the spool.
    pub fn stop(&self, patience: Duration, reason: &str) -> bool {
        if self.has_started.load(Ordering::Relaxed) {
            let now_ms = self.shared.options.clock.wall_ms();
            self.shared.event(notes::stopped(now_ms, self.shared.boot_id.clone(), reason));
        }
        lock(&self.shared.progress).deadline = Some(Instant::now() + patience);
        self.shared.end(End::Asked);
        lock(&self.shared.intake).ending = true;
        self.shared.told.notify_all();
        if lock(&self.keeper).take().is_some_and(|keeper| keeper.join().is_err()) {
            tracing::error!("the thread that writes the spool panicked");
        }
        let mut progress = lock(&self.shared.progress);
        progress.keeper_done = true;
        self.shared.release_at_last(&progress);
        self.shared.moved.notify_all();
        let until = Instant::now() + patience;
        while !progress.deliverer_done && Instant::now() < until {
            let left = until.saturating_duration_since(Instant::now());
            progress =
                self.shared.moved.wait_timeout(progress, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        let done = progress.deliverer_done;
        drop(progress);
        if done && lock(&self.deliverer).take().is_some_and(|deliverer| deliverer.join().is_err()) {
            tracing::error!("the thread that delivers panicked");
        }
        done && self.is_drained()
    }
}

impl std::fmt::Debug for Agent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Agent").field("options", &self.shared.options).finish_non_exhaustive()
    }
}

impl Shared {
    /// Notes the first reason to end.
    fn end(&self, end: End) {
        lock(&self.progress).end.get_or_insert(end);
        self.moved.notify_all();
    }

    /// Gives the spool back once nobody works with it any more.
    fn release_at_last(&self, progress: &Progress) {
        if progress.keeper_done && progress.deliverer_done {
            lock(&self.spool).release();
        }
    }

    /// Tells when the clock was set since the last look: what was gathered until then is a batch of
    /// its own.
    fn look_at_clock(&self, intake: &mut Intake) {
        if let Some(amount_ms) = self.steps.stepped(&*self.options.clock) {
            tracing::warn!(amount_ms, "the clock of this node was set");
            let clock = &self.options.clock;
            intake.close_all(clock.steady_ms());
            let kind = tidegate_events::v1::NodeEventKind::ClockStepped;
            intake.take_event(notes::clock(kind, clock.wall_ms(), amount_ms, None));
        }
    }
}

impl Sink for Shared {
    fn reading(&self, reading: Reading) {
        let mut intake = lock(&self.intake);
        if intake.gatherer.is_backward(&reading) {
            self.look_at_clock(&mut intake);
        }
        if intake.take_reading(reading, self.options.clock.steady_ms()) {
            self.told.notify_all();
        }
    }

    fn event(&self, event: Event) {
        lock(&self.intake).take_event(event);
        self.told.notify_all();
    }

    /// Waits for the disk, whose refusal is the error.
    fn store(&self) -> Result<(), String> {
        let mut intake = lock(&self.intake);
        let ticket = intake.ticket();
        intake.waiting += 1;
        self.told.notify_all();
        while !intake.is_stored(ticket) {
            intake = self.told.wait(intake).unwrap_or_else(PoisonError::into_inner);
        }
        intake.waiting -= 1;
        intake.trouble.clone().map_or(Ok(()), Err)
    }
}

fn spawn(
    name: &'static str,
    dir: &std::path::Path,
    run: impl FnOnce() + Send + 'static,
) -> Result<JoinHandle<()>, SpoolError> {
    let thread = thread::Builder::new().name(name.into()).stack_size(STACK_BYTES).spawn(run);
    thread.map_err(|source| SpoolError::Io { what: "starting a thread for", path: dir.into(), source })
}

/// Enough for debug builds too.
const STACK_BYTES: usize = 1 << 20;

/// The state behind these locks is whole at every instant, so a panic elsewhere leaves it good.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
