//! Verification: reads and checks every record.

use std::collections::HashMap;
use std::sync::Arc;

use super::partition::Partition;
use crate::LogError;
use crate::check::Progress;

/// Totals of a log whose every record was read and checked.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct VerifyReport {
    /// Partitions of all topics.
    pub partitions: u64,
    /// Batches in them.
    pub batches: u64,
    /// Records in them.
    pub records: u64,
    /// Stored, compressed.
    pub bytes: u64,
}

pub(super) fn verify(partitions: &[Arc<Partition>]) -> Result<VerifyReport, LogError> {
    let mut report = VerifyReport { partitions: partitions.len() as u64, ..Default::default() };
    for partition in partitions {
        verify_partition(partition, &mut report)?;
    }
    Ok(report)
}

/// Offsets and every source's sequence numbers must be dense, and every batch must decode.
fn verify_partition(partition: &Partition, report: &mut VerifyReport) -> Result<(), LogError> {
    let extent = partition.extent();
    let mut next = extent.start;
    let mut sources: HashMap<String, Progress> = HashMap::new();
    for segment in partition.segments() {
        for batch in segment.batches(next) {
            let (header, batch) = batch?;
            if header.base >= extent.end {
                break;
            }
            if header.base != next {
                return Err(segment.gap(next, header.base));
            }
            let progress =
                Progress { epoch: batch.producer.epoch, next_seq: batch.first_seq + u64::from(header.count) };
            let before = sources.insert(batch.producer.source, progress);
            if before.is_some_and(|before| !follows(before, progress.epoch, batch.first_seq)) {
                return Err(
                    segment.corrupt(header.base, "the source's sequence numbers have a gap or a repetition")
                );
            }
            next = header.end();
            report.batches += 1;
            report.records += u64::from(header.count);
            report.bytes += u64::from(header.frame_bytes);
        }
    }
    match partition.segments().last() {
        Some(segment) if next != extent.end => Err(segment.gap(next, extent.end)),
        _ => Ok(()),
    }
}

fn follows(before: Progress, epoch: u64, first_seq: u64) -> bool {
    if epoch == before.epoch { first_seq == before.next_seq } else { epoch > before.epoch && first_seq == 0 }
}
