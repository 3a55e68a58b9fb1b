//! The agent: batches what sources emit, spools it on disk, and delivers it to the log in order,
//! once.
//!
//! Three parts run side by side. Sources call the [`Sink`] from their own threads. The *spool
//! writer* batches readings, seals and numbers every event, and writes it to the [`spool`]. The
//! *deliverer* sends spooled records to a [`LogSink`](crate::log_sink::LogSink) whenever one is
//! reachable.
//!
//! A record is numbered by its place in the spool: `(source, epoch, seq)`. Its number in the log
//! follows from the spool alone, so the log recognises whatever is sent again after a crash. An
//! epoch is one life of the spool: a reboot, or a copy of the folder, begins a newer one, and the
//! log refuses older ones. A refused agent reports a conflict under a source of its own and stops,
//! so records of two agents never mix.

mod batcher;
mod clock;
mod deliver;
mod events;
mod losses;
mod sample_batcher;
pub mod spool;
mod spool_writer;
mod write_queue;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use tidegate_log::LogError;

use clock::ClockStepDetector;
pub use clock::{Clock, SystemClock};
use deliver::Deliverer;
pub use losses::Dropped;
pub use sample_batcher::SampleBatcher;
use spool::{Spool, SpoolError, SpoolOptions};
use write_queue::WriteQueue;

use crate::log_sink::LogSink;
use crate::reading::{Reading, Sink};
use tidegate_events::Event;

/// Connects to the log. Retried for as long as it fails.
pub type Connect = Box<dyn Fn() -> Result<Box<dyn LogSink>, LogError> + Send>;

/// Identity and pace of an agent.
#[derive(Clone)]
pub struct AgentOptions {
    /// `agent/NODE` or `watch/slurm/CLUSTER`.
    pub source: String,
    /// Cluster of everything reported.
    pub cluster: String,
    /// Node of the readings, and of node events that name none.
    pub node: String,
    /// Time that one batch of readings spans.
    pub flush: Duration,
    /// Where records wait for the log.
    pub spool: SpoolOptions,
    /// Least time between two small deliveries: an append costs the log the same whatever its size.
    pub deliver_every: Duration,
    /// How often to compare the node's clock with the log's.
    pub compare_clocks: Duration,
    /// Clocks of the node; tests set their own.
    pub clock: Arc<dyn Clock>,
}

impl AgentOptions {
    /// Options of an agent on a node, at the usual pace.
    pub fn for_node(cluster: &str, node: &str, spool: SpoolOptions) -> Self {
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

/// Counts since the agent started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct AgentStats {
    /// Records spooled.
    pub records: u64,
    /// Records acknowledged by the log.
    pub delivered: u64,
    /// Records lost before delivery; see [`Dropped`].
    pub dropped: u64,
    /// Readings dropped because their batch was already closed.
    pub late_readings: u64,
    /// Invalid events, recorded as dead letters.
    pub dead_letters: u64,
    /// Events dropped because too many were waiting for the disk.
    pub overrun_events: u64,
    /// Failed delivery attempts.
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
    /// A caller requested it.
    Requested,
    /// Another collector reports under the same name. Holds advice for the operator.
    Conflict(String),
}

/// Progress of the shutdown, which ends the parts one after the other.
#[derive(Debug, Default)]
struct Progress {
    end: Option<End>,
    writer_done: bool,
    deliverer_done: bool,
    /// After a request to end, deliver until this time.
    deadline: Option<Instant>,
    /// Number of writes to the spool.
    written: u64,
}

struct Shared {
    options: AgentOptions,
    boot_id: String,
    clock_steps: ClockStepDetector,
    queue: Mutex<WriteQueue>,
    /// Signalled when an event is queued or stored, and at the end.
    queued: Condvar,
    spool: Mutex<Spool>,
    progress: Mutex<Progress>,
    /// Signalled when `progress` changes.
    advanced: Condvar,
    counters: Counters,
}

/// A running agent. Dropping it without [`Agent::stop`] leaves its threads to end with the process.
pub struct Agent {
    shared: Arc<Shared>,
    writer: Mutex<Option<JoinHandle<()>>>,
    deliverer: Mutex<Option<JoinHandle<()>>>,
    has_started: AtomicBool,
}

impl Agent {
    /// Opens the spool and begins to deliver what it holds.
    ///
    /// # Errors
    /// [`SpoolError`] if the spool cannot be opened or a thread cannot be started.
    pub fn start(options: AgentOptions, connect: Connect) -> Result<Self, SpoolError> {
        let (source, cluster) = (&options.source, &options.cluster);
        let spool = Spool::open(&options.spool, source, cluster, options.clock.wall_ms())?;
        let span_ms = i64::try_from(options.flush.as_millis()).unwrap_or(i64::MAX);
        let shared = Arc::new(Shared {
            boot_id: spool::boot_id(),
            clock_steps: ClockStepDetector::new(&*options.clock),
            queue: Mutex::new(WriteQueue::new(span_ms)),
            queued: Condvar::new(),
            spool: Mutex::new(spool),
            progress: Mutex::default(),
            advanced: Condvar::new(),
            counters: Counters::default(),
            options,
        });
        let (for_writer, for_deliverer) = (shared.clone(), shared.clone());
        let dir = &shared.options.spool.dir;
        let writer = spawn("spool-writer", dir, move || spool_writer::run(&for_writer))?;
        let deliverer = spawn("deliverer", dir, move || Deliverer::new(for_deliverer, connect).run())?;
        Ok(Self {
            shared,
            writer: Mutex::new(Some(writer)),
            deliverer: Mutex::new(Some(deliverer)),
            has_started: AtomicBool::new(false),
        })
    }

    /// The sink that sources emit into.
    pub fn sink(&self) -> Arc<dyn Sink> {
        self.shared.clone()
    }

    /// Emits `COLLECTOR_STARTED`, with the driver version where it is known.
    pub fn started(&self, driver_version: Option<String>) {
        self.has_started.store(true, Ordering::Relaxed);
        let now_ms = self.shared.options.clock.wall_ms();
        self.shared.event(events::started(now_ms, self.shared.boot_id.clone(), driver_version));
    }

    /// Same as [`Sink::store`].
    ///
    /// # Errors
    /// The disk refused the events.
    pub fn store(&self) -> Result<(), String> {
        self.shared.store()
    }

    /// Counts so far.
    pub fn stats(&self) -> AgentStats {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let Counters { records, delivered, dropped, dead_letters, failed_attempts } = &self.shared.counters;
        let queue = lock(&self.shared.queue);
        AgentStats {
            records: load(records),
            delivered: load(delivered),
            dropped: load(dropped),
            late_readings: queue.batcher.late,
            dead_letters: load(dead_letters),
            overrun_events: queue.overrun,
            failed_attempts: load(failed_attempts),
        }
    }

    /// Whether the log has everything in the spool. Call [`Sink::store`] first to include what was
    /// just emitted.
    pub fn is_drained(&self) -> bool {
        lock(&self.shared.spool).is_drained()
    }

    /// Asks the agent to end; [`Agent::wait`] then returns.
    pub fn request_end(&self) {
        self.shared.end(End::Requested);
    }

    /// The reason to end, once there is one.
    pub fn ended(&self) -> Option<End> {
        lock(&self.shared.progress).end.clone()
    }

    /// Blocks until there is a reason to end.
    pub fn wait(&self) -> End {
        let mut progress = lock(&self.shared.progress);
        loop {
            if let Some(end) = &progress.end {
                return end.clone();
            }
            progress = self.shared.advanced.wait(progress).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Writes everything emitted so far to the spool, then delivers until the spool is empty or
    /// `patience` runs out. Returns whether everything was delivered; the rest waits in the spool.
    pub fn stop(&self, patience: Duration, reason: &str) -> bool {
        if self.has_started.load(Ordering::Relaxed) {
            let now_ms = self.shared.options.clock.wall_ms();
            self.shared.event(events::stopped(now_ms, self.shared.boot_id.clone(), reason));
        }
        lock(&self.shared.progress).deadline = Some(Instant::now() + patience);
        self.shared.end(End::Requested);
        lock(&self.shared.queue).ending = true;
        self.shared.queued.notify_all();
        if lock(&self.writer).take().is_some_and(|writer| writer.join().is_err()) {
            tracing::error!("the thread that writes the spool panicked");
        }
        let mut progress = lock(&self.shared.progress);
        progress.writer_done = true;
        self.shared.release_when_done(&progress);
        self.shared.advanced.notify_all();
        let until = Instant::now() + patience;
        while !progress.deliverer_done && Instant::now() < until {
            let left = until.saturating_duration_since(Instant::now());
            progress =
                self.shared.advanced.wait_timeout(progress, left).unwrap_or_else(PoisonError::into_inner).0;
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
    /// Records the reason to end. The first one wins.
    fn end(&self, end: End) {
        lock(&self.progress).end.get_or_insert(end);
        self.advanced.notify_all();
    }

    /// Releases the spool once neither part uses it any more.
    fn release_when_done(&self, progress: &Progress) {
        if progress.writer_done && progress.deliverer_done {
            lock(&self.spool).release();
        }
    }

    /// Reports a step of the wall clock. Readings from before the step become a batch of their own.
    fn check_clock(&self, queue: &mut WriteQueue) {
        if let Some(amount_ms) = self.clock_steps.stepped(&*self.options.clock) {
            tracing::warn!(amount_ms, "the clock of this node was set");
            let clock = &self.options.clock;
            queue.close_all(clock.steady_ms());
            let kind = tidegate_events::v1::NodeEventKind::ClockStepped;
            queue.take_event(events::clock(kind, clock.wall_ms(), amount_ms, None));
        }
    }
}

impl Sink for Shared {
    fn reading(&self, reading: Reading) {
        let mut queue = lock(&self.queue);
        if queue.batcher.is_backward(&reading) {
            self.check_clock(&mut queue);
        }
        if queue.take_reading(reading, self.options.clock.steady_ms()) {
            self.queued.notify_all();
        }
    }

    fn event(&self, event: Event) {
        lock(&self.queue).take_event(event);
        self.queued.notify_all();
    }

    /// Blocks until the disk has everything queued so far.
    fn store(&self) -> Result<(), String> {
        let mut queue = lock(&self.queue);
        let ticket = queue.ticket();
        queue.waiting += 1;
        self.queued.notify_all();
        while !queue.is_stored(ticket) {
            queue = self.queued.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
        queue.waiting -= 1;
        queue.trouble.clone().map_or(Ok(()), Err)
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

/// Locks a mutex. State stays valid across a panic, so poisoning is ignored.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
