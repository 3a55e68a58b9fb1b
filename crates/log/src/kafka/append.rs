//! Appending: one transaction per batch, with the records and the progress of their source.
//!
//! A producer is opened for a family of sources (see
//! [`Producer::source`](crate::Producer::source)): most are alone in theirs, but an import has
//! hundreds of sources, one for each chunk, and to open a producer for each would take longer than
//! to write the chunks. Within a family this holds:
//!
//! - Only transactions of the family's transactional id write the progress of its sources, all into
//!   one partition.
//! - Initializing the id ends all earlier transactions of it. That partition is then read to its
//!   end, so the progress of every source of the family, also of unknown ones, is exact at that
//!   moment.
//! - Afterwards only transactions of our producer can be committed under the id, until somebody
//!   else initializes it; and from then on none of ours. The appends of a family take turns here,
//!   and each commit of ours is noted.
//!
//! So a transaction of ours that Kafka commits rested on exact progress, whichever source of the
//! family it was for, and nothing need be read before it. An answer that needs no commit (all
//! records are there already) reads the progress again. When the id is found to be another's, we
//! leave it to the other for about a second before we take it back, so that two imports at a time
//! work in turns rather than undo each other's transactions.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use super::client::Cluster;
use super::deadline::Deadline;
use super::producer_context::Role;
use super::record::{headers, timestamp};
use super::state::{SourceProgress, State, family, key, value};
use super::stats::Counters;
use super::value::frame;
use super::writer::{Failure, Writer};
use crate::check::{Progress, lock};
use crate::{Appended, Batch, LogError, TopicPartition};

/// Families whose producers are kept. Each has a few threads and connections; one that comes back
/// opens a new one.
const MAX_OPEN: usize = 24;
const PAUSE_MAX: Duration = Duration::from_secs(1);
/// How long a transactional id is left to another process that took it, at least; at most twice as
/// long.
const TURN: Duration = Duration::from_millis(700);

/// A family's producer and the progress of its sources: as appended through it, otherwise as
/// [`State`] last read it.
struct Open {
    writer: Writer,
    progress: HashMap<String, SourceProgress>,
}

#[derive(Default)]
struct Slot {
    open: Mutex<Option<Open>>,
}

/// The families whose sources append through this handle.
#[derive(Default)]
pub(super) struct Sources(Mutex<HashMap<String, (Arc<Slot>, Instant)>>);

impl Sources {
    /// The slot of a family. Beyond [`MAX_OPEN`], producers idle for longest are closed.
    fn slot(&self, family: &str) -> Arc<Slot> {
        let mut slots = lock(&self.0);
        if let Some((slot, used)) = slots.get_mut(family) {
            *used = Instant::now();
            return slot.clone();
        }
        let resting = slots.iter().filter(|(_, (slot, _))| Arc::strong_count(slot) == 1);
        let oldest = resting.min_by_key(|(_, (_, used))| *used).map(|(family, _)| family.clone());
        let closed = oldest.filter(|_| slots.len() >= MAX_OPEN).and_then(|family| slots.remove(&family));
        let slot = Arc::<Slot>::default();
        slots.insert(family.into(), (slot.clone(), Instant::now()));
        drop(slots);
        drop(closed);
        slot
    }

    /// Producers that are open, and messages that wait in them. Those that append right now are
    /// left out.
    pub fn queued(&self) -> (u64, u64) {
        let slots: Vec<_> = lock(&self.0).values().map(|(slot, _)| slot.clone()).collect();
        let queued =
            slots.iter().filter_map(|slot| Some(slot.open.try_lock().ok()?.as_ref()?.writer.queued()));
        queued.fold((0, 0), |(open, sum), queued| (open + 1, sum + queued))
    }
}

/// What an append works with.
pub(super) struct Appender<'a> {
    pub cluster: &'a Cluster,
    pub state: &'a State,
    pub sources: &'a Sources,
    pub counters: &'a Counters,
    /// Generation that the handle writes as.
    pub held: &'a AtomicU64,
}

impl Appender<'_> {
    /// Appends, trying again as long as that can help and there is time.
    ///
    /// A transaction whose end is not known is never guessed about: its producer is dropped, and
    /// the next one with the source's transactional id makes Kafka finish or abort it before the
    /// progress is read again.
    pub fn append(
        &self,
        at: &TopicPartition,
        batch: &Batch,
        deadline: Deadline,
    ) -> Result<Appended, LogError> {
        let slot = self.sources.slot(family(&batch.producer.source));
        let mut open = lock(&slot.open);
        let mut tried: Option<Attempt> = None;
        let mut pause = Duration::from_millis(10);
        loop {
            if open.is_none() {
                *open = Some(self.open(&batch.producer.source, deadline)?);
            }
            let Some(opened) = open.as_mut() else { continue };
            let reason = match self.attempt(opened, at, batch, &mut tried, deadline) {
                Ok(appended) => return Ok(appended),
                Err(Failure::Refused(refused)) => {
                    if !opened.writer.is_usable() {
                        *open = None;
                    }
                    let LogError::UnknownTopic(_) = refused else { return Err(refused) };
                    let topic = self.cluster.name(&at.topic);
                    self.cluster.wait_for(&topic, &format!("appending to {topic}"), deadline)?;
                    "a broker did not know the topic".into()
                }
                Err(Failure::Aborted(reason)) => reason,
                Err(Failure::Lost(reason)) => {
                    *open = None;
                    reason
                }
                Err(Failure::Taken(reason)) => {
                    *open = None;
                    pause = pause.max(TURN + TURN.mul_f64(fraction()));
                    reason
                }
            };
            self.counters.retries.fetch_add(1, Ordering::Relaxed);
            tracing::warn!(target: "kafka", topic = at.topic, partition = at.partition, source = batch.producer.source, "append is tried again: {reason}");
            if deadline.passed() {
                *open = None;
                let doing = format!("appending to {}/{}", at.topic, at.partition);
                return Err(self.cluster.timed_out(&doing, deadline, &reason));
            }
            thread::sleep(pause.min(deadline.left()));
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }

    fn open(&self, source: &str, deadline: Deadline) -> Result<Open, LogError> {
        // Before the producer is taken from another process, not after.
        self.check_generation(deadline)?;
        let transactional_id = self.cluster.name(&format!("source.{}", family(source)));
        let writer = Writer::take(self.cluster, &transactional_id, deadline)?;
        self.counters.opened.fetch_add(1, Ordering::Relaxed);
        self.state.of_source(self.cluster, source, deadline)?;
        Ok(Open { writer, progress: HashMap::new() })
    }

    fn attempt(
        &self,
        open: &mut Open,
        at: &TopicPartition,
        batch: &Batch,
        tried: &mut Option<Attempt>,
        deadline: Deadline,
    ) -> Result<Appended, Failure> {
        let source = &batch.producer.source;
        let noted = open.progress.get(source).and_then(|noted| noted.get(at)).copied();
        let known = noted.or_else(|| self.state.last_read(source, at));
        if let Some(appended) = tried.take().and_then(|tried| tried.was_committed(known)) {
            return Ok(appended);
        }
        let (duplicates, topic) = (Progress::count_duplicates(known, batch), self.cluster.name(&at.topic));
        let count = batch.records.len() as u64;
        if !matches!(duplicates, Ok(duplicates) if duplicates < count) {
            self.check_known(source, at, known, deadline)?;
        }
        let duplicates = duplicates.map_err(Failure::Refused)?;
        let written = count - duplicates;
        if written == 0 {
            self.check_generation(deadline).map_err(Failure::Refused)?;
            let end = self.cluster.extent(&topic, at.partition, deadline).map_err(Failure::Refused)?.end;
            return Ok(Appended { first_offset: end, written, duplicates });
        }
        let progress =
            Progress { epoch: batch.producer.epoch, next_seq: batch.first_seq + duplicates + written };
        let mut appended = Appended { first_offset: 0, written, duplicates };
        let attempted = tried.insert(Attempt { progress, appended });
        let writer = &open.writer;
        let delivered = writer.transact(
            self.cluster,
            deadline,
            |writer| self.send(writer, (&topic, at), batch, duplicates, progress, deadline),
            |delivered| {
                attempted.appended.first_offset = delivered.data.unwrap_or_default().0;
                self.check_generation(deadline)
            },
        )?;
        open.progress.entry(source.clone()).or_default().insert(at.clone(), progress);
        let (first, last) = delivered.data.unwrap_or_default();
        appended.first_offset = first;
        self.counters.count(batch, duplicates);
        self.show(&topic, at.partition, last);
        Ok(appended)
    }

    /// Answers an append that needs no transaction, after checking that no other process has taken
    /// the source over.
    fn check_known(
        &self,
        source: &str,
        at: &TopicPartition,
        known: Option<Progress>,
        deadline: Deadline,
    ) -> Result<(), Failure> {
        let progress = self.state.of_source(self.cluster, source, deadline).map_err(Failure::Refused)?;
        match progress.get(at).copied() == known {
            true => Ok(()),
            false => Err(Failure::Taken("another process appends for this source".into())),
        }
    }

    fn send(
        &self,
        writer: &Writer,
        (topic, at): (&str, &TopicPartition),
        batch: &Batch,
        skip: u64,
        progress: Progress,
        deadline: Deadline,
    ) -> Result<(), rdkafka::error::KafkaError> {
        let Batch { producer, first_seq, records } = batch;
        let mut framed = Vec::new();
        for (seq, record) in (*first_seq..).zip(records).skip(skip as usize) {
            let beside = (Role::Data, Some(timestamp(record)), Some(headers(producer, seq, record)));
            frame(record.schema, &record.payload, &mut framed);
            writer.send((topic, at.partition), (&record.key, &framed), beside, deadline)?;
        }
        let partition = self.state.partition_of(&producer.source);
        let (key, value) = (key(at, &producer.source), value(progress));
        let message = (key.as_bytes(), value.as_bytes());
        writer.send((self.state.topic(), partition), message, (Role::Beside, None, None), deadline)
    }

    /// Refused once another handle raised the generation.
    ///
    /// Called with the records in the log but not committed. Who fences writes the generation first
    /// and then waits until everything is finished that the log held at that moment: either it
    /// waits for us, or we see it here.
    fn check_generation(&self, deadline: Deadline) -> Result<(), LogError> {
        let current = self.state.control(self.cluster, deadline, |control| control.generation)?;
        let held = self.held.load(Ordering::SeqCst);
        if held < current { Err(LogError::Fenced { held, current }) } else { Ok(()) }
    }

    /// Waits a while until readers see what was committed: Kafka acknowledges a commit before its
    /// markers are written.
    ///
    /// The next transaction of the source would wait for the same. Another source's unfinished
    /// transaction may hold readers back for longer, which is no reason to withhold that the
    /// records are safe.
    fn show(&self, topic: &str, partition: u32, last: u64) {
        let deadline = Deadline::after(Duration::from_secs(5));
        if let Err(error) = self.cluster.wait_until_settled(topic, partition, last + 1, deadline) {
            tracing::debug!(target: "kafka", %error, "an append is not readable yet");
        }
    }
}

/// A fraction from 0 to 1, different in each process and at each call.
fn fraction() -> f64 {
    f64::from(RandomState::new().hash_one(()) as u32) / f64::from(u32::MAX)
}

/// A transaction that may or may not have been committed.
struct Attempt {
    progress: Progress,
    appended: Appended,
}

impl Attempt {
    /// The answer if it was committed.
    fn was_committed(self, known: Option<Progress>) -> Option<Appended> {
        (known == Some(self.progress)).then_some(self.appended)
    }
}
