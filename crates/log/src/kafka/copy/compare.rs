//! Compares a partition on Kafka with the embedded one, offset by offset.

use std::collections::VecDeque;
use std::ops::Range;

use super::{CopyLease, CopyProgress, CopyStep, OnProgress, no_copy};
use crate::{EmbeddedLog, EventLog, LogError, Record, StoredRecord, TopicPartition};

/// Payload that is read at once, of each log.
const READ_BYTES: usize = 4 << 20;

/// Filler message: occupies offsets below the source's first one until it is removed.
pub(super) fn filler() -> Record {
    Record { key: Default::default(), schema: 0, event_time_ms: 1, payload: Default::default() }
}

/// Compares all offsets of the range: fillers below `start`, the source's records from there on.
pub(super) fn compare(
    from: &EmbeddedLog,
    lease: &CopyLease<'_>,
    at: &TopicPartition,
    offsets: Range<u64>,
    start: u64,
    on_progress: OnProgress<'_>,
) -> Result<(), LogError> {
    let (mut next, end) = (offsets.start, offsets.end);
    let (mut ours, mut theirs) = (VecDeque::<StoredRecord>::new(), VecDeque::<StoredRecord>::new());
    while next < end {
        if next >= start && ours.is_empty() {
            ours.extend(from.read(at, next, READ_BYTES)?);
        }
        if theirs.is_empty() {
            theirs.extend(lease.to.read(at, next, READ_BYTES)?);
            lease.check()?;
            on_progress(CopyProgress { step: CopyStep::Comparing, at: at.clone(), offset: next, end });
        }
        let expected =
            if next < start { Some(filler()) } else { ours.pop_front().map(|stored| stored.record) };
        let found = theirs.pop_front();
        match (expected, found) {
            (Some(expected), Some(found)) if found.offset == next && found.record == expected => next += 1,
            (_, Some(found)) if found.offset == next => {
                return Err(other(at, next, "it holds another record"));
            }
            _ => return Err(other(at, next, "it holds no record there")),
        }
    }
    Ok(())
}

fn other(at: &TopicPartition, offset: u64, what: &str) -> LogError {
    let mend = "delete the topics of this prefix and copy again, or copy to another prefix";
    no_copy(at, offset, format!("on Kafka {what}, so it is no copy of the embedded one; {mend}"))
}
