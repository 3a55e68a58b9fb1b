//! The log on a Kafka cluster: durable on several machines, and shared by many processes.
//!
//! # What is where
//!
//! All names begin with the [prefix](KafkaUrl::prefix) and a dot. A topic of the log is a topic of
//! Kafka; a record is a message with the record's key and event time, and the headers `schema`,
//! `source`, `epoch` and `seq` in decimal. Its value is the payload behind the frame of Confluent's
//! Schema Registry (see `value.rs`), so that other tools read it. Keys are spread as Kafka's Java
//! clients do it, see [`partition_for`](crate::partition_for). `PREFIX.progress` is compacted and
//! holds what else the log must remember (see `state.rs`). Consumer groups are Kafka's.
//!
//! # Exactly once, whichever process dies
//!
//! The trait asks for more than an idempotent producer gives: a batch is atomic, and a record is
//! known by its `(source, epoch, seq)` over restarts of its producer. So each batch is one
//! transaction that holds the records and the source's progress in the partition. Each source has a
//! transactional id of its own, or shares it with its kin (see `append.rs`). A process that appends
//! for a source first initializes that id: Kafka then finishes or aborts what a former process left
//! under it, and refuses that process from then on. Only then is the progress read, so it is exact,
//! and no other process can change it. A transaction whose end is not known (an answer that did not
//! come) is resolved in the same way: new producer, initialize, read the progress again.
//!
//! Two processes that append for one source at the same time take the id from each other. Neither
//! loses or doubles anything, because each reads the progress again; a source that should have only
//! one process at a time raises its epoch when it starts, and the older one gets
//! [`LogError::StaleEpoch`]. We do not refuse the older process at once, as sources named after
//! their content (the chunks of an import) may well come from two processes, and both must get
//! done.
//!
//! [`EventLog::fence`] raises a generation in the progress topic. Every append checks it after its
//! messages are in the log and before it commits; `fence` waits until all transactions that were
//! open when the generation was written are over. So each transaction is either finished before
//! `fence` returns, or is refused.
//!
//! # Differences from the embedded log
//!
//! - Offsets have gaps, where transactions end. Nothing may count records by subtracting offsets.
//! - An append that was not finished because its process died holds back the readers of that
//!   partition until the source comes back, or until [`KafkaOptions::transaction_timeout`] has
//!   passed.
//! - `retain_ms` is kept by [`EventLog::apply_retention`], not by the broker: to the broker a
//!   record is as old as the event time in its timestamp, so that it would drop imported history at
//!   once, and it does not know what groups still need. `retain_bytes` is left to the broker
//!   (`retention.bytes`), which keeps to it whatever groups need: it is there to save the disk.
//! - [`EventLog::offset_for_time`] starts from Kafka's index and scans the records from there,
//!   since to that index the end of a transaction is a message of the time it was written. Over
//!   imported history that is a long way.
//! - Calls wait for a known topic that no broker lists, since a broker that has just started does
//!   not list every topic yet (see `topics.rs`).
//! - A message that another program wrote to a topic is read as the schema that its frame names.
//!   Without a frame, it is read as schema 0 with its payload as it is: readers go on, and no
//!   decoder takes it for an event.
//! - A group that has members takes its progress from them alone: [`Member::commit`]. Kafka's own
//!   group protocol assigns partitions to members, see `member.rs`.
//! - Kafka deletes a group's offsets a week after the last commit
//!   (`offsets.retention.minutes`).

mod append;
mod client;
mod client_errors;
mod clock;
pub(crate) mod copy;
mod deadline;
mod delivery;
mod describe;
mod groups;
mod member;
mod options;
mod partitions;
mod producer_context;
mod reader;
mod record;
mod state;
mod stats;
mod topic_cache;
mod topics;
mod url;
mod value;
mod writer;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use self::append::{Appender, Sources};
use self::client::{Cluster, PAUSE_MAX};
use self::deadline::Deadline;
pub use self::describe::GroupMember;
use self::groups::Groups;
use self::member::Joined;
pub use self::options::KafkaOptions;
use self::producer_context::Role;
use self::reader::Readers;
use self::state::State;
use self::stats::Counters;
pub use self::stats::KafkaStats;
pub use self::url::KafkaUrl;
use self::writer::{Failure, Writer};
use crate::check::{check_batch, check_topic};
use crate::write_marks::Written;
use crate::{
    Appended, Batch, EventLog, Extent, LogClock, LogError, Member, StoredRecord, TopicConfig, TopicPartition,
};

/// Time limit for opening the log without any answer; a wrong address should show soon.
const OPENING: Duration = Duration::from_secs(15);
/// Bytes that are looked through at once for the record of a time.
const LOOK_BYTES: usize = 4 << 20;

/// An open log on Kafka.
///
/// Each handle writes as the generation it was opened at, see [`EventLog::fence`]. Any number may
/// be open, in any number of processes.
pub struct KafkaLog {
    cluster: Arc<Cluster>,
    state: State,
    readers: Readers,
    sources: Sources,
    groups: Groups,
    counters: Counters,
    generation: AtomicU64,
}

impl KafkaLog {
    /// Opens the log; makes its topic of progress where there is none.
    pub fn open(options: KafkaOptions) -> Result<Self, LogError> {
        let deadline = Deadline::after(OPENING.min(options.timeout));
        let cluster = Arc::new(Cluster::new(options)?);
        let state = State::open(&cluster, deadline)?;
        // The brokers are there: from here on it may be an unfinished append of a process that died
        // which is waited for.
        let generation = state.control(&cluster, cluster.deadline(), |control| control.generation)?;
        Ok(Self {
            cluster,
            state,
            readers: Readers::default(),
            sources: Sources::default(),
            groups: Groups::default(),
            counters: Counters::default(),
            generation: AtomicU64::new(generation),
        })
    }

    /// What Kafka calls the cluster: the same by whatever address it is reached.
    pub fn cluster_id(&self) -> Result<String, LogError> {
        self.cluster.id(self.cluster.deadline())
    }

    /// Which processes share the partitions of a consumer group right now.
    pub fn members(&self, group: &str) -> Result<Vec<GroupMember>, LogError> {
        describe::members(&self.cluster, &self.cluster.name(group), self.cluster.deadline())
    }

    /// Counted costs since the log was opened.
    pub fn stats(&self) -> KafkaStats {
        self.counters.stats(self.sources.queued())
    }

    /// The partition's topic as Kafka knows it, if there is such a partition.
    fn place(&self, at: &TopicPartition, deadline: Deadline) -> Result<String, LogError> {
        let topic = self.cluster.name(&at.topic);
        let known = match self.cluster.partitions(&topic, at.partition + 1, deadline)? {
            None if self.is_declared(&at.topic, deadline)? => self.cluster.find_declared(&topic, deadline)?,
            known => known,
        };
        match known.ok_or_else(|| LogError::UnknownTopic(at.topic.clone()))? {
            partitions if at.partition < partitions => Ok(topic),
            partitions => Err(LogError::UnknownPartition {
                topic: at.topic.clone(),
                partition: at.partition,
                partitions,
            }),
        }
    }

    fn is_declared(&self, topic: &str, deadline: Deadline) -> Result<bool, LogError> {
        self.state.control(&self.cluster, deadline, |control| control.topics.contains_key(topic))
    }

    /// The log's topics and their partitions: those that a broker lists, and those that it does not
    /// know yet.
    fn list(&self, deadline: Deadline) -> Result<BTreeMap<String, u32>, LogError> {
        let mut listed = self.cluster.list(deadline)?;
        let declared = self.state.control(&self.cluster, deadline, |control| control.topics.clone())?;
        for topic in declared.into_keys() {
            if !listed.contains_key(&topic)
                && let Some(partitions) = self.cluster.find_declared(&self.cluster.name(&topic), deadline)?
            {
                listed.insert(topic, partitions);
            }
        }
        Ok(listed)
    }

    fn extent_by(&self, at: &TopicPartition, deadline: Deadline) -> Result<Extent, LogError> {
        self.cluster.extent(&self.place(at, deadline)?, at.partition, deadline)
    }

    fn offset_for_time_by(
        &self,
        at: &TopicPartition,
        time_ms: i64,
        deadline: Deadline,
    ) -> Result<u64, LogError> {
        let topic = self.place(at, deadline)?;
        let extent = self.cluster.extent(&topic, at.partition, deadline)?;
        // Times before 1970 stand in a header, which no index knows.
        let from = match time_ms {
            2.. => {
                self.cluster.offset_at_time(&topic, at.partition, time_ms, deadline)?.unwrap_or(extent.end)
            }
            _ => extent.start,
        };
        let mut from = from.clamp(extent.start, extent.end);
        loop {
            let records =
                self.readers.read(&self.cluster, (&topic, at.partition), from, LOOK_BYTES, deadline)?;
            let Some(last) = records.last() else {
                return Ok(self.cluster.extent(&topic, at.partition, deadline)?.end);
            };
            from = last.offset + 1;
            if let Some(found) = records.iter().find(|stored| stored.record.event_time_ms >= time_ms) {
                return Ok(found.offset);
            }
        }
    }

    fn trim_by(&self, at: &TopicPartition, before: u64, deadline: Deadline) -> Result<Extent, LogError> {
        let topic = self.place(at, deadline)?;
        let extent = self.cluster.extent(&topic, at.partition, deadline)?;
        let before = before.min(extent.end);
        if before <= extent.start {
            return Ok(extent);
        }
        self.cluster.delete_records(&topic, at.partition, before, deadline)?;
        self.readers.forget(&topic, at.partition);
        self.cluster.extent(&topic, at.partition, deadline)
    }

    /// How far every group got that ever committed on the partition; `None` if there is none.
    fn passed_by_all(
        &self,
        groups: &[String],
        at: &TopicPartition,
        deadline: Deadline,
    ) -> Result<Option<u64>, LogError> {
        Ok(self.passed_by(groups, at, deadline)?.into_iter().map(|(_, offset)| offset).min())
    }

    /// How far each of these groups got, by its name in Kafka.
    fn passed_by(
        &self,
        groups: &[String],
        at: &TopicPartition,
        deadline: Deadline,
    ) -> Result<Vec<(String, u64)>, LogError> {
        let topic = self.place(at, deadline)?;
        let mut passed = Vec::new();
        for group in groups {
            let place = (topic.as_str(), at.partition);
            if let Some(offset) = self.groups.committed(&self.cluster, group, place, deadline)? {
                passed.push((group.clone(), offset));
            }
        }
        Ok(passed)
    }

    /// Notes how far each partition of a topic reaches now; returns what is known of when its
    /// records were written.
    fn note_written(
        &self,
        topic: &str,
        partitions: u32,
        now_ms: i64,
        retain_ms: u64,
    ) -> Result<BTreeMap<u32, Written>, LogError> {
        let deadline = self.cluster.deadline();
        let name = self.cluster.name(topic);
        let extents: Vec<Extent> = (0..partitions)
            .map(|partition| self.cluster.extent(&name, partition, deadline))
            .collect::<Result<_, _>>()?;
        let known = |control: &state::Control| control.written.get(topic).cloned().unwrap_or_default();
        self.write_control(deadline, |control| {
            let (mut written, mut is_new) = (known(control), false);
            for (partition, extent) in (0..).zip(&extents) {
                is_new |= written.entry(partition).or_default().note(now_ms, *extent, retain_ms);
            }
            let marks = serde_json::to_string(&written)
                .map_err(|error| LogError::Stopped { reason: error.to_string() })?;
            Ok(is_new.then(|| (state::written_key(topic), marks)))
        })?;
        self.state.control(&self.cluster, deadline, known)
    }

    /// Writes a control record that is computed from the current ones; no other process can write
    /// one in between.
    fn write_control(
        &self,
        deadline: Deadline,
        make: impl Fn(&state::Control) -> Result<Option<(String, String)>, LogError>,
    ) -> Result<(), LogError> {
        let mut pause = Duration::from_millis(20);
        loop {
            // Taking the id aborts the transaction of another process under it, so do it only with
            // something to write.
            if self.state.control(&self.cluster, deadline, &make)??.is_none() {
                return Ok(());
            }
            let writer = Writer::take(&self.cluster, &self.cluster.name("control"), deadline)?;
            let Some((key, value)) = self.state.control(&self.cluster, deadline, &make)?? else {
                return Ok(());
            };
            let message = (key.as_bytes(), value.as_bytes());
            let to = (self.state.topic(), state::CONTROL);
            let send = |writer: &Writer| writer.send(to, message, (Role::Beside, None, None), deadline);
            let reason = match writer.transact(&self.cluster, deadline, send, |_| Ok(())) {
                Ok(_) => return Ok(()),
                Err(Failure::Refused(refused)) => return Err(refused),
                Err(Failure::Aborted(reason) | Failure::Lost(reason) | Failure::Taken(reason)) => reason,
            };
            if deadline.passed() {
                return Err(self.cluster.timed_out("writing to the topic of progress", deadline, &reason));
            }
            thread::sleep(pause.min(deadline.left()));
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }
}

impl std::fmt::Debug for KafkaLog {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let url = self.cluster.options.url.to_string();
        f.debug_struct("KafkaLog")
            .field("url", &url)
            .field("generation", &self.generation)
            .finish_non_exhaustive()
    }
}

impl EventLog for KafkaLog {
    fn create_topic(&self, topic: &str, config: TopicConfig) -> Result<(), LogError> {
        check_topic(topic, config)?;
        if topic == state::TOPIC || topic == clock::TOPIC {
            let what = "the log keeps state of its own under that name";
            return Err(LogError::InvalidTopic { topic: topic.into(), what });
        }
        let (deadline, name) = (self.cluster.deadline(), self.cluster.name(topic));
        let existing = match self.cluster.find(&name, deadline)? {
            Some(existing) => existing,
            None => {
                let bytes = config.retain_bytes.map_or_else(|| "-1".into(), |bytes| bytes.to_string());
                let max_bytes = options::MAX_MESSAGE_BYTES.to_string();
                let settings = [
                    ("cleanup.policy", "delete"),
                    ("retention.ms", "-1"),
                    ("retention.bytes", &bytes),
                    ("max.message.bytes", &max_bytes),
                    ("message.timestamp.type", "CreateTime"),
                    ("message.timestamp.before.max.ms", "9223372036854775807"),
                    ("message.timestamp.after.max.ms", "9223372036854775807"),
                ];
                self.cluster.create(&name, config.partitions, &settings, deadline)?
            }
        };
        if existing != config.partitions {
            return Err(LogError::TopicMismatch { topic: topic.into(), existing, wanted: config.partitions });
        }
        if self.is_declared(topic, deadline)? {
            return Ok(());
        }
        self.write_control(deadline, |control| {
            if control.topics.contains_key(topic) {
                return Ok(None);
            }
            let layout = serde_json::to_string(&config)
                .map_err(|error| LogError::Stopped { reason: error.to_string() })?;
            Ok(Some((state::topic_key(topic), layout)))
        })
    }

    fn topics(&self) -> Result<Vec<(String, TopicConfig)>, LogError> {
        let deadline = self.cluster.deadline();
        let mut found = self.list(deadline)?;
        found.remove(state::TOPIC);
        found.remove(clock::TOPIC);
        self.state.control(&self.cluster, deadline, |control| {
            let made_by_hand = TopicConfig { partitions: 0, retain_ms: None, retain_bytes: None };
            let layout = |topic: &str| control.topics.get(topic).copied().unwrap_or(made_by_hand);
            let with_layout = |(topic, partitions): (String, u32)| {
                let layout = layout(&topic);
                match layout.partitions {
                    declared if declared != 0 && declared != partitions => {
                        Err(LogError::Repartitioned { topic, declared, existing: partitions })
                    }
                    _ => Ok((topic, TopicConfig { partitions, ..layout })),
                }
            };
            found.into_iter().map(with_layout).collect::<Result<_, _>>()
        })?
    }

    fn append(&self, at: &TopicPartition, batch: Batch) -> Result<Appended, LogError> {
        let deadline = self.cluster.deadline();
        self.place(at, deadline)?;
        check_batch(&batch)?;
        let appender = Appender {
            cluster: &self.cluster,
            state: &self.state,
            sources: &self.sources,
            counters: &self.counters,
            held: &self.generation,
        };
        appender.append(at, &batch, deadline)
    }

    fn read(&self, at: &TopicPartition, from: u64, max_bytes: usize) -> Result<Vec<StoredRecord>, LogError> {
        let deadline = self.cluster.deadline();
        let topic = self.place(at, deadline)?;
        self.readers.read(&self.cluster, (&topic, at.partition), from, max_bytes, deadline)
    }

    fn extent(&self, at: &TopicPartition) -> Result<Extent, LogError> {
        self.extent_by(at, self.cluster.deadline())
    }

    fn offset_for_time(&self, at: &TopicPartition, event_time_ms: i64) -> Result<u64, LogError> {
        self.offset_for_time_by(at, event_time_ms, self.cluster.deadline())
    }

    fn wait_for(&self, at: &TopicPartition, offset: u64, timeout: Duration) -> Result<bool, LogError> {
        let until = Deadline::after(timeout);
        let mut pause = Duration::from_millis(1);
        loop {
            if self.extent_by(at, self.cluster.deadline())?.end > offset {
                return Ok(true);
            }
            if until.passed() {
                return Ok(false);
            }
            thread::sleep(pause.min(until.left()));
            pause = (pause * 2).min(Duration::from_millis(50));
        }
    }

    fn commit_offset(&self, group: &str, at: &TopicPartition, offset: u64) -> Result<(), LogError> {
        let deadline = self.cluster.deadline();
        let (topic, group) = (self.place(at, deadline)?, self.cluster.name(group));
        self.groups.commit(&self.cluster, &group, (&topic, at.partition), offset, deadline)
    }

    fn join(&self, group: &str, topics: &[&str]) -> Result<Box<dyn Member>, LogError> {
        Ok(Box::new(Joined::join(self.cluster.clone(), group, topics)?))
    }

    fn committed_offset(&self, group: &str, at: &TopicPartition) -> Result<Option<u64>, LogError> {
        let deadline = self.cluster.deadline();
        let (topic, group) = (self.place(at, deadline)?, self.cluster.name(group));
        self.groups.committed(&self.cluster, &group, (&topic, at.partition), deadline)
    }

    fn trim(&self, at: &TopicPartition, before: u64) -> Result<Extent, LogError> {
        self.trim_by(at, before, self.cluster.deadline())
    }

    fn apply_retention(&self, now_ms: i64) -> Result<(), LogError> {
        let groups = self.cluster.groups(self.cluster.deadline())?;
        for (topic, TopicConfig { partitions, retain_ms, .. }) in self.topics()? {
            let Some(retain_ms) = retain_ms else { continue };
            let written = self.note_written(&topic, partitions, now_ms, retain_ms)?;
            for partition in 0..partitions {
                let (at, deadline) =
                    (TopicPartition { topic: topic.clone(), partition }, self.cluster.deadline());
                let old = written
                    .get(&partition)
                    .map_or(0, |written| written.up_to(now_ms.saturating_sub_unsigned(retain_ms)));
                let passed = self.passed_by_all(&groups, &at, deadline)?.unwrap_or(old);
                self.trim_by(&at, old.min(passed), deadline)?;
            }
        }
        Ok(())
    }

    fn set_retention(&self, topic: &str, retain_ms: Option<u64>) -> Result<(), LogError> {
        let found = self.topics()?.into_iter().find(|(name, _)| name == topic);
        let (_, config) = found.ok_or_else(|| LogError::UnknownTopic(topic.into()))?;
        let layout = serde_json::to_string(&TopicConfig { retain_ms, ..config })
            .map_err(|error| LogError::Stopped { reason: error.to_string() })?;
        self.write_control(self.cluster.deadline(), |control| {
            let is_set = control.topics.get(topic).is_some_and(|known| known.retain_ms == retain_ms);
            Ok((!is_set).then(|| (state::topic_key(topic), layout.clone())))
        })
    }

    fn consumers(&self, at: &TopicPartition) -> Result<Vec<(String, u64)>, LogError> {
        let deadline = self.cluster.deadline();
        let (groups, prefix) = (self.cluster.groups(deadline)?, self.cluster.name(""));
        let passed = self.passed_by(&groups, at, deadline)?;
        let bare = |group: String| group.strip_prefix(&prefix).map(str::to_owned).unwrap_or(group);
        Ok(passed.into_iter().map(|(group, offset)| (bare(group), offset)).collect())
    }

    fn forget_consumer(&self, group: &str) -> Result<bool, LogError> {
        let deadline = self.cluster.deadline();
        let group = self.cluster.name(group);
        if !self.cluster.groups(deadline)?.contains(&group) {
            return Ok(false);
        }
        self.cluster.delete_group(&group, deadline)?;
        self.groups.forget(&group);
        Ok(true)
    }

    fn clock(&self) -> Result<Option<LogClock>, LogError> {
        clock::ask(&self.cluster, self.cluster.deadline()).map(Some)
    }

    fn fence(&self) -> Result<u64, LogError> {
        let deadline = self.cluster.deadline();
        let generation = AtomicU64::new(0);
        self.write_control(deadline, |control| {
            generation.store(control.generation + 1, Ordering::SeqCst);
            Ok(Some((state::GENERATION.into(), (control.generation + 1).to_string())))
        })?;
        let generation = generation.into_inner();
        // Only now can appends of older generations still be open that did not see it; see
        // `Appender::check_generation`.
        for (topic, partitions) in self.list(deadline)? {
            let name = self.cluster.name(&topic);
            for partition in 0..partitions {
                let end = self.cluster.high_watermark(&name, partition, deadline)?;
                self.cluster.wait_until_settled(&name, partition, end, deadline)?;
            }
        }
        self.generation.store(generation, Ordering::SeqCst);
        Ok(generation)
    }
}
