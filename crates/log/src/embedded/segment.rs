//! A segment: the batches of one partition from a base offset on, in a keyspace of its own.
//!
//! Retention drops whole keyspaces, which gives their space back at once instead of leaving
//! deletion marks to compaction.

use std::sync::{Arc, OnceLock};

use fjall::{Guard, Keyspace};

use super::frame::{BadFrame, BatchHeader, KEY_BYTES, StoredBatch, VERSION, decode};
use super::store::{Store, damage_or_io};
use crate::{LogError, TopicPartition};

pub(super) struct Segment {
    pub base: u64,
    pub keyspace: Keyspace,
    at: TopicPartition,
    /// Known once the segment is sealed.
    totals: OnceLock<Totals>,
}

/// What a segment holds altogether.
#[derive(Debug, Clone, Copy)]
pub(super) struct Totals {
    pub end: u64,
    pub batches: u64,
    pub bytes: u64,
    pub max_time_ms: i64,
}

impl Totals {
    pub fn empty(base: u64) -> Self {
        Self { end: base, batches: 0, bytes: 0, max_time_ms: i64::MIN }
    }

    pub fn add(&mut self, header: &BatchHeader) {
        self.end = header.end();
        self.batches += 1;
        self.bytes += u64::from(header.frame_bytes);
        self.max_time_ms = self.max_time_ms.max(header.max_time_ms);
    }
}

const KEYSPACE_PREFIX: &str = "records/";

/// Parses a segment's keyspace name; `None` for other keyspaces.
pub(super) fn parse_name(name: &str) -> Option<(TopicPartition, u64)> {
    let mut parts = name.strip_prefix(KEYSPACE_PREFIX)?.split('/');
    let topic = parts.next()?.to_string();
    let partition = parts.next()?.parse().ok()?;
    let base = parts.next()?.parse().ok()?;
    Some((TopicPartition { topic, partition }, base))
}

impl Segment {
    pub fn open(store: &Store, at: &TopicPartition, base: u64) -> Result<Self, LogError> {
        let name = format!("{KEYSPACE_PREFIX}{}/{:010}/{base:020}", at.topic, at.partition);
        let keyspace = store.segment_keyspace(&name)?;
        Ok(Self { base, keyspace, at: at.clone(), totals: OnceLock::new() })
    }

    /// The header of the batch that holds `offset`, if the segment has it.
    pub fn batch_at(&self, offset: u64) -> Result<Option<BatchHeader>, LogError> {
        let found = self.keyspace.range(lower(self.base)..=upper(offset)).next_back();
        let header = found.map(|entry| self.header(entry, offset)).transpose()?;
        Ok(header.filter(|header| offset < header.end()))
    }

    /// The last batch's header.
    pub fn last(&self) -> Result<Option<BatchHeader>, LogError> {
        self.keyspace.last_key_value().map(|entry| self.header(entry, self.base)).transpose()
    }

    /// Headers of the batches with a base offset of at least `from`, in order. Reads keys, not the
    /// large frames.
    pub fn headers(
        self: &Arc<Self>,
        from: u64,
    ) -> impl Iterator<Item = Result<BatchHeader, LogError>> + use<> {
        let segment = self.clone();
        self.keyspace.range(lower(from)..).map(move |entry| segment.header(entry, from))
    }

    /// Batches from the one that begins at `from` on, in order.
    pub fn batches(&self, from: u64) -> impl Iterator<Item = Result<(BatchHeader, StoredBatch), LogError>> {
        self.keyspace.range(lower(from)..).map(move |entry| {
            let (key, frame) = entry.into_inner().map_err(|e| self.read_error(from, e))?;
            let header = self.parse_key(&key, from)?;
            let batch = decode(&header, &frame).map_err(|bad| match bad {
                BadFrame::Newer(found) => LogError::NewerFormat {
                    place: format!(
                        "topic {} partition {} offset {}",
                        self.at.topic, self.at.partition, header.base
                    ),
                    found: found.into(),
                    supported: VERSION.into(),
                },
                BadFrame::Corrupt(what) => self.corrupt(header.base, what),
            })?;
            Ok((header, batch))
        })
    }

    /// Counts the segment's batches and checks that there is no gap between them.
    pub fn scan(self: &Arc<Self>) -> Result<Totals, LogError> {
        let mut totals = Totals::empty(self.base);
        for header in self.headers(self.base) {
            let header = header?;
            if header.base != totals.end {
                return Err(self.gap(totals.end, header.base));
            }
            totals.add(&header);
        }
        Ok(totals)
    }

    /// Seals the segment: no batch follows, and these are its totals.
    pub fn seal(&self, totals: Totals) {
        self.totals.get_or_init(|| totals);
    }

    /// Totals of a sealed segment; scanned once if it was sealed in an earlier run.
    pub fn sealed_totals(self: &Arc<Self>) -> Result<Totals, LogError> {
        if let Some(totals) = self.totals.get() {
            return Ok(*totals);
        }
        let totals = self.scan()?;
        Ok(*self.totals.get_or_init(|| totals))
    }

    pub fn gap(&self, expected: u64, found: u64) -> LogError {
        self.corrupt(expected, format!("the next stored batch begins at {found}"))
    }

    pub fn corrupt(&self, offset: u64, what: impl Into<String>) -> LogError {
        let TopicPartition { topic, partition } = self.at.clone();
        LogError::Corrupt { topic, partition, offset, what: what.into() }
    }

    fn header(&self, entry: Guard, near: u64) -> Result<BatchHeader, LogError> {
        let key = entry.key().map_err(|e| self.read_error(near, e))?;
        self.parse_key(&key, near)
    }

    fn parse_key(&self, key: &[u8], near: u64) -> Result<BatchHeader, LogError> {
        BatchHeader::from_key(key).ok_or_else(|| self.corrupt(near, "a batch's key is malformed"))
    }

    fn read_error(&self, near: u64, source: fjall::Error) -> LogError {
        match damage_or_io(source) {
            Ok(io) => {
                let TopicPartition { topic, partition } = &self.at;
                let what = format!("reading topic {topic} partition {partition} at or after offset {near}");
                LogError::Io { what, source: Arc::new(io) }
            }
            Err(damage) => self.corrupt(near, format!("reading at or after this offset: {damage}")),
        }
    }
}

fn lower(offset: u64) -> [u8; KEY_BYTES] {
    let mut key = [0; KEY_BYTES];
    key[..8].copy_from_slice(&offset.to_be_bytes());
    key
}

fn upper(offset: u64) -> [u8; KEY_BYTES] {
    let mut key = [0xff; KEY_BYTES];
    key[..8].copy_from_slice(&offset.to_be_bytes());
    key
}
