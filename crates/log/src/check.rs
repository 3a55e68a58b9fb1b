//! Checks that both logs make of topics and batches, with the same errors.

use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::{
    Batch, Extent, LogError, MAX_BATCH_BYTES, MAX_RECORD_BYTES, MAX_SOURCE_BYTES, MAX_TOPIC_BYTES,
    TopicConfig,
};

pub(crate) fn check_topic(topic: &str, config: TopicConfig) -> Result<(), LogError> {
    let refuse = |what| Err(LogError::InvalidTopic { topic: topic.into(), what });
    let allowed = |c: char| c.is_ascii_alphanumeric() || ".-_".contains(c);
    if topic.is_empty() || topic.len() > MAX_TOPIC_BYTES || !topic.chars().all(allowed) {
        return refuse("use 1 to 200 of the characters a-z, A-Z, 0-9, '.', '-' and '_'");
    }
    if topic == "." || topic == ".." {
        return refuse("it would name a folder");
    }
    if config.partitions == 0 {
        return refuse("a topic needs at least one partition");
    }
    Ok(())
}

/// Checks the limits that every log shares, Kafka included.
pub(crate) fn check_batch(batch: &Batch) -> Result<(), LogError> {
    /// What a record takes besides its key and payload, so that a batch of empty records is bounded
    /// too.
    const OVERHEAD_BYTES: usize = 16;
    let source_bytes = batch.producer.source.len();
    if !(1..=MAX_SOURCE_BYTES).contains(&source_bytes) {
        return Err(LogError::InvalidSource { bytes: source_bytes, limit: MAX_SOURCE_BYTES });
    }
    let mut batch_bytes = 0;
    for record in &batch.records {
        let bytes = record.key.len() + record.payload.len();
        if bytes > MAX_RECORD_BYTES {
            return Err(LogError::RecordTooLarge { bytes, limit: MAX_RECORD_BYTES });
        }
        batch_bytes += bytes + OVERHEAD_BYTES;
    }
    if batch_bytes > MAX_BATCH_BYTES {
        return Err(LogError::BatchTooLarge { bytes: batch_bytes, limit: MAX_BATCH_BYTES });
    }
    Ok(())
}

/// How far a source got in a partition: its newest life, and the number its next record must have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(crate) struct Progress {
    pub epoch: u64,
    pub next_seq: u64,
}

impl Progress {
    /// How many leading records of the batch the partition holds already, given how far its source
    /// got there.
    pub fn count_duplicates(known: Option<Self>, batch: &Batch) -> Result<u64, LogError> {
        let Batch { producer, first_seq, records } = batch;
        if let Some(newer) = known.filter(|known| known.epoch > producer.epoch) {
            let source_name = producer.source.clone();
            return Err(LogError::StaleEpoch { source_name, newest: newer.epoch, got: producer.epoch });
        }
        let expected = known.filter(|known| known.epoch == producer.epoch).map_or(0, |known| known.next_seq);
        if *first_seq > expected {
            let source_name = producer.source.clone();
            return Err(LogError::SequenceGap { source_name, expected, got: *first_seq });
        }
        Ok((expected - first_seq).min(records.len() as u64))
    }
}

pub(crate) fn check_offset(wanted: u64, Extent { start, end }: Extent) -> Result<(), LogError> {
    if (start..=end).contains(&wanted) {
        Ok(())
    } else {
        Err(LogError::OffsetOutOfRange { wanted, start, end })
    }
}

/// The state behind these locks is only ever replaced as a whole, so a panic elsewhere leaves it
/// good.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
