//! Records of a partition that are not taken in there: nobody can read them, their time is out of
//! bounds, or they belong to another partition.

use tidegate_events::v1::{DeadLetter, Envelope};
use tidegate_events::{Event, SchemaId};
use tidegate_log::{Batch, EventLog, Producer, Record, TopicPartition, partition_for};

use super::CONSUMER_GROUP;
use crate::error::{LakeError, Result};

/// At most this much of an undecodable record is kept in its dead letter.
const RAW_BYTES: usize = 4096;

/// What one read of a partition set aside. It is in the log before the read counts as taken in.
///
/// After a crash in between, the same records are set aside once more: as the same events, which
/// tables count once.
pub(super) struct Aside<'a> {
    from: &'a TopicPartition,
    /// Partitions of the topic.
    partitions: u32,
    /// Records that became dead letters.
    pub dead: u64,
    pub misplaced: u64,
    /// Records to append: where, the offset of the first, and all of them.
    batches: Vec<(TopicPartition, u64, Vec<Record>)>,
}

impl<'a> Aside<'a> {
    pub fn new(from: &'a TopicPartition, partitions: u32) -> Self {
        Self { from, partitions, dead: 0, misplaced: 0, batches: Vec::new() }
    }

    /// Whether all events of its key are in this partition. Producers other than ours may have
    /// spread them otherwise.
    pub fn belongs_here(&self, event: &Event) -> bool {
        if self.partitions <= 1 {
            return true;
        }
        let key = event.key();
        // A heartbeat names no object and goes to every partition.
        key.ends_with('/') || partition_for(key.as_bytes(), self.partitions) == self.from.partition
    }

    /// An event of a key that belongs elsewhere goes there, in the same topic, as it is.
    pub fn misplaced(&mut self, offset: u64, event: &Event, record: Record) {
        self.misplaced += 1;
        let key = event.key();
        let partition = partition_for(key.as_bytes(), self.partitions);
        let to = TopicPartition { topic: self.from.topic.clone(), partition };
        self.add(to, offset, Record { key: key.into(), ..record });
    }

    /// A record that cannot be used goes to the dead-letter topic with its place; the pipeline goes
    /// on. `at_ms`: its time, if that can be.
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
            reason: format!("{why}; the record was skipped, everything after it goes on"),
            raw: record.payload.slice(..record.payload.len().min(RAW_BYTES)).to_vec(),
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

    /// Appends what was set aside, once for each run of records.
    pub fn append(self, log: &dyn EventLog) -> Result<()> {
        let TopicPartition { topic, partition } = self.from;
        for (to, offset, records) in self.batches {
            let source = format!("{CONSUMER_GROUP}/{topic}/{partition}#{offset}+{}", records.len());
            log.append(&to, Batch { producer: Producer { source, epoch: 0 }, first_seq: 0, records })?;
        }
        Ok(())
    }
}
