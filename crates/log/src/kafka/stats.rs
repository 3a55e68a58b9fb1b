use std::sync::atomic::{AtomicU64, Ordering};

use crate::Batch;

/// Counted costs of a handle since it was opened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct KafkaStats {
    /// Transactions that were committed, one per batch.
    pub transactions: u64,
    /// Records that were written.
    pub records: u64,
    /// Keys and payloads, before compression.
    pub bytes: u64,
    /// Transactions that had to be begun again.
    pub retries: u64,
    /// Producers that were opened, each at the cost of several requests.
    pub opened: u64,
    /// Producers that are open: one for each family of sources that appended lately.
    pub sources: u64,
    /// Messages that wait for Kafka's acknowledgement.
    pub queued: u64,
}

#[derive(Default)]
pub(super) struct Counters {
    transactions: AtomicU64,
    records: AtomicU64,
    bytes: AtomicU64,
    pub retries: AtomicU64,
    pub opened: AtomicU64,
}

impl Counters {
    pub fn count(&self, batch: &Batch, duplicates: u64) {
        let records = batch.records.iter().skip(duplicates as usize);
        let bytes: usize = records.map(|record| record.key.len() + record.payload.len()).sum();
        self.transactions.fetch_add(1, Ordering::Relaxed);
        self.records.fetch_add(batch.records.len() as u64 - duplicates, Ordering::Relaxed);
        self.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    pub fn stats(&self, (sources, queued): (u64, u64)) -> KafkaStats {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        KafkaStats {
            transactions: load(&self.transactions),
            records: load(&self.records),
            bytes: load(&self.bytes),
            retries: load(&self.retries),
            opened: load(&self.opened),
            sources,
            queued,
        }
    }
}
