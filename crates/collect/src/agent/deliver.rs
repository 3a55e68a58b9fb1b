//! The deliverer: sends what the spool holds to the log, in order.

use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use tidegate_events::v1::{NodeEvent, NodeEventKind};
use tidegate_events::{Event, SchemaId};
use tidegate_log::{Batch, LogError, Producer, Record, TopicPartition, partition_for};

use super::spool::{Position, Spooled};
use super::{Connect, End, Shared, lock, notes};
use crate::outlet::Outlet;
use crate::reading::Sink;

/// So much is sent at once, whenever the last was.
const MUCH_BYTES: usize = 256 << 10;
const PAUSE_MIN: Duration = Duration::from_millis(500);
const PAUSE_MAX: Duration = Duration::from_secs(30);
/// How often the log is told of a conflict, if it cannot be reached.
const TELL_CONFLICT: u32 = 3;
/// The node's clock may be so far off the log's, ms, or twice as far as the answer is uncertain.
const SKEW_MS: i64 = 1_000;

/// Why a chunk was not delivered.
enum Trouble {
    /// To be tried again.
    Later(LogError),
    /// Somebody else reports under this name.
    Conflict(String),
}

impl From<LogError> for Trouble {
    fn from(error: LogError) -> Self {
        match error {
            LogError::StaleEpoch { newest, got, .. } => {
                Self::Conflict(format!("its epoch is {newest}, this one's is {got}"))
            }
            error => Self::Later(error),
        }
    }
}

pub(super) struct Deliverer {
    shared: Arc<Shared>,
    connect: Connect,
    outlet: Option<Box<dyn Outlet>>,
    /// By topic, as far as asked.
    partitions: HashMap<&'static str, u32>,
    pause: Duration,
    /// What the last failure said, so that it is not said every time.
    complaint: String,
    /// Records from here on were never sent before, nor can anybody else have sent them under their
    /// numbers.
    unsent: Position,
    /// Little is not sent before.
    deliver_at: Instant,
    compare_at: Instant,
    is_skewed: bool,
}

impl Deliverer {
    pub fn new(shared: Arc<Shared>, connect: Connect) -> Self {
        let unsent = lock(&shared.spool).next();
        Self {
            shared,
            connect,
            outlet: None,
            partitions: HashMap::new(),
            pause: PAUSE_MIN,
            complaint: String::new(),
            unsent,
            deliver_at: Instant::now(),
            compare_at: Instant::now(),
            is_skewed: false,
        }
    }

    /// Delivers until the end has come.
    pub fn run(mut self) {
        while let Some(chunk) = self.next_chunk() {
            match self.deliver(&chunk) {
                Ok(()) => {
                    if !std::mem::take(&mut self.complaint).is_empty() {
                        tracing::info!("the log takes records again");
                    }
                    self.pause = PAUSE_MIN;
                    self.deliver_at = Instant::now() + self.shared.options.deliver_every;
                    self.compare_clocks();
                }
                Err(Trouble::Later(error)) => self.wait_after(&error),
                Err(Trouble::Conflict(what)) => {
                    self.tell_conflict(&what);
                    break;
                }
            }
        }
        // A log that is closed lets its folder go.
        self.outlet = None;
        let mut progress = lock(&self.shared.progress);
        progress.deliverer_done = true;
        self.shared.release_at_last(&progress);
        drop(progress);
        self.shared.moved.notify_all();
    }

    /// Waits until the spool holds something, and for a little more where that is little. `None`
    /// once it is empty at the end, or the time to deliver is over.
    fn next_chunk(&self) -> Option<Vec<Spooled>> {
        let mut progress = lock(&self.shared.progress);
        loop {
            if progress.deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                return None;
            }
            let (written, is_last) = (progress.written, progress.keeper_done);
            drop(progress);
            let chunk = lock(&self.shared.spool).chunk();
            let bytes: usize = chunk.iter().map(|spooled| spooled.record.payload.len()).sum();
            let left = self.deliver_at.saturating_duration_since(Instant::now());
            if !chunk.is_empty() && (left.is_zero() || bytes >= MUCH_BYTES || is_last) {
                return Some(chunk);
            }
            if is_last {
                return None;
            }
            let wait = if chunk.is_empty() { Duration::MAX } else { left };
            drop(chunk);
            progress = lock(&self.shared.progress);
            if progress.written == written && progress.keeper_done == is_last {
                let moved = &self.shared.moved;
                progress = match wait {
                    Duration::MAX => moved.wait(progress).unwrap_or_else(PoisonError::into_inner),
                    wait => moved.wait_timeout(progress, wait).unwrap_or_else(PoisonError::into_inner).0,
                };
            }
        }
    }

    /// Appends the records of one epoch, each partition's as a batch, and notes that the log has
    /// them.
    fn deliver(&mut self, chunk: &[Spooled]) -> Result<(), Trouble> {
        let (Some(first), Some(last)) = (chunk.first(), chunk.last()) else { return Ok(()) };
        let epoch = lock(&self.shared.spool).append_epoch(first.at.epoch);
        let is_new = first.at >= self.unsent;
        let until = Position { seq: last.at.seq + 1, ..last.at };
        let mut next = Vec::new();
        for (at, records) in self.spread(chunk)? {
            let count = records.len() as u64;
            let first_seq = lock(&self.shared.spool).next_append(epoch, &at);
            let producer = Producer { source: self.producer(), epoch };
            self.unsent = self.unsent.max(until);
            let batch = Batch { producer, first_seq, records };
            match self.outlet()?.append(&at, batch) {
                Ok(appended) if is_new && appended.duplicates > 0 => {
                    return Err(Trouble::Conflict(
                        "it has used the same numbers, as a clone of this machine does".into(),
                    ));
                }
                Ok(_) => next.push((at, first_seq + count)),
                Err(error @ LogError::SequenceGap { expected, got, .. }) => {
                    tracing::error!(
                        topic = at.topic,
                        partition = at.partition,
                        expected,
                        got,
                        "the log has lost records that it acknowledged, or is another one than before; going on from here"
                    );
                    lock(&self.shared.spool).set_next(epoch, &[(at, expected)]);
                    return Err(Trouble::Later(error));
                }
                Err(error) => return Err(self.forget_on(error)),
            }
        }
        let mut spool = lock(&self.shared.spool);
        spool.delivered(until, epoch, &next);
        self.shared.counters.delivered.fetch_add(chunk.len() as u64, Ordering::Relaxed);
        Ok(())
    }

    /// A topic may be another one than it was.
    fn forget_on(&mut self, error: LogError) -> Trouble {
        match &error {
            LogError::UnknownTopic(_)
            | LogError::UnknownPartition { .. }
            | LogError::Repartitioned { .. } => {
                self.partitions.clear();
            }
            // Our handle is of an older generation than the log; a new one is not.
            LogError::Fenced { .. } | LogError::Stopped { .. } => self.outlet = None,
            _ => {}
        }
        error.into()
    }

    /// The records by partition, in their order. Where a partition stands among the others is of no
    /// importance.
    fn spread(&mut self, chunk: &[Spooled]) -> Result<Vec<(TopicPartition, Vec<Record>)>, Trouble> {
        let mut spread: BTreeMap<TopicPartition, Vec<Record>> = BTreeMap::new();
        for Spooled { record, .. } in chunk {
            let Ok(schema) = SchemaId::from_number(record.schema) else {
                tracing::error!(
                    schema = record.schema,
                    "the spool holds a record of a newer tidegate, which is left out"
                );
                continue;
            };
            let topic = schema.topic();
            let partitions = self.partitions_of(topic)?;
            let one = partition_for(&record.key, partitions);
            // A heartbeat names no job: whoever reads any partition is to see it.
            let is_for_all = schema == SchemaId::JobEvent && record.key.ends_with(b"/");
            for partition in if is_for_all { 0..partitions } else { one..one + 1 } {
                let at = TopicPartition { topic: topic.into(), partition };
                spread.entry(at).or_default().push(record.clone());
            }
        }
        Ok(spread.into_iter().collect())
    }

    fn partitions_of(&mut self, topic: &'static str) -> Result<u32, Trouble> {
        if let Some(partitions) = self.partitions.get(topic) {
            return Ok(*partitions);
        }
        let partitions = self.outlet()?.partitions(topic)?;
        self.partitions.insert(topic, partitions);
        Ok(partitions)
    }

    fn outlet(&mut self) -> Result<&dyn Outlet, LogError> {
        let outlet = match self.outlet.take() {
            Some(outlet) => outlet,
            None => (self.connect)()?,
        };
        Ok(&**self.outlet.insert(outlet))
    }

    /// Names the producer: nodes of two clusters that share a log may have one name.
    fn producer(&self) -> String {
        let options = &self.shared.options;
        format!("{}@{}", options.source, options.cluster)
    }

    /// Waits before the next attempt, twice as long each time; not at all when the end has just
    /// come.
    fn wait_after(&mut self, error: &LogError) {
        self.shared.counters.failed_attempts.fetch_add(1, Ordering::Relaxed);
        let complaint = error.to_string();
        if complaint != self.complaint {
            tracing::warn!("{complaint}; records wait in the spool");
            self.complaint = complaint;
        }
        let until = Instant::now() + self.pause.mul_f64(0.75 + 0.5 * fraction());
        self.pause = (self.pause * 2).min(PAUSE_MAX);
        let mut progress = lock(&self.shared.progress);
        let was_ending = progress.deadline.is_some();
        loop {
            let until = progress.deadline.map_or(until, |deadline| deadline.min(until));
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() || progress.deadline.is_some() != was_ending {
                return;
            }
            progress =
                self.shared.moved.wait_timeout(progress, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Says in the log, under a name of our own, that we were refused; then ends the agent.
    fn tell_conflict(&mut self, what: &str) {
        let shared = self.shared.clone();
        let options = &shared.options;
        let (now_ms, instance) = (options.clock.wall_ms(), lock(&shared.spool).instance());
        let advice = format!(
            "another collector reports as {} in cluster {}: {what}. Stop one of the two, or give this one another name with \
             --node and a spool of its own; what this one collected waits in {}. If there is no other (the spool was lost, or \
             the clock went back), start with --take-over",
            options.source,
            options.cluster,
            options.spool.dir.display()
        );
        tracing::error!("{advice}");
        let mut event = Event::Node(NodeEvent {
            node: options.node.clone(),
            description: Some(format!("instance {instance} was refused: {what}")),
            boot_id: Some(shared.boot_id.clone()),
            program_version: Some(env!("CARGO_PKG_VERSION").into()),
            ..notes::note(NodeEventKind::CollectorConflict, now_ms)
        });
        let source = format!("{}/conflict/{instance}", options.source);
        let epoch = u64::try_from(now_ms).unwrap_or(0);
        let envelope = event.envelope_mut();
        (envelope.cluster, envelope.source) = (options.cluster.clone(), source.clone());
        (envelope.epoch, envelope.observed_time_ms) = (epoch, now_ms);
        for _ in 0..TELL_CONFLICT {
            match self.send_alone(&mut event, Producer { source: source.clone(), epoch }) {
                Ok(()) => break,
                Err(Trouble::Later(error)) => self.wait_after(&error),
                Err(Trouble::Conflict(_)) => break,
            }
        }
        shared.end(End::Conflict(advice));
    }

    fn send_alone(&mut self, event: &mut Event, producer: Producer) -> Result<(), Trouble> {
        let Ok(sealed) = event.record() else { return Ok(()) };
        let topic = event.schema().topic();
        let partition = partition_for(&sealed.key, self.partitions_of(topic)?);
        let at = TopicPartition { topic: topic.into(), partition };
        let record = Record {
            key: sealed.key,
            schema: sealed.schema,
            event_time_ms: sealed.event_time_ms,
            payload: sealed.payload,
        };
        self.outlet()?.append(&at, Batch { producer, first_seq: 0, records: vec![record] })?;
        Ok(())
    }

    /// Compares the node's clock with the log's, if it is time to.
    fn compare_clocks(&mut self) {
        if Instant::now() < self.compare_at {
            return;
        }
        self.compare_at = Instant::now() + self.shared.options.compare_clocks;
        let log = match self.outlet().and_then(|outlet| outlet.clock()) {
            Ok(Some(log)) => log,
            Ok(None) => return,
            Err(error) => return tracing::debug!("the log does not say what time it is: {error}"),
        };
        let now_ms = self.shared.options.clock.wall_ms();
        let skew_ms = now_ms - log.at_ms;
        let was_skewed = self.is_skewed;
        self.is_skewed = skew_ms.abs() > SKEW_MS.max(2 * log.uncertainty_ms);
        if self.is_skewed || was_skewed {
            let uncertain = format!("uncertain by {} ms", log.uncertainty_ms);
            tracing::warn!(skew_ms, "the clock of this node less the log's, {uncertain}");
            self.shared.event(notes::clock(NodeEventKind::ClockSkewed, now_ms, skew_ms, Some(uncertain)));
        }
    }
}

/// From 0 to 1, another one each time.
fn fraction() -> f64 {
    f64::from(RandomState::new().hash_one(()) as u32) / f64::from(u32::MAX)
}
