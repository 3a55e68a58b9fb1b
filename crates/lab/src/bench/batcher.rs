//! Batches generated records for one partition of the log.

use tidegate_events::EventRecord;
use tidegate_log::{Batch, EventLog, Producer, Record, TopicPartition};

use tidegate_workspace::CommandError;

/// Payload bytes per append: one transaction on Kafka, one fsync in the embedded log.
const APPEND_BYTES: usize = 8 << 20;

/// Records to append to one partition.
pub struct PartitionBatcher {
    source: &'static str,
    at: TopicPartition,
    epoch: u64,
    next_seq: u64,
    records: Vec<Record>,
    bytes: usize,
}

impl PartitionBatcher {
    pub fn new(source: &'static str, topic: &str, partition: u32) -> Self {
        let at = TopicPartition { topic: topic.into(), partition };
        Self { source, at, epoch: 0, next_seq: 0, records: Vec::new(), bytes: 0 }
    }

    /// A batcher of a later life of the source, which may append where an earlier one ended.
    pub fn in_life(self, epoch: u64) -> Self {
        Self { epoch, ..self }
    }

    /// Adds a record; appends the batch once it is large enough.
    pub fn push(&mut self, log: &dyn EventLog, record: EventRecord) -> Result<(), CommandError> {
        self.bytes += record.payload.len();
        self.records.push(record.into());
        if self.bytes >= APPEND_BYTES { self.append(log) } else { Ok(()) }
    }

    /// Appends the batch.
    pub fn append(&mut self, log: &dyn EventLog) -> Result<(), CommandError> {
        let records = std::mem::take(&mut self.records);
        let (first_seq, count) = (self.next_seq, records.len() as u64);
        let producer = Producer { source: self.source.into(), epoch: self.epoch };
        if count > 0 {
            log.append(&self.at, Batch { producer, first_seq, records })?;
        }
        (self.next_seq, self.bytes) = (first_seq + count, 0);
        Ok(())
    }
}
