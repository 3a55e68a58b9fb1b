//! Agents and logs for tests, and invariants of every log that agents wrote.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicI64, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tempfile::TempDir;
use tidegate_collect::agent::spool::{SpoolError, SpoolOptions};
use tidegate_collect::agent::{Agent, AgentOptions, Clock, Connect, SystemClock};
use tidegate_collect::log_sink::{DirectLogSink, LogSink};
use tidegate_collect::{Device, Metric, Reading, Value};
use tidegate_events::v1::{Envelope, GpuSampleBatch, NodeEvent, NodeEventKind};
use tidegate_events::{Event, v1};
use tidegate_log::{
    Appended, Batch, EmbeddedLog, EventLog, LogClock, LogError, TopicPartition, partition_for,
};

/// Longer than any condition takes on a loaded machine.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Waits until a condition holds.
pub fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let began = Instant::now();
    while !holds() {
        assert!(began.elapsed() < PATIENCE, "waited in vain until {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

pub fn options(spool: &Path) -> AgentOptions {
    let spool = SpoolOptions { dir: spool.into(), limit_bytes: 1 << 30, take_over: false };
    AgentOptions {
        flush: Duration::from_millis(100),
        deliver_every: Duration::ZERO,
        ..AgentOptions::for_node("c", "n1", spool)
    }
}

/// A log in this process, as agents reach it.
#[derive(Clone)]
pub struct Log {
    pub log: Arc<dyn EventLog>,
    partitions: u32,
    pub trouble: Arc<Trouble>,
    _dir: Option<Arc<TempDir>>,
}

/// Failures of appends, and the skew of the log's clock.
#[derive(Default)]
pub struct Trouble {
    /// Failures of the next calls, last one first; then everything works.
    pub ahead: Mutex<Vec<Mishap>>,
    pub is_away: std::sync::atomic::AtomicBool,
    pub clock_ahead_ms: AtomicI64,
    pub clocks_asked: AtomicU32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mishap {
    None,
    /// The append does not reach the log.
    Unreached,
    /// The append reaches the log, and its answer is lost.
    Unanswered,
}

impl Log {
    pub fn embedded() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let log = Arc::new(EmbeddedLog::open(dir.path(), Default::default()).unwrap());
        Self { log, partitions: 3, trouble: Arc::default(), _dir: Some(Arc::new(dir)) }
    }

    pub fn of(log: Arc<dyn EventLog>) -> Self {
        Self { log, partitions: 3, trouble: Arc::default(), _dir: None }
    }

    pub fn connect(&self) -> Connect {
        let this = self.clone();
        Box::new(move || Ok(Box::new(this.clone()) as Box<dyn LogSink>))
    }

    pub fn go_away(&self, is_away: bool) {
        self.trouble.is_away.store(is_away, Ordering::SeqCst);
    }

    fn unavailable() -> LogError {
        LogError::ServerUnavailable {
            url: "test".into(),
            doing: "an append".into(),
            reason: "it is away".into(),
        }
    }
}

impl LogSink for Log {
    fn partitions(&self, topic: &str) -> Result<u32, LogError> {
        DirectLogSink::new(self.log.clone(), self.partitions).partitions(topic)
    }

    fn append(&self, at: &TopicPartition, batch: Batch) -> Result<Appended, LogError> {
        let mishap = self.trouble.ahead.lock().unwrap().pop().unwrap_or(Mishap::None);
        if self.trouble.is_away.load(Ordering::SeqCst) || mishap == Mishap::Unreached {
            return Err(Self::unavailable());
        }
        let appended = self.log.append(at, batch)?;
        if mishap == Mishap::Unanswered { Err(Self::unavailable()) } else { Ok(appended) }
    }

    fn clock(&self) -> Result<Option<LogClock>, LogError> {
        self.trouble.clocks_asked.fetch_add(1, Ordering::SeqCst);
        let at_ms = SystemClock.wall_ms() + self.trouble.clock_ahead_ms.load(Ordering::SeqCst);
        Ok(Some(LogClock { at_ms, uncertainty_ms: 1 }))
    }
}

/// Events of a log by partition, in order; checks that keys are in their partitions.
pub fn events(log: &dyn EventLog) -> BTreeMap<TopicPartition, Vec<Event>> {
    let mut found = BTreeMap::new();
    for (topic, config) in log.topics().unwrap() {
        for partition in 0..config.partitions {
            let at = TopicPartition { topic: topic.clone(), partition };
            let decoded = tidegate_testing::conformance::read_all(log, &at).into_iter().map(|stored| {
                assert_eq!(partition_for(&stored.record.key, config.partitions), partition);
                let event = Event::decode(stored.record.schema, &stored.record.payload).unwrap();
                assert_eq!(event.schema().topic(), topic);
                event
            });
            let decoded: Vec<_> = decoded.collect();
            found.insert(at, decoded);
        }
    }
    found
}

/// Checks that each life of each source is numbered from 0, once, increasing in each partition,
/// except for `gaps`. Returns all events in numeric order.
pub fn check_numbers(log: &dyn EventLog, gaps: u64) -> Vec<Event> {
    let mut lives: BTreeMap<(String, u64), BTreeMap<u64, Event>> = BTreeMap::new();
    for (at, events) in events(log) {
        let mut last: BTreeMap<String, (u64, u64)> = BTreeMap::new();
        for event in events {
            let envelope = event.envelope().unwrap().clone();
            let number = (envelope.epoch, envelope.seq);
            let before = last.insert(envelope.source.clone(), number);
            assert!(before.is_none_or(|before| before < number), "{at:?}: {number:?} after {before:?}");
            let life = lives.entry((envelope.source, envelope.epoch)).or_default();
            assert!(life.insert(envelope.seq, event).is_none(), "{at:?}: {number:?} is there twice");
        }
    }
    let missing = |life: &BTreeMap<u64, Event>| life.keys().last().unwrap() + 1 - life.len() as u64;
    assert_eq!(lives.values().map(missing).sum::<u64>(), gaps, "records that are missing");
    lives.into_values().flat_map(BTreeMap::into_values).collect()
}

pub fn node_events(events: &[Event], kind: NodeEventKind) -> Vec<NodeEvent> {
    let of_kind = events.iter().filter_map(|event| match event {
        Event::Node(event) if event.kind() == kind => Some(event.clone()),
        _ => None,
    });
    of_kind.collect()
}

pub fn batches(events: &[Event]) -> Vec<GpuSampleBatch> {
    let batches = events.iter().filter_map(|event| match event {
        Event::GpuSamples(batch) => Some(batch.clone()),
        _ => None,
    });
    batches.collect()
}

/// A numbered event.
pub fn numbered(number: u64) -> Event {
    Event::Node(NodeEvent {
        envelope: Some(Envelope { event_time_ms: number as i64 + 1, ..Default::default() }),
        kind: NodeEventKind::DeviceEvent.into(),
        count: Some(number),
        ..Default::default()
    })
}

/// Numbers of such events, in log order.
pub fn numbers(events: &[Event]) -> Vec<u64> {
    let numbered = node_events(events, NodeEventKind::DeviceEvent);
    numbered.into_iter().filter_map(|event| event.count).collect()
}

/// A large event of another topic.
pub fn large(number: u64, bytes: usize) -> Event {
    Event::Job(v1::JobEvent {
        envelope: Some(Envelope { event_time_ms: number as i64 + 1, ..Default::default() }),
        kind: v1::JobEventKind::Waiting.into(),
        job_id: format!("job-{}", number % 7),
        reason: Some("x".repeat(bytes)),
        ..Default::default()
    })
}

pub fn devices() -> Vec<Arc<Device>> {
    let device = |index| Device { uuid: format!("GPU-{index}"), index, model: "H100".into(), mig_uuid: None };
    (0..8).map(|index| Arc::new(device(index))).collect()
}

/// A reading whose value identifies its tick.
pub fn reading(device: &Arc<Device>, tick_ms: i64) -> Reading {
    let mut reading = Reading::new(device.clone(), tick_ms);
    for metric in Metric::ALL.iter().take(40) {
        reading.set(*metric, Value::Is(tick_ms.wrapping_mul(31) % 1_000_003 + *metric as i64));
    }
    reading
}

/// Starts an agent on a log.
pub fn start(options: AgentOptions, log: &Log) -> Agent {
    start_with(options, || log.connect())
}

/// The same with any log sink. Waits for an earlier agent to release the spool, as it does after
/// its last attempt.
pub fn start_with(options: AgentOptions, connect: impl Fn() -> Connect) -> Agent {
    let began = Instant::now();
    loop {
        match Agent::start(options.clone(), connect()) {
            Ok(agent) => return agent,
            Err(SpoolError::InUse { .. }) if began.elapsed() < PATIENCE => {
                std::thread::sleep(Duration::from_millis(5))
            }
            Err(error) => panic!("{error}"),
        }
    }
}

/// Runs one test of this test program.
pub fn this_test(name: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", name, "--nocapture", "--test-threads=1"]);
    command
}

/// Deterministic pseudo-random numbers.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit.max(1)
    }
}
