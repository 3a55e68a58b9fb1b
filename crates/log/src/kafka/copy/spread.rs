//! The copy that lays a topic out over another number of partitions.
//!
//! Records are appended by ordinary transactions. The source is `copy/TOPIC#PARTITION` by the
//! partition that it reads; its records in each target partition are numbered in the order of the
//! source, so a run that follows a killed one reads the source again and skips what is there. That
//! the numbers mean the same records each time rests on the source beginning at the same offset,
//! which is the epoch.
//!
//! Where a topic of the source has several partitions, the one goes on next that is least far in
//! time. So a record for all partitions, which speaks for what was reported before it, comes after
//! what was reported before it elsewhere too, up to what is read at once.

use std::collections::HashMap;

use xxhash_rust::xxh3::{Xxh3, xxh3_64};

use super::{CopyLease, CopyProgress, CopyReport, CopyStep, OnProgress, Place, Spread, no_copy, partitions};
use crate::check::Progress;
use crate::{
    Batch, EmbeddedLog, EventLog, Extent, LogError, Producer, Record, StoredRecord, TopicConfig,
    TopicPartition,
};

/// Payload that is read at once. Large, because each target partition gets a transaction of its own
/// for its part of it.
const READ_BYTES: usize = 8 << 20;
const BATCH_RECORDS: usize = 50_000;
const BATCH_BYTES: usize = 8 << 20;
const COMPARE_BYTES: usize = 4 << 20;

/// How many records, and the sum of their hashes: equal for the same records in any order.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Sum {
    records: u64,
    hashes: u128,
}

impl Sum {
    fn add(&mut self, record: &Record) {
        let mut hash = Xxh3::new();
        hash.update(&xxh3_64(&record.key).to_le_bytes());
        hash.update(&record.schema.to_le_bytes());
        hash.update(&record.event_time_ms.to_le_bytes());
        hash.update(&record.payload);
        self.hashes = self.hashes.wrapping_add(hash.digest128());
        self.records += 1;
    }
}

/// A partition of the source, being read.
struct Reading {
    at: TopicPartition,
    producer: Producer,
    next: u64,
    end: u64,
    /// Newest event time so far.
    reached_ms: i64,
    /// By target partition: how many records were placed there, and how many of these it holds from
    /// an earlier run.
    placed: Vec<u64>,
    held: Vec<u64>,
}

/// Copies a topic's partitions, side by side.
pub(super) fn copy(
    from: &EmbeddedLog,
    lease: &CopyLease<'_>,
    (topic, config): (&str, TopicConfig),
    spread: Spread<'_>,
    report: &mut CopyReport,
    on_progress: OnProgress<'_>,
) -> Result<(), LogError> {
    let to: Vec<_> = partitions(topic, spread.partitions).collect();
    let mut readings = partitions(topic, config.partitions)
        .map(|at| Reading::begin(from.extent(&at)?, at, lease, &to))
        .collect::<Result<Vec<_>, _>>()?;
    refuse_others(lease, &readings, &to)?;
    let mut sums = vec![Sum::default(); to.len()];
    loop {
        let unread = readings.iter_mut().filter(|reading| reading.next < reading.end);
        let Some(reading) = unread.min_by_key(|reading| reading.reached_ms) else { break };
        let (offset, end) = (reading.next, reading.end);
        on_progress(CopyProgress { step: CopyStep::Copying, at: reading.at.clone(), offset, end });
        let records = from.read(&reading.at, reading.next, READ_BYTES)?;
        reading.next = records.last().map_or(reading.end, |last| last.offset + 1);
        let newest = records.iter().map(|stored| stored.record.event_time_ms).max();
        reading.reached_ms = reading.reached_ms.max(newest.unwrap_or(i64::MIN));
        report.records += records.len() as u64;
        for (partition, records) in shares(topic, records, spread) {
            let at = to.get(partition as usize).ok_or_else(|| LogError::UnknownPartition {
                topic: topic.into(),
                partition,
                partitions: spread.partitions,
            })?;
            records.iter().for_each(|record| sums[partition as usize].add(record));
            report.written += reading.append(lease, at, records)?;
        }
        lease.check()?;
    }
    to.iter().zip(sums).try_for_each(|(at, expected)| compare(lease, at, expected, on_progress))
}

/// The records of each target partition, in order.
fn shares(topic: &str, records: Vec<StoredRecord>, spread: Spread<'_>) -> HashMap<u32, Vec<Record>> {
    let mut shares: HashMap<u32, Vec<Record>> = HashMap::new();
    for StoredRecord { record, .. } in records {
        match (spread.place)(topic, &record.key, spread.partitions) {
            Place::One(partition) => shares.entry(partition).or_default().push(record),
            Place::All => (0..spread.partitions)
                .for_each(|partition| shares.entry(partition).or_default().push(record.clone())),
        }
    }
    shares
}

impl Reading {
    fn begin(
        source: Extent,
        at: TopicPartition,
        lease: &CopyLease<'_>,
        to: &[TopicPartition],
    ) -> Result<Self, LogError> {
        let producer =
            Producer { source: format!("copy/{}#{}", at.topic, at.partition), epoch: source.start };
        // An append of nothing takes the source's producer, which ends what a killed copy left
        // unfinished; else the next line waited until Kafka does.
        let nothing = Batch { producer: producer.clone(), first_seq: 0, records: Vec::new() };
        to.first().map(|first| lease.to.append(first, nothing)).transpose()?;
        let known = lease.to.state.of_source(&lease.to.cluster, &producer.source, lease.deadline())?;
        if let Some(Progress { epoch, .. }) = known.values().find(|progress| progress.epoch != source.start) {
            let what = format!(
                "it began at {epoch} when it was copied in part, and was trimmed since; copy to another prefix"
            );
            return Err(no_copy(&at, source.start, what));
        }
        let held = to.iter().map(|at| known.get(at).map_or(0, |progress| progress.next_seq)).collect();
        Ok(Self {
            at,
            producer,
            next: source.start,
            end: source.end,
            reached_ms: i64::MIN,
            placed: vec![0; to.len()],
            held,
        })
    }

    /// Appends what the target does not hold yet; returns the number of records.
    fn append(
        &mut self,
        lease: &CopyLease<'_>,
        at: &TopicPartition,
        records: Vec<Record>,
    ) -> Result<u64, LogError> {
        let to = at.partition as usize;
        let first_seq = self.placed[to];
        self.placed[to] += records.len() as u64;
        let skip = self.held[to].saturating_sub(first_seq).min(records.len() as u64);
        let (mut written, mut seq) = (0, first_seq + skip);
        let mut records = records.into_iter().skip(skip as usize).peekable();
        while records.peek().is_some() {
            let (mut some, mut bytes) = (Vec::new(), 0);
            while let Some(record) = records.next_if(|_| some.len() < BATCH_RECORDS && bytes < BATCH_BYTES) {
                bytes += record.key.len() + record.payload.len();
                some.push(record);
            }
            let count = some.len() as u64;
            let batch = Batch { producer: self.producer.clone(), first_seq: seq, records: some };
            written += lease.to.append(at, batch)?.written;
            seq += count;
        }
        Ok(written)
    }
}

/// A partition that holds something must hold it from us.
fn refuse_others(lease: &CopyLease<'_>, readings: &[Reading], to: &[TopicPartition]) -> Result<(), LogError> {
    for at in to {
        let extent = lease.to.extent(at)?;
        let ours = readings.iter().any(|reading| reading.held[at.partition as usize] > 0);
        if !ours && !lease.to.read(at, extent.start, 1)?.is_empty() {
            let what = "on Kafka it holds records that no such copy wrote; copy to another prefix";
            return Err(no_copy(at, extent.start, what));
        }
    }
    Ok(())
}

/// Reads a target partition back.
fn compare(
    lease: &CopyLease<'_>,
    at: &TopicPartition,
    expected: Sum,
    on_progress: OnProgress<'_>,
) -> Result<(), LogError> {
    let Extent { start, end } = lease.to.extent(at)?;
    let (mut next, mut found) = (start, Sum::default());
    loop {
        let records = lease.to.read(at, next, COMPARE_BYTES)?;
        let Some(last) = records.last() else { break };
        next = last.offset + 1;
        records.iter().for_each(|stored| found.add(&stored.record));
        on_progress(CopyProgress { step: CopyStep::Comparing, at: at.clone(), offset: next, end });
    }
    if found == expected {
        return Ok(());
    }
    let what = match (found.records, expected.records) {
        (found, expected) if found == expected => "on Kafka it holds other records than were copied".into(),
        (found, expected) => format!("on Kafka it holds {found} records and should hold {expected}"),
    };
    let mend = "delete the topics of this prefix and copy again, or copy to another prefix";
    Err(no_copy(at, end, format!("{what}; {mend}")))
}
