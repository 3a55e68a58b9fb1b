//! The embedded log: durable, local, in one process.
//!
//! Layout of its folder: `store/` is a [fjall] database, `acknowledged/` holds the witness files,
//! and `disk.json` says what topics take, for processes that cannot open the log.
//! One stored entry is one appended batch; producers' progress, ends and records of a commit are
//! written in one atomic step and fsynced before any append returns.

mod committer;
mod disk;
mod export;
mod frame;
mod journal;
mod partition;
mod recover;
mod segment;
mod store;
mod verify;
mod witness;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::check::{check_batch, check_topic, lock};
use crate::write_marks::Written;
use crate::{
    Appended, Batch, EventLog, Extent, LogError, Member, StoredRecord, TopicConfig, TopicPartition,
    sole_member,
};
pub use committer::LogStats;
use committer::{Committer, Counters, Operation, Queue};
pub use disk::{LogDisk, TopicDisk, noted_disk_use};
use frame::Body;
pub(crate) use frame::StoredBatch;
use partition::{Partition, Writer};
use recover::Topic;
use segment::Totals;
use store::{MetaKey, Store};
pub use verify::VerifyReport;
use witness::Witness;

/// Sizes of the embedded log's files. Only tests need other values than the defaults.
#[derive(Debug, Clone, Copy)]
pub struct EmbeddedOptions {
    /// Stored bytes after which a partition starts a new segment, the unit in which space is given
    /// back.
    pub segment_bytes: u64,
    /// Batches after which a partition starts a new segment; bounds what opening the log must look
    /// through.
    pub segment_batches: u64,
    /// Bytes kept in memory before a segment's newest batches go to a file of their own.
    pub memory_table_bytes: u64,
}

impl Default for EmbeddedOptions {
    fn default() -> Self {
        Self { segment_bytes: 1 << 30, segment_batches: 1 << 18, memory_table_bytes: 16 << 20 }
    }
}

/// An open embedded log.
///
/// Clones share the log; each writes as the generation it was cloned at, see [`EventLog::fence`].
/// The log closes when the last clone is dropped.
///
/// ```
/// use tidegate_log::{Batch, EmbeddedLog, EventLog, Producer, Record, TopicConfig, TopicPartition};
///
/// # let dir = tempfile::tempdir()?;
/// let log = EmbeddedLog::open(dir.path(), Default::default())?;
/// log.create_topic("jobs", TopicConfig { partitions: 1, retain_ms: None, retain_bytes: None })?;
/// let jobs = TopicPartition { topic: "jobs".into(), partition: 0 };
///
/// let record = Record { key: "helios/4711".into(), schema: 1, event_time_ms: 0, payload:
/// "started".into() };
/// let producer = Producer { source: "import:jobs.csv".into(), epoch: 0 };
/// let batch = Batch { producer, first_seq: 0, records: vec![record.clone()] };
/// assert_eq!(log.append(&jobs, batch.clone())?.written, 1);
/// assert_eq!(log.append(&jobs, batch)?.duplicates, 1);
/// assert_eq!(log.read(&jobs, 0, 1 << 20)?[0].record, record);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct EmbeddedLog {
    core: Arc<Core>,
    generation: AtomicU64,
}

struct Core {
    store: Arc<Store>,
    topics: RwLock<BTreeMap<String, Topic>>,
    queue: Arc<Queue>,
    counters: Arc<Counters>,
    /// The newest generation, as the committer sees it.
    generation: Arc<AtomicU64>,
    fencing: Mutex<()>,
    committer: Option<JoinHandle<()>>,
}

impl EmbeddedLog {
    /// Opens the log in `dir`, creating it where there is none.
    ///
    /// Everything that was acknowledged is there, or this fails with [`LogError::Corrupt`] or
    /// [`LogError::CorruptStore`]. Takes time for at most one segment's batch keys per partition
    /// and about 128 MiB of journal.
    pub fn open(dir: impl AsRef<Path>, options: EmbeddedOptions) -> Result<Self, LogError> {
        let store = Arc::new(Store::open(dir.as_ref(), options.memory_table_bytes)?);
        let topics = recover::topics(&store)?;
        let generation = store.numbers::<1>(&MetaKey::Generation)?.map_or(0, |[generation]| generation);
        let (queue, counters) = (Arc::<Queue>::default(), Arc::<Counters>::default());
        let newest = Arc::new(AtomicU64::new(generation));
        let committer = Committer {
            store: store.clone(),
            queue: queue.clone(),
            counters: counters.clone(),
            generation: newest.clone(),
            segment_bytes: options.segment_bytes,
            segment_batches: options.segment_batches,
        };
        let thread = std::thread::Builder::new().name("log-committer".into()).spawn(move || committer.run());
        let thread = thread.map_err(|e| LogError::io(dir.as_ref(), "starting the committing thread", e))?;
        let core = Core {
            store,
            topics: RwLock::new(topics),
            queue,
            counters,
            generation: newest,
            fencing: Mutex::new(()),
            committer: Some(thread),
        };
        Ok(Self { core: Arc::new(core), generation: AtomicU64::new(generation) })
    }

    /// Counted costs since the log was opened.
    pub fn stats(&self) -> LogStats {
        self.core.counters.stats()
    }

    /// Reads and checks every record; the first bad place is the error.
    pub fn verify(&self) -> Result<VerifyReport, LogError> {
        let topics = self.core.topics.read().unwrap_or_else(PoisonError::into_inner);
        let partitions: Vec<_> = topics.values().flat_map(|topic| topic.partitions.clone()).collect();
        drop(topics);
        verify::verify(&partitions)
    }

    fn partition(&self, at: &TopicPartition) -> Result<Arc<Partition>, LogError> {
        let topics = self.core.topics.read().unwrap_or_else(PoisonError::into_inner);
        let topic = topics.get(&at.topic).ok_or_else(|| LogError::UnknownTopic(at.topic.clone()))?;
        let unknown = || LogError::UnknownPartition {
            topic: at.topic.clone(),
            partition: at.partition,
            partitions: topic.config.partitions,
        };
        topic.partitions.get(at.partition as usize).cloned().ok_or_else(unknown)
    }

    fn submit(&self, operation: Operation) -> Result<Appended, LogError> {
        self.core.store.check_running()?;
        self.core.queue.run(self.generation.load(Ordering::SeqCst), operation)
    }

    /// The least offset that any group committed on the partition; the end if there is none.
    fn passed_by_all(&self, partition: &Partition) -> Result<u64, LogError> {
        let groups = self.groups(&partition.at)?;
        Ok(groups.into_iter().map(|(_, offset)| offset).fold(partition.extent().end, u64::min))
    }

    /// The offset below which records are older than `retain_ms`. Marks the partition's present
    /// end.
    fn aged(&self, partition: &Partition, now_ms: i64, retain_ms: u64) -> Result<u64, LogError> {
        let (store, key) = (&self.core.store, MetaKey::Written(&partition.at));
        let mut written: Written = store.json(&key)?.unwrap_or_default();
        if written.note(now_ms, partition.extent(), retain_ms) {
            let marks = serde_json::to_vec(&written).expect("pairs of numbers are JSON");
            store.put(&key, marks)?;
        }
        Ok(written.up_to(now_ms.saturating_sub_unsigned(retain_ms)))
    }
}

impl std::fmt::Debug for EmbeddedLog {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EmbeddedLog").field("generation", &self.generation).finish_non_exhaustive()
    }
}

impl Clone for EmbeddedLog {
    fn clone(&self) -> Self {
        let generation = AtomicU64::new(self.generation.load(Ordering::SeqCst));
        Self { core: self.core.clone(), generation }
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        self.queue.close();
        if self.committer.take().is_some_and(|thread| thread.join().is_err()) {
            tracing::error!(dir = %self.store.dir.display(), "the log's committing thread panicked");
        }
        for partition in
            self.topics.get_mut().unwrap_or_else(PoisonError::into_inner).values().flat_map(|t| &t.partitions)
        {
            if let Err(e) = lock(&partition.writer).witness.sync() {
                tracing::warn!(
                    topic = partition.at.topic,
                    partition = partition.at.partition,
                    "witness: {e}"
                );
            }
        }
    }
}

impl EventLog for EmbeddedLog {
    fn create_topic(&self, topic: &str, config: TopicConfig) -> Result<(), LogError> {
        check_topic(topic, config)?;
        let mut topics = self.core.topics.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(existing) = topics.get(topic) {
            let existing = existing.config.partitions;
            return match existing == config.partitions {
                true => Ok(()),
                false => {
                    Err(LogError::TopicMismatch { topic: topic.into(), existing, wanted: config.partitions })
                }
            };
        }
        let store = &self.core.store;
        let layout = serde_json::to_vec(&config)
            .map_err(|e| LogError::io(&store.dir, "encoding a topic's layout", e.into()))?;
        store.put(&MetaKey::Topic(topic), layout)?;
        let partition = |partition| {
            let at = TopicPartition { topic: topic.into(), partition };
            let witness = Witness::create(&store.dir, &at, 0)?;
            let writer =
                Writer { active: None, totals: Totals::empty(0), producers: Default::default(), witness };
            Ok(Arc::new(Partition::new(at, Extent { start: 0, end: 0 }, Vec::new(), writer)))
        };
        let partitions = (0..config.partitions).map(partition).collect::<Result<_, LogError>>()?;
        topics.insert(topic.into(), Topic { config, partitions });
        Ok(())
    }

    fn topics(&self) -> Result<Vec<(String, TopicConfig)>, LogError> {
        let topics = self.core.topics.read().unwrap_or_else(PoisonError::into_inner);
        Ok(topics.iter().map(|(name, topic)| (name.clone(), topic.config)).collect())
    }

    fn append(&self, at: &TopicPartition, batch: Batch) -> Result<Appended, LogError> {
        let partition = self.partition(at)?;
        check_batch(&batch)?;
        let body = Body::encode(&batch.records);
        self.submit(Operation::Append { partition, batch, body })
    }

    fn read(&self, at: &TopicPartition, from: u64, max_bytes: usize) -> Result<Vec<StoredRecord>, LogError> {
        self.partition(at)?.read(from, max_bytes)
    }

    fn extent(&self, at: &TopicPartition) -> Result<Extent, LogError> {
        Ok(self.partition(at)?.extent())
    }

    fn offset_for_time(&self, at: &TopicPartition, event_time_ms: i64) -> Result<u64, LogError> {
        self.partition(at)?.offset_for_time(event_time_ms)
    }

    fn wait_for(&self, at: &TopicPartition, offset: u64, timeout: Duration) -> Result<bool, LogError> {
        Ok(self.partition(at)?.wait_for(offset, timeout))
    }

    fn commit_offset(&self, group: &str, at: &TopicPartition, offset: u64) -> Result<(), LogError> {
        self.partition(at)?;
        self.core.store.put(&MetaKey::Group(at, group), offset.to_be_bytes().to_vec())
    }

    fn join(&self, group: &str, topics: &[&str]) -> Result<Box<dyn Member>, LogError> {
        sole_member(Arc::new(self.clone()), group, topics)
    }

    fn committed_offset(&self, group: &str, at: &TopicPartition) -> Result<Option<u64>, LogError> {
        self.partition(at)?;
        Ok(self.core.store.numbers::<1>(&MetaKey::Group(at, group))?.map(|[offset]| offset))
    }

    fn trim(&self, at: &TopicPartition, before: u64) -> Result<Extent, LogError> {
        let partition = self.partition(at)?;
        let start = partition.batch_start(before)?;
        if start > partition.extent().start {
            self.submit(Operation::Trim { partition: partition.clone(), start })?;
        }
        Ok(partition.extent())
    }

    fn apply_retention(&self, now_ms: i64) -> Result<(), LogError> {
        for (topic, TopicConfig { partitions, retain_ms, retain_bytes }) in self.topics()? {
            if retain_ms.is_none() && retain_bytes.is_none() {
                continue;
            }
            for partition in 0..partitions {
                let at = TopicPartition { topic: topic.clone(), partition };
                let partition = self.partition(&at)?;
                let aged = match retain_ms {
                    Some(retain_ms) => self.aged(&partition, now_ms, retain_ms)?,
                    None => 0,
                };
                let before = partition.expired(aged, retain_bytes, self.passed_by_all(&partition)?)?;
                self.trim(&at, before)?;
            }
        }
        self.note_disk_use(now_ms);
        Ok(())
    }

    fn set_retention(&self, topic: &str, retain_ms: Option<u64>) -> Result<(), LogError> {
        let mut topics = self.core.topics.write().unwrap_or_else(PoisonError::into_inner);
        let found = topics.get_mut(topic).ok_or_else(|| LogError::UnknownTopic(topic.into()))?;
        let config = TopicConfig { retain_ms, ..found.config };
        let store = &self.core.store;
        let layout = serde_json::to_vec(&config)
            .map_err(|e| LogError::io(&store.dir, "encoding a topic's layout", e.into()))?;
        store.put(&MetaKey::Topic(topic), layout)?;
        found.config = config;
        Ok(())
    }

    fn consumers(&self, at: &TopicPartition) -> Result<Vec<(String, u64)>, LogError> {
        self.partition(at)?;
        self.groups(at)
    }

    fn forget_consumer(&self, group: &str) -> Result<bool, LogError> {
        let mut known = Vec::new();
        for (topic, config) in self.topics()? {
            for partition in 0..config.partitions {
                let at = TopicPartition { topic: topic.clone(), partition };
                if self.committed_offset(group, &at)?.is_some() {
                    known.push(at);
                }
            }
        }
        let keys: Vec<MetaKey<'_>> = known.iter().map(|at| MetaKey::Group(at, group)).collect();
        self.core.store.remove(&keys)?;
        Ok(!keys.is_empty())
    }

    fn fence(&self) -> Result<u64, LogError> {
        let _one_at_a_time = lock(&self.core.fencing);
        let generation = self.core.generation.load(Ordering::SeqCst) + 1;
        // The newest writer wins whatever generation its handle had, so the request is never
        // refused as fenced.
        self.generation.store(generation, Ordering::SeqCst);
        self.submit(Operation::Fence { generation })?;
        Ok(generation)
    }
}
