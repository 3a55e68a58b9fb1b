//! Reading a partition by offset.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use rdkafka::consumer::Consumer;
use rdkafka::error::{KafkaError, RDKafkaErrorCode as Code};
use rdkafka::{Offset, TopicPartitionList};

use super::client::{Client, Cluster, STALLED};
use super::client_errors::is_passing;
use super::deadline::Deadline;
use super::record::stored;
use crate::check::{check_offset, lock};
use crate::{LogError, StoredRecord};

/// Consumers that are kept for the next read. Each has a few threads and some 8 MiB of fetched
/// records.
const MAX_READERS: usize = 32;

/// A consumer that stands somewhere in a partition.
///
/// Offsets have gaps where transactions ended, so the last record does not show whether another
/// follows. A read stops at `max_bytes`, or at the partition's end as of its start; only the
/// consumer itself knows that it has reached that end.
struct Reader {
    consumer: Client,
    topic: String,
    partition: u32,
    /// What the next record's offset is at least.
    next: u64,
    /// The end as last asked for.
    end: u64,
    /// Nothing readable is between `next` and here.
    drained: u64,
    /// Whether records are being fetched. At the end of a partition they are not, to leave the
    /// broker alone.
    fetching: bool,
    /// Fetched, but over the last read's `max_bytes`.
    over: Option<StoredRecord>,
}

/// The idle readers of a log.
#[derive(Default)]
pub(super) struct Readers(Mutex<Vec<Reader>>);

impl Readers {
    /// Records from `from` on until `max_bytes` of payload, at least one if there is any.
    pub fn read(
        &self,
        cluster: &Cluster,
        (topic, partition): (&str, u32),
        from: u64,
        max_bytes: usize,
        deadline: Deadline,
    ) -> Result<Vec<StoredRecord>, LogError> {
        let mut reader = self.take(cluster, topic, partition, from)?;
        let read = reader.read(cluster, from, max_bytes, deadline)?;
        let mut idle = lock(&self.0);
        idle.push(reader);
        let oldest = (idle.len() > MAX_READERS).then(|| idle.remove(0));
        drop(idle);
        drop(oldest);
        Ok(read)
    }

    /// The reader that stands there, else one of the partition, else any that is left over, else a
    /// new one.
    fn take(&self, cluster: &Cluster, topic: &str, partition: u32, from: u64) -> Result<Reader, LogError> {
        let mut idle = lock(&self.0);
        let of_partition = |reader: &Reader| reader.topic == topic && reader.partition == partition;
        let found = idle
            .iter()
            .position(|reader| of_partition(reader) && reader.next == from)
            .or_else(|| idle.iter().position(of_partition))
            .or((idle.len() >= MAX_READERS).then_some(0));
        if let Some(found) = found {
            let mut reader = idle.remove(found);
            if !of_partition(&reader) {
                reader.turn_to(topic, partition);
            }
            return Ok(reader);
        }
        drop(idle);
        Ok(Reader {
            consumer: cluster.consumer()?,
            topic: topic.into(),
            partition,
            next: 0,
            end: 0,
            drained: 0,
            fetching: false,
            over: None,
        })
    }

    /// Forgets what was fetched ahead of a partition whose start moved.
    pub fn forget(&self, topic: &str, partition: u32) {
        lock(&self.0).retain(|reader| reader.topic != topic || reader.partition != partition);
    }
}

impl Reader {
    fn turn_to(&mut self, topic: &str, partition: u32) {
        self.topic = topic.into();
        self.partition = partition;
        (self.next, self.end, self.drained) = (0, 0, 0);
        (self.fetching, self.over) = (false, None);
    }

    fn read(
        &mut self,
        cluster: &Cluster,
        from: u64,
        max_bytes: usize,
        deadline: Deadline,
    ) -> Result<Vec<StoredRecord>, LogError> {
        let moved = !self.fetching || from != self.next;
        if moved || from >= self.end {
            let extent = cluster.extent(&self.topic, self.partition, deadline)?;
            check_offset(from, extent)?;
            self.end = extent.end;
            if from == extent.end || (from == self.next && extent.end == self.drained) {
                if self.fetching {
                    self.stop(cluster)?;
                }
                return Ok(Vec::new());
            }
        }
        // An end that the consumer reported before the last look may be an old one.
        let mut trusted = moved;
        if moved {
            self.seek_to(cluster, from)?;
        }
        let (mut records, mut bytes) = (Vec::new(), 0_usize);
        let mut answered = Instant::now();
        loop {
            // Where one offset is left it is a marker, or else a record for the next read.
            if !records.is_empty() && self.next + 1 >= self.end {
                return Ok(records);
            }
            match self.poll(deadline) {
                Some(Ok(record)) => {
                    answered = Instant::now();
                    bytes = bytes.saturating_add(record.record.payload.len());
                    if bytes > max_bytes && !records.is_empty() {
                        self.over = Some(record);
                        return Ok(records);
                    }
                    self.next = record.offset + 1;
                    records.push(record);
                }
                Some(Err(KafkaError::PartitionEOF(_))) if trusted => {
                    self.drained = self.end;
                    self.stop(cluster)?;
                    return Ok(records);
                }
                Some(Err(KafkaError::PartitionEOF(_))) => {
                    self.seek_to(cluster, self.next)?;
                    (trusted, answered) = (true, Instant::now());
                }
                Some(Err(error)) => self.explain(cluster, from, &error, deadline)?,
                None => {}
            }
            if deadline.passed() {
                self.stop(cluster)?;
                let doing = format!("reading {}/{} from offset {}", self.topic, self.partition, self.next);
                return Err(cluster.timed_out(&doing, deadline, "no answer"));
            }
            if answered.elapsed() >= STALLED {
                self.consumer = cluster.consumer()?;
                self.seek_to(cluster, self.next)?;
                (trusted, answered) = (true, Instant::now());
            }
        }
    }

    fn poll(&mut self, deadline: Deadline) -> Option<Result<StoredRecord, KafkaError>> {
        if let Some(record) = self.over.take() {
            return Some(Ok(record));
        }
        let wait = deadline.left().min(Duration::from_millis(100));
        match self.consumer.poll(wait)? {
            Ok(message) => Some(Ok(stored(&message))),
            Err(error) => Some(Err(error)),
        }
    }

    /// Lets pass what the consumer goes on after by itself; the rest is the read's error.
    fn explain(
        &mut self,
        cluster: &Cluster,
        from: u64,
        error: &KafkaError,
        deadline: Deadline,
    ) -> Result<(), LogError> {
        if matches!(error.rdkafka_error_code(), Some(Code::AutoOffsetReset | Code::OffsetOutOfRange)) {
            self.stop(cluster)?;
            check_offset(from, cluster.extent(&self.topic, self.partition, deadline)?)?;
            return self.seek_to(cluster, self.next);
        }
        if is_passing(error) {
            return Ok(());
        }
        let doing = format!("reading {}/{} from offset {}", self.topic, self.partition, self.next);
        match cluster.error(&doing, error, Duration::ZERO) {
            LogError::UnknownTopic(_) => {
                cluster.wait_for(&self.topic, &doing, deadline)?;
                self.seek_to(cluster, self.next)
            }
            error => Err(error),
        }
    }

    fn seek_to(&mut self, cluster: &Cluster, offset: u64) -> Result<(), LogError> {
        let mut there = TopicPartitionList::new();
        there
            .add_partition_offset(&self.topic, self.partition as i32, Offset::Offset(offset as i64))
            .and_then(|()| self.consumer.assign(&there))
            .map_err(|error| cluster.error("positioning a consumer", &error, Duration::ZERO))?;
        (self.next, self.fetching, self.over) = (offset, true, None);
        Ok(())
    }

    fn stop(&mut self, cluster: &Cluster) -> Result<(), LogError> {
        self.fetching = false;
        self.consumer
            .assign(&TopicPartitionList::new())
            .map_err(|error| cluster.error("stopping a consumer", &error, Duration::ZERO))
    }
}
