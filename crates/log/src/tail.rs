//! Tailing: reads partitions forward in bounded pieces and remembers the position in each.
//!
//! A [`Cursor`] is the position in one partition, for readers that choose the order of partitions
//! or that must not move before their own output is safe. A [`Tail`] is a set of cursors for
//! readers that take records as they come.
//!
//! Offsets have gaps on Kafka, where transactions end. So a reader goes on behind the last record
//! that it got, and where nothing is left before the end, it goes on at the end.

use std::sync::Arc;

use crate::{EventLog, Extent, LogError, StoredRecord, TopicPartition};

/// A reader's position in one partition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cursor {
    /// The partition.
    pub at: TopicPartition,
    /// Offset of the next record to read, or of a gap before it.
    pub next: u64,
    /// Where the partition ended when it was last [refreshed](Self::refresh).
    pub end: u64,
    /// Offset of the last record read; `None` before the first one.
    pub last: Option<u64>,
}

/// A piece of a partition, in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Piece {
    /// The records; none where only a gap was left before the end.
    pub records: Vec<StoredRecord>,
    /// Offset to go on from.
    pub next: u64,
}

impl Cursor {
    /// A position before the partition's first record.
    ///
    /// # Errors
    /// The partition does not exist, or the log cannot be reached.
    pub fn at_start(log: &dyn EventLog, at: TopicPartition) -> Result<Self, LogError> {
        let Extent { start, end } = log.extent(&at)?;
        Ok(Self { at, next: start, end, last: None })
    }

    /// Whether the partition ended behind this position when last looked.
    pub fn is_behind(&self) -> bool {
        self.next < self.end
    }

    /// Looks up where the partition ends now, and returns its extent. The position stays: if
    /// retention dropped the record there, the next read fails with
    /// [`LogError::OffsetOutOfRange`].
    ///
    /// # Errors
    /// The log cannot be reached.
    pub fn refresh(&mut self, log: &dyn EventLog) -> Result<Extent, LogError> {
        let extent = log.extent(&self.at)?;
        self.end = extent.end;
        Ok(extent)
    }

    /// As [`refresh`](Self::refresh), for readers that may miss records: skips what retention
    /// dropped.
    ///
    /// # Errors
    /// The log cannot be reached.
    pub fn refresh_or_skip(&mut self, log: &dyn EventLog) -> Result<(), LogError> {
        let extent = self.refresh(log)?;
        self.next = self.next.max(extent.start);
        Ok(())
    }

    /// Reads up to `max_bytes` of payload before the end last seen, without moving.
    ///
    /// # Errors
    /// As [`EventLog::read`].
    pub fn peek(&self, log: &dyn EventLog, max_bytes: usize) -> Result<Piece, LogError> {
        if !self.is_behind() {
            return Ok(Piece { records: Vec::new(), next: self.next });
        }
        let records = log.read(&self.at, self.next, max_bytes)?;
        // Before the end there may be no record at all: on Kafka, the ends of transactions.
        let next = records.last().map_or(self.end, |last| last.offset + 1);
        Ok(Piece { records, next })
    }

    /// Reads up to `max_bytes` of payload before the end last seen, and moves behind it.
    ///
    /// # Errors
    /// As [`EventLog::read`].
    pub fn read(&mut self, log: &dyn EventLog, max_bytes: usize) -> Result<Vec<StoredRecord>, LogError> {
        let Piece { records, next } = self.peek(log, max_bytes)?;
        self.next = next;
        self.last = records.last().map(|last| last.offset).or(self.last);
        Ok(records)
    }

    /// Reads up to `max_bytes` of payload, wherever the partition ends by now, and moves behind it.
    /// Empty at the end.
    ///
    /// # Errors
    /// As [`EventLog::read`].
    pub fn read_on(&mut self, log: &dyn EventLog, max_bytes: usize) -> Result<Vec<StoredRecord>, LogError> {
        let records = log.read(&self.at, self.next, max_bytes)?;
        if let Some(last) = records.last() {
            (self.next, self.last) = (last.offset + 1, Some(last.offset));
        }
        Ok(records)
    }
}

/// A reader of several partitions.
pub struct Tail {
    log: Arc<dyn EventLog>,
    cursors: Vec<Cursor>,
    max_bytes: usize,
}

impl std::fmt::Debug for Tail {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tail").field("cursors", &self.cursors).finish_non_exhaustive()
    }
}

impl Tail {
    /// Reads all partitions of `topics`, at most `max_bytes` of payload at a time, from the first
    /// record that is not older than `since_ms` (ms since the epoch); `None` is from the beginning.
    /// A topic that the log does not have yields nothing.
    ///
    /// # Errors
    /// The log cannot be reached.
    pub fn new(
        log: Arc<dyn EventLog>,
        topics: &[&str],
        since_ms: Option<i64>,
        max_bytes: usize,
    ) -> Result<Self, LogError> {
        let mut cursors = Vec::new();
        for (topic, config) in log.topics()? {
            if !topics.contains(&topic.as_str()) {
                continue;
            }
            for partition in 0..config.partitions {
                let at = TopicPartition { topic: topic.clone(), partition };
                cursors.push(match since_ms {
                    Some(since_ms) => {
                        let next = log.offset_for_time(&at, since_ms)?;
                        Cursor { at, next, end: next, last: None }
                    }
                    None => Cursor::at_start(log.as_ref(), at)?,
                });
            }
        }
        Ok(Self { log, cursors, max_bytes })
    }

    /// Goes on at these cursors in their partitions; others stay where they are.
    #[must_use]
    pub fn resumed(mut self, at: &[Cursor]) -> Self {
        for cursor in &mut self.cursors {
            if let Some(resumed) = at.iter().find(|resumed| resumed.at == cursor.at) {
                *cursor = resumed.clone();
            }
        }
        self
    }

    /// How far each partition was read.
    pub fn cursors(&self) -> &[Cursor] {
        &self.cursors
    }

    /// The log that is read.
    pub fn log(&self) -> &dyn EventLog {
        self.log.as_ref()
    }

    /// Passes on the records that came since the last call. After an error, the next call goes on
    /// with the rest.
    ///
    /// # Errors
    /// The log cannot be reached.
    pub fn poll(&mut self, mut take: impl FnMut(&StoredRecord)) -> Result<(), LogError> {
        for cursor in &mut self.cursors {
            cursor.refresh_or_skip(self.log.as_ref())?;
            while cursor.is_behind() {
                cursor.read(self.log.as_ref(), self.max_bytes)?.iter().for_each(&mut take);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Batch, EmbeddedLog, Producer, Record, TopicConfig};

    fn log_with(folder: &std::path::Path, topics: &[&str]) -> Arc<dyn EventLog> {
        let log = EmbeddedLog::open(folder, Default::default()).unwrap();
        for topic in topics {
            let config = TopicConfig { partitions: 2, retain_ms: None, retain_bytes: None };
            log.create_topic(topic, config).unwrap();
        }
        Arc::new(log)
    }

    /// Appends a batch of one record for each time, ms.
    fn append(log: &dyn EventLog, topic: &str, partition: u32, times_ms: &[i64]) {
        let at = TopicPartition { topic: topic.into(), partition };
        let first_seq = log.extent(&at).unwrap().end;
        for (seq, event_time_ms) in (first_seq..).zip(times_ms) {
            let payload = event_time_ms.to_string().into();
            let record = Record { key: "k".into(), schema: 1, event_time_ms: *event_time_ms, payload };
            let producer = Producer { source: "test".into(), epoch: 0 };
            log.append(&at, Batch { producer, first_seq: seq, records: vec![record] }).unwrap();
        }
    }

    fn poll(tail: &mut Tail) -> Vec<i64> {
        let mut times_ms = Vec::new();
        tail.poll(|stored| times_ms.push(stored.record.event_time_ms)).unwrap();
        times_ms
    }

    #[test]
    fn a_tail_passes_on_each_record_once() {
        let folder = tempfile::tempdir().unwrap();
        let log = log_with(folder.path(), &["a", "b", "c"]);
        append(log.as_ref(), "a", 0, &[10, 20, 30]);
        append(log.as_ref(), "a", 1, &[40]);
        append(log.as_ref(), "b", 0, &[50]);
        append(log.as_ref(), "c", 0, &[60]);
        // One byte at a time still yields a record at a time.
        let mut all = Tail::new(log.clone(), &["a", "b", "none"], None, 1).unwrap();
        let mut recent = Tail::new(log.clone(), &["a"], Some(20), 1 << 20).unwrap();
        assert_eq!(poll(&mut all), [10, 20, 30, 40, 50]);
        assert_eq!(poll(&mut recent), [20, 30, 40]);
        assert_eq!(poll(&mut all), [0_i64; 0]);
        append(log.as_ref(), "a", 1, &[70]);
        assert_eq!(poll(&mut all), [70]);
        assert_eq!(poll(&mut recent), [70]);
    }

    #[test]
    fn a_cursor_moves_only_as_it_reads() {
        let folder = tempfile::tempdir().unwrap();
        let log = log_with(folder.path(), &["a"]);
        append(log.as_ref(), "a", 0, &[10, 20]);
        let at = TopicPartition { topic: "a".into(), partition: 0 };
        let mut cursor = Cursor::at_start(log.as_ref(), at.clone()).unwrap();
        assert_eq!(cursor, Cursor { at, next: 0, end: 2, last: None });
        let piece = cursor.peek(log.as_ref(), 1 << 20).unwrap();
        assert_eq!((piece.records.len(), piece.next, cursor.next), (2, 2, 0));
        assert_eq!(cursor.read(log.as_ref(), 1 << 20).unwrap(), piece.records);
        append(log.as_ref(), "a", 0, &[30]);
        assert!(cursor.read(log.as_ref(), 1 << 20).unwrap().is_empty(), "the end is not looked up");
        assert_eq!(cursor.read_on(log.as_ref(), 1 << 20).unwrap().len(), 1);
        assert!(cursor.read_on(log.as_ref(), 1 << 20).unwrap().is_empty());
        assert_eq!(cursor.next, 3);
    }

    #[test]
    fn trimmed_records_are_skipped_only_on_request() {
        let folder = tempfile::tempdir().unwrap();
        let log = log_with(folder.path(), &["a"]);
        append(log.as_ref(), "a", 0, &[10, 20, 30]);
        let at = TopicPartition { topic: "a".into(), partition: 0 };
        let mut cursor = Cursor::at_start(log.as_ref(), at.clone()).unwrap();
        log.trim(&at, 2).unwrap();
        cursor.refresh(log.as_ref()).unwrap();
        let refused = cursor.peek(log.as_ref(), 1 << 20);
        assert!(matches!(refused, Err(LogError::OffsetOutOfRange { wanted: 0, start: 2, end: 3 })));
        cursor.refresh_or_skip(log.as_ref()).unwrap();
        assert_eq!(cursor.read(log.as_ref(), 1 << 20).unwrap()[0].offset, 2);
    }
}
