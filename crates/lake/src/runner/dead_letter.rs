//! Dead letters and misplaced records: what a partition holds that cannot be absorbed there,
//! because it cannot be decoded, its time is out of range, or it belongs to another partition.

use tidegate_events::v1::{DeadLetter, Envelope};
use tidegate_events::{Event, SchemaId};
use tidegate_log::{Batch, EventLog, Producer, Record, TopicPartition, partition_for};

use super::CONSUMER_GROUP;
use crate::error::{LakeError, Result};

/// At most this many bytes of an undecodable record are kept in its dead letter.
const RAW_BYTES: usize = 4096;

fn raw_bytes(record: &Record) -> Vec<u8> {
    record.payload.slice(..record.payload.len().min(RAW_BYTES)).to_vec()
}

/// Records of one read that go elsewhere. They are in the log before the read counts as absorbed.
///
/// After a crash in between they are appended once more, as the same events, which tables count
/// once.
pub(super) struct RecordRouter<'a> {
    from: &'a TopicPartition,
    /// Number of partitions of the topic.
    partitions: u32,
    /// Records that became dead letters.
    pub dead: u64,
    pub misplaced: u64,
    /// Records to append: the partition, the offset of the first, and all of them.
    batches: Vec<(TopicPartition, u64, Vec<Record>)>,
}

impl<'a> RecordRouter<'a> {
    pub fn new(from: &'a TopicPartition, partitions: u32) -> Self {
        Self { from, partitions, dead: 0, misplaced: 0, batches: Vec::new() }
    }

    /// Whether all events of its key are in this partition. Foreign producers may have partitioned
    /// them differently.
    pub fn belongs_here(&self, event: &Event) -> bool {
        if self.partitions <= 1 {
            return true;
        }
        let key = event.key();
        // A heartbeat names no object and goes to every partition.
        key.ends_with('/') || partition_for(key.as_bytes(), self.partitions) == self.from.partition
    }

    /// Routes an event to the partition of its key, in the same topic, unchanged.
    pub fn misplaced(&mut self, offset: u64, event: &Event, record: Record) {
        self.misplaced += 1;
        let key = event.key();
        let partition = partition_for(key.as_bytes(), self.partitions);
        let to = TopicPartition { topic: self.from.topic.clone(), partition };
        self.add(to, offset, Record { key: key.into(), ..record });
    }

    /// Routes a record that cannot be used to the dead-letter topic, with its position. The
    /// pipeline goes on. `at_ms` is its time, if it has a valid one.
    pub fn dead_letter(
        &mut self,
        offset: u64,
        record: Record,
        at_ms: Option<i64>,
        code: &str,
        why: &str,
    ) -> Result<()> {
        self.dead += 1;
        let TopicPartition { topic, partition } = self.from;
        let letters = SchemaId::DeadLetter.topic();
        if topic == letters {
            tracing::error!(topic, partition, offset, why, "a dead letter cannot be used itself; skipped");
            return Ok(());
        }
        let mut letter = Event::DeadLetter(DeadLetter {
            envelope: Some(Envelope {
                event_time_ms: at_ms.unwrap_or_default(),
                observed_time_ms: at_ms.unwrap_or_default(),
                source: CONSUMER_GROUP.into(),
                ..Envelope::default()
            }),
            origin: topic.clone(),
            line: None,
            partition: Some(*partition),
            offset: Some(offset),
            code: code.into(),
            reason: format!("{why}; the record was skipped, and processing continues"),
            // Dead letters are for everybody who asks, and audit records are not.
            raw: if topic == SchemaId::AuditEvent.topic() { Vec::new() } else { raw_bytes(&record) },
        });
        let out = letter.record().map_err(|e| LakeError::Refused(format!("build a dead letter: {e}")))?;
        let record = Record {
            key: out.key,
            schema: out.schema,
            event_time_ms: out.event_time_ms,
            payload: out.payload,
        };
        self.add(TopicPartition { topic: letters.into(), partition: 0 }, offset, record);
        Ok(())
    }

    fn add(&mut self, to: TopicPartition, offset: u64, record: Record) {
        match self.batches.iter_mut().find(|(at, ..)| *at == to) {
            Some((_, _, records)) => records.push(record),
            None => self.batches.push((to, offset, vec![record])),
        }
    }

    /// Appends the records, in one batch per target.
    pub fn append(self, log: &dyn EventLog) -> Result<()> {
        let TopicPartition { topic, partition } = self.from;
        for (to, offset, records) in self.batches {
            let source = format!("{CONSUMER_GROUP}/{topic}/{partition}#{offset}+{}", records.len());
            log.append(&to, Batch { producer: Producer { source, epoch: 0 }, first_seq: 0, records })?;
        }
        Ok(())
    }
}
