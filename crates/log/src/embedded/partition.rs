//! One partition: the state that readers share, and that of its only writer, the committer.

use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex, PoisonError, RwLock};
use std::time::Duration;

use super::frame::BatchHeader;
use super::segment::{Segment, Totals};
use super::store::Store;
use super::witness::Witness;
use crate::check::{Progress, check_offset, lock};
use crate::{Extent, LogError, StoredRecord, TopicPartition};

pub(super) struct Partition {
    pub at: TopicPartition,
    pub writer: Mutex<Writer>,
    extent: Mutex<Extent>,
    grown: Condvar,
    /// By base offset. All but the last are sealed.
    segments: RwLock<Vec<Arc<Segment>>>,
    /// The batch that the last read did not finish, so that small reads in sequence decode it once.
    decoded: Mutex<Option<Arc<Vec<StoredRecord>>>>,
}

/// The committer's state of a partition. Within one commit it is ahead of the store.
pub(super) struct Writer {
    /// The last segment, to which batches are appended; `None` until the first append.
    pub active: Option<Arc<Segment>>,
    pub totals: Totals,
    pub producers: HashMap<String, Progress>,
    pub witness: Witness,
}

impl Partition {
    pub fn new(at: TopicPartition, extent: Extent, segments: Vec<Arc<Segment>>, writer: Writer) -> Self {
        Self {
            at,
            writer: Mutex::new(writer),
            extent: Mutex::new(extent),
            grown: Condvar::new(),
            segments: RwLock::new(segments),
            decoded: Mutex::new(None),
        }
    }

    pub fn extent(&self) -> Extent {
        *lock(&self.extent)
    }

    pub fn segments(&self) -> Vec<Arc<Segment>> {
        self.segments.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub fn add_segment(&self, segment: Arc<Segment>) {
        self.segments.write().unwrap_or_else(PoisonError::into_inner).push(segment);
    }

    /// Makes records up to `end` readable; they are durable.
    pub fn publish(&self, end: u64) {
        lock(&self.extent).end = end;
        self.grown.notify_all();
    }

    pub fn wait_for(&self, offset: u64, timeout: Duration) -> bool {
        let waiting =
            self.grown.wait_timeout_while(lock(&self.extent), timeout, |extent| extent.end <= offset);
        waiting.unwrap_or_else(PoisonError::into_inner).0.end > offset
    }

    /// Records from `from` on until `max_bytes` of payload, at least one.
    pub fn read(&self, from: u64, max_bytes: usize) -> Result<Vec<StoredRecord>, LogError> {
        let extent = self.extent();
        check_offset(from, extent)?;
        let mut buffer = ReadBuffer { records: Vec::new(), next: from, bytes: 0, max_bytes };
        if let Some(batch) = lock(&self.decoded).clone()
            && !buffer.take(&batch)
        {
            return Ok(buffer.records);
        }
        for segment in self.segments_from(buffer.next) {
            if buffer.next >= extent.end {
                break;
            }
            let Some(first) = segment.batch_at(buffer.next)? else {
                return self.lost(buffer.next, &segment);
            };
            for batch in segment.batches(first.base) {
                let (header, batch) = batch?;
                if header.base >= extent.end {
                    break;
                }
                if header.base > buffer.next {
                    return Err(segment.gap(buffer.next, header.base));
                }
                if !buffer.take(&batch.records) {
                    *lock(&self.decoded) = Some(Arc::new(batch.records));
                    return Ok(buffer.records);
                }
            }
        }
        if buffer.next < extent.end && self.extent().start <= from {
            return Err(
                self.corrupt(buffer.next, format!("records are missing up to the end {}", extent.end))
            );
        }
        Ok(buffer.records)
    }

    /// A missing batch was dropped by a trim in the meantime, or is lost.
    fn lost(&self, offset: u64, segment: &Segment) -> Result<Vec<StoredRecord>, LogError> {
        check_offset(offset, self.extent())?;
        Err(segment.corrupt(offset, "the batch that holds this offset is missing"))
    }

    fn corrupt(&self, offset: u64, what: String) -> LogError {
        let TopicPartition { topic, partition } = self.at.clone();
        LogError::Corrupt { topic, partition, offset, what }
    }

    /// The segment that holds `offset` and those after it.
    pub fn segments_from(&self, offset: u64) -> Vec<Arc<Segment>> {
        let segments = self.segments.read().unwrap_or_else(PoisonError::into_inner);
        let first = segments.partition_point(|segment| segment.base <= offset).saturating_sub(1);
        segments[first..].to_vec()
    }

    /// The first record that is not older than `event_time_ms`; the end if there is none.
    ///
    /// Skips whole segments by their newest event time, then reads the keys of one segment, then
    /// one batch.
    pub fn offset_for_time(&self, event_time_ms: i64) -> Result<u64, LogError> {
        let extent = self.extent();
        for header in self.headers_where(extent, |totals| totals.max_time_ms >= event_time_ms) {
            let (segment, header) = header?;
            if header.max_time_ms < event_time_ms {
                continue;
            }
            let Some(batch) = segment.batches(header.base).next() else { break };
            let found = batch?.1.records.into_iter().find(|r| r.record.event_time_ms >= event_time_ms);
            return found.map(|r| r.offset).ok_or_else(|| {
                segment.corrupt(header.base, "the batch holds no record of the time its key says")
            });
        }
        Ok(extent.end)
    }

    /// Headers of the readable batches, in order, leaving out sealed segments whose totals are of
    /// no interest.
    fn headers_where(
        &self,
        extent: Extent,
        wanted: impl Fn(&Totals) -> bool,
    ) -> impl Iterator<Item = Result<(Arc<Segment>, BatchHeader), LogError>> {
        let segments = self.segments_from(extent.start);
        let last = segments.len().saturating_sub(1);
        let headers = segments.into_iter().enumerate().flat_map(move |(i, segment)| {
            let skip =
                if i < last { segment.sealed_totals().map(|totals| !wanted(&totals)) } else { Ok(false) };
            let headers: Box<dyn Iterator<Item = _>> = match skip {
                Ok(true) => Box::new(std::iter::empty()),
                Ok(false) => {
                    let holder = segment.clone();
                    Box::new(segment.headers(extent.start).map(move |header| Ok((holder.clone(), header?))))
                }
                Err(e) => Box::new(std::iter::once(Err(e))),
            };
            headers
        });
        headers.take_while(move |header| header.as_ref().map_or(true, |(_, header)| header.base < extent.end))
    }

    /// The start of the batch that holds `before`: what a trim to there leaves readable.
    pub fn batch_start(&self, before: u64) -> Result<u64, LogError> {
        let extent = self.extent();
        if before <= extent.start || before >= extent.end {
            return Ok(before.clamp(extent.start, extent.end));
        }
        let Some(segment) = self.segments_from(before).into_iter().next() else { return Ok(extent.start) };
        let header = segment.batch_at(before)?;
        header
            .map(|header| header.base)
            .ok_or_else(|| segment.corrupt(before, "the batch that holds this offset is missing"))
    }

    /// Up to where retention may drop records: batches below `aged`, then the oldest beyond
    /// `max_bytes`, none that reaches past `passed`.
    pub fn expired(&self, aged: u64, max_bytes: Option<u64>, passed: u64) -> Result<u64, LogError> {
        let extent = self.extent();
        let mut over_bytes = match max_bytes {
            Some(max_bytes) => self.bytes(extent)?.saturating_sub(max_bytes),
            None => 0,
        };
        let mut start = extent.start;
        for header in self.headers_where(extent, |_| true) {
            let (_, header) = header?;
            if header.end() > passed || !(header.end() <= aged || over_bytes > 0) {
                break;
            }
            over_bytes = over_bytes.saturating_sub(header.frame_bytes.into());
            start = header.end();
        }
        Ok(start)
    }

    fn bytes(&self, extent: Extent) -> Result<u64, LogError> {
        self.headers_where(extent, |_| true).map(|header| Ok(u64::from(header?.1.frame_bytes))).sum()
    }

    /// Moves the start, which is stored already, and drops the segments wholly below it.
    pub fn drop_before(&self, store: &Store, start: u64) {
        lock(&self.extent).start = start;
        *lock(&self.decoded) = None;
        let dropped: Vec<_> = {
            let mut segments = self.segments.write().unwrap_or_else(PoisonError::into_inner);
            let keep_from = segments.partition_point(|s| s.base <= start).saturating_sub(1);
            segments.drain(..keep_from).collect()
        };
        for segment in dropped {
            if let Err(e) = store.delete_segment(&segment.keyspace) {
                // The trim holds all the same; the next opening of the log deletes what lies below
                // the start.
                tracing::warn!(
                    topic = self.at.topic,
                    partition = self.at.partition,
                    "space is not given back yet: {e}"
                );
            }
        }
    }
}

/// A read in progress.
struct ReadBuffer {
    records: Vec<StoredRecord>,
    next: u64,
    bytes: usize,
    max_bytes: usize,
}

impl ReadBuffer {
    /// Takes the records from `next` on out of a batch. Returns whether there is room for more.
    fn take(&mut self, batch: &[StoredRecord]) -> bool {
        let Some(skip) = batch.first().and_then(|first| self.next.checked_sub(first.offset)) else {
            return true;
        };
        self.records.reserve(batch.len());
        for stored in batch.iter().skip(usize::try_from(skip).unwrap_or(usize::MAX)) {
            let bytes = self.bytes.saturating_add(stored.record.payload.len());
            if bytes > self.max_bytes && !self.records.is_empty() {
                return false;
            }
            self.bytes = bytes;
            self.next = stored.offset + 1;
            self.records.push(stored.clone());
        }
        true
    }
}
