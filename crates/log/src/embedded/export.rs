//! Export for a copy: batches with their producers, progress of sources, offsets of groups.

use super::EmbeddedLog;
use super::frame::StoredBatch;
use super::partition::Partition;
use super::store::MetaKey;
use crate::check::{Progress, check_offset};
use crate::{LogError, TopicPartition};

impl EmbeddedLog {
    /// Batches as they were appended, from the one that holds `from` on, until their frames have
    /// `max_bytes`; none at the end of the partition.
    pub(crate) fn batches(
        &self,
        at: &TopicPartition,
        from: u64,
        max_bytes: usize,
    ) -> Result<Vec<StoredBatch>, LogError> {
        batches(&*self.partition(at)?, from, max_bytes)
    }

    /// How far each source got in the partition.
    pub(crate) fn producers(&self, at: &TopicPartition) -> Result<Vec<(String, Progress)>, LogError> {
        let store = &self.core.store;
        let entries = store.entries(&MetaKey::Producer(at, "").name())?;
        let parse = |(source, value): (String, fjall::Slice)| {
            let [epoch, next_seq] = store.parse_numbers(&source, &value)?;
            Ok((source, Progress { epoch, next_seq }))
        };
        entries.into_iter().map(parse).collect()
    }

    /// How far each consumer group got in the partition.
    pub(crate) fn groups(&self, at: &TopicPartition) -> Result<Vec<(String, u64)>, LogError> {
        let store = &self.core.store;
        let entries = store.entries(&MetaKey::Group(at, "").name())?;
        let parse = |(group, value): (String, fjall::Slice)| {
            let [offset] = store.parse_numbers(&group, &value)?;
            Ok((group, offset))
        };
        entries.into_iter().map(parse).collect()
    }
}

fn batches(partition: &Partition, from: u64, max_bytes: usize) -> Result<Vec<StoredBatch>, LogError> {
    let extent = partition.extent();
    check_offset(from, extent)?;
    let (mut next, mut bytes, mut batches) = (from, 0, Vec::new());
    for segment in partition.segments_from(from) {
        if next >= extent.end {
            break;
        }
        let Some(first) = segment.batch_at(next)? else {
            check_offset(from, partition.extent())?;
            return Err(segment.corrupt(next, "the batch that holds this offset is missing"));
        };
        for batch in segment.batches(first.base) {
            let (header, batch) = batch?;
            if header.base >= extent.end || bytes >= max_bytes {
                return Ok(batches);
            }
            if header.base > next {
                return Err(segment.gap(next, header.base));
            }
            (next, bytes) = (header.end(), bytes + header.frame_bytes as usize);
            batches.push(batch);
        }
    }
    Ok(batches)
}
