//! The deliverer: sends spooled records to the log, in order.

use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use tidegate_events::v1::{NodeEvent, NodeEventKind};
use tidegate_events::{Event, SchemaId};
use tidegate_log::{Appended, Batch, LogError, Producer, Record, TopicPartition, partition_for};
use tracing::field::Empty;

use super::spool::{Position, Spooled};
use super::{Connect, End, Shared, events, lock};
use crate::log_sink::LogSink;
use crate::reading::Sink;

/// A chunk of at least this many bytes is sent at once, whenever the last delivery was.
const MUCH_BYTES: usize = 256 << 10;
const PAUSE_MIN: Duration = Duration::from_millis(500);
const PAUSE_MAX: Duration = Duration::from_secs(30);
/// Attempts to report a conflict to an unreachable log.
const CONFLICT_ATTEMPTS: u32 = 3;
/// Tolerated skew between the node's clock and the log's, ms; at least twice the uncertainty of the
/// comparison.
const SKEW_MS: i64 = 1_000;

/// Reason that a chunk was not delivered.
enum DeliveryError {
    /// Worth another attempt.
    Later(LogError),
    /// Another collector reports under this name.
    Conflict(String),
}

impl From<LogError> for DeliveryError {
    fn from(error: LogError) -> Self {
        match error {
            LogError::StaleEpoch { newest, got, .. } => {
                Self::Conflict(format!("its epoch is {newest}, this one's is {got}"))
            }
            error => Self::Later(error),
        }
    }
}

/// Appends a batch within a span. A log behind HTTP continues its trace.
fn append(log_sink: &dyn LogSink, at: &TopicPartition, batch: Batch) -> Result<Appended, LogError> {
    let span = tracing::info_span!(
        target: tidegate_telemetry::TARGET,
        "deliver",
        otel.kind = "client",
        tidegate.topic = at.topic.as_str(),
        tidegate.records = batch.records.len(),
        tidegate.duplicates = Empty,
        error.type = Empty,
    );
    let appended = span.in_scope(|| log_sink.append(at, batch));
    match &appended {
        Ok(appended) => span.record("tidegate.duplicates", appended.duplicates),
        Err(error) if error.is_passing() => span.record("error.type", "unavailable"),
        Err(_) => span.record("error.type", "refused"),
    };
    appended
}

pub(super) struct Deliverer {
    shared: Arc<Shared>,
    connect: Connect,
    log_sink: Option<Box<dyn LogSink>>,
    /// Partition counts of the topics asked for so far.
    partitions: HashMap<&'static str, u32>,
    pause: Duration,
    /// Last failure, so that the same one is logged only once.
    last_error: String,
    /// Records from here on were never sent, so nobody can have used their numbers.
    unsent: Position,
    /// Earliest time of the next small delivery.
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
            log_sink: None,
            partitions: HashMap::new(),
            pause: PAUSE_MIN,
            last_error: String::new(),
            unsent,
            deliver_at: Instant::now(),
            compare_at: Instant::now(),
            is_skewed: false,
        }
    }

    /// Delivers until the agent ends.
    pub fn run(mut self) {
        while let Some(chunk) = self.next_chunk() {
            match self.deliver(&chunk) {
                Ok(()) => {
                    if !std::mem::take(&mut self.last_error).is_empty() {
                        tracing::info!("the log takes records again");
                    }
                    self.pause = PAUSE_MIN;
                    self.deliver_at = Instant::now() + self.shared.options.deliver_every;
                    self.compare_clocks();
                }
                Err(DeliveryError::Later(error)) => self.back_off(&error),
                Err(DeliveryError::Conflict(what)) => {
                    self.report_conflict(&what);
                    break;
                }
            }
        }
        // Closing the log releases its folder.
        self.log_sink = None;
        let mut progress = lock(&self.shared.progress);
        progress.deliverer_done = true;
        self.shared.release_when_done(&progress);
        drop(progress);
        self.shared.advanced.notify_all();
    }

    /// Blocks until the spool holds records, and a little longer while they are few. `None` once it
    /// is empty at the end, or the deadline has passed.
    fn next_chunk(&self) -> Option<Vec<Spooled>> {
        let mut progress = lock(&self.shared.progress);
        loop {
            if progress.deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                return None;
            }
            let (written, is_last) = (progress.written, progress.writer_done);
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
            if progress.written == written && progress.writer_done == is_last {
                let advanced = &self.shared.advanced;
                progress = match wait {
                    Duration::MAX => advanced.wait(progress).unwrap_or_else(PoisonError::into_inner),
                    wait => advanced.wait_timeout(progress, wait).unwrap_or_else(PoisonError::into_inner).0,
                };
            }
        }
    }

    /// Appends the records of one epoch, one batch per partition, and marks them as delivered.
    fn deliver(&mut self, chunk: &[Spooled]) -> Result<(), DeliveryError> {
        let (Some(first), Some(last)) = (chunk.first(), chunk.last()) else { return Ok(()) };
        let epoch = lock(&self.shared.spool).append_epoch(first.at.epoch);
        let is_new = first.at >= self.unsent;
        let until = Position { seq: last.at.seq + 1, ..last.at };
        let mut next = Vec::new();
        for (at, records) in self.by_partition(chunk)? {
            let count = records.len() as u64;
            let first_seq = lock(&self.shared.spool).next_append(epoch, &at);
            let producer = Producer { source: self.producer(), epoch };
            self.unsent = self.unsent.max(until);
            let batch = Batch { producer, first_seq, records };
            match append(self.log_sink()?, &at, batch) {
                Ok(appended) if is_new && appended.duplicates > 0 => {
                    return Err(DeliveryError::Conflict(
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
                    return Err(DeliveryError::Later(error));
                }
                Err(error) => return Err(self.reset_after(error)),
            }
        }
        let mut spool = lock(&self.shared.spool);
        spool.delivered(until, epoch, &next);
        self.shared.counters.delivered.fetch_add(chunk.len() as u64, Ordering::Relaxed);
        Ok(())
    }

    /// Drops cached state that the error shows to be outdated.
    fn reset_after(&mut self, error: LogError) -> DeliveryError {
        match &error {
            LogError::UnknownTopic(_)
            | LogError::UnknownPartition { .. }
            | LogError::Repartitioned { .. } => {
                self.partitions.clear();
            }
            // Our handle belongs to an older generation of the log, or shows a token that was
            // replaced; a new one does not.
            LogError::Fenced { .. } | LogError::Stopped { .. } | LogError::ServerRefused { .. } => {
                self.log_sink = None;
            }
            _ => {}
        }
        error.into()
    }

    /// Groups records by partition, in order. The order of the partitions does not matter.
    fn by_partition(
        &mut self,
        chunk: &[Spooled],
    ) -> Result<Vec<(TopicPartition, Vec<Record>)>, DeliveryError> {
        let mut by_partition: BTreeMap<TopicPartition, Vec<Record>> = BTreeMap::new();
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
            // A heartbeat names no job, so it goes to every partition: readers of any of them need
            // it.
            let is_for_all = schema == SchemaId::JobEvent && record.key.ends_with(b"/");
            for partition in if is_for_all { 0..partitions } else { one..one + 1 } {
                let at = TopicPartition { topic: topic.into(), partition };
                by_partition.entry(at).or_default().push(record.clone());
            }
        }
        Ok(by_partition.into_iter().collect())
    }

    fn partitions_of(&mut self, topic: &'static str) -> Result<u32, DeliveryError> {
        if let Some(partitions) = self.partitions.get(topic) {
            return Ok(*partitions);
        }
        let partitions = self.log_sink()?.partitions(topic)?;
        self.partitions.insert(topic, partitions);
        Ok(partitions)
    }

    fn log_sink(&mut self) -> Result<&dyn LogSink, LogError> {
        let log_sink = match self.log_sink.take() {
            Some(log_sink) => log_sink,
            None => (self.connect)()?,
        };
        Ok(&**self.log_sink.insert(log_sink))
    }

    /// Name of the producer. It includes the cluster, because nodes of two clusters that share a
    /// log may have equal names.
    fn producer(&self) -> String {
        let options = &self.shared.options;
        format!("{}@{}", options.source, options.cluster)
    }

    /// Backs off before the next attempt, twice as long each time. Returns early when the agent
    /// begins to end.
    fn back_off(&mut self, error: &LogError) {
        self.shared.counters.failed_attempts.fetch_add(1, Ordering::Relaxed);
        let last_error = error.to_string();
        if last_error != self.last_error {
            tracing::warn!("{last_error}; records wait in the spool");
            self.last_error = last_error;
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
                self.shared.advanced.wait_timeout(progress, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Reports the refusal to the log under a source of our own, then ends the agent.
    fn report_conflict(&mut self, what: &str) {
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
            ..events::node_event(NodeEventKind::CollectorConflict, now_ms)
        });
        let source = format!("{}/conflict/{instance}", options.source);
        let epoch = u64::try_from(now_ms).unwrap_or(0);
        let envelope = event.envelope_mut();
        (envelope.cluster, envelope.source) = (options.cluster.clone(), source.clone());
        (envelope.epoch, envelope.observed_time_ms) = (epoch, now_ms);
        for _ in 0..CONFLICT_ATTEMPTS {
            match self.send_single(&mut event, Producer { source: source.clone(), epoch }) {
                Ok(()) => break,
                Err(DeliveryError::Later(error)) => self.back_off(&error),
                Err(DeliveryError::Conflict(_)) => break,
            }
        }
        shared.end(End::Conflict(advice));
    }

    fn send_single(&mut self, event: &mut Event, producer: Producer) -> Result<(), DeliveryError> {
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
        self.log_sink()?.append(&at, Batch { producer, first_seq: 0, records: vec![record] })?;
        Ok(())
    }

    /// Compares the node's clock with the log's when it is due.
    fn compare_clocks(&mut self) {
        if Instant::now() < self.compare_at {
            return;
        }
        self.compare_at = Instant::now() + self.shared.options.compare_clocks;
        let log = match self.log_sink().and_then(|log_sink| log_sink.clock()) {
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
            self.shared.event(events::clock(NodeEventKind::ClockSkewed, now_ms, skew_ms, Some(uncertain)));
        }
    }
}

/// A random number from 0 to 1.
fn fraction() -> f64 {
    f64::from(RandomState::new().hash_one(()) as u32) / f64::from(u32::MAX)
}
