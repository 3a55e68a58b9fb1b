//! The signals service: reads the log through [`Reorder`], and appends each result once. It begins
//! at its newest snapshot, or at the beginning of the log.

mod poison;
mod saved;

use std::collections::{BTreeMap, HashSet};
use std::path::Path;
use std::sync::Arc;

use tidegate_events::{Event, SchemaId};
use tidegate_log::snapshot::Position;
use tidegate_log::tail::Cursor;
use tidegate_log::{Batch, EventLog, LogError, Producer, Record, TopicPartition, partition_for};

use crate::budget::{MemoryUse, Shares};
use crate::publication::Publication;
use crate::reorder::{Counts, Reorder};
use crate::time::{DAY_US, US_PER_S};
use crate::watch::Watch;
use saved::Snapshots;

/// Most payload bytes per read of a partition.
const READ_BYTES: usize = 4 << 20;
/// Memory that a waiting event takes, as a multiple of its payload. Events wait until every stream
/// has been read as far, so one read of each stream must fit into the budget.
const WAITING_FACTOR: usize = 32;
/// Fewest payload bytes per read.
const LEAST_READ_BYTES: usize = 64 << 10;
/// Forecasts learn from this much of the past, as far as the job table looks back.
const LEARNING_PERIOD_US: i64 = 42 * DAY_US;
/// Topics whose history may come in any order: an export is imported as its rows stand.
const HISTORY_TOPICS: [SchemaId; 3] = [SchemaId::JobEvent, SchemaId::NodeEvent, SchemaId::CapacityEvent];
/// Topics of high volume that are written as things happen.
const STREAM_TOPICS: [SchemaId; 2] = [SchemaId::StepReport, SchemaId::GpuSampleBatch];
/// Topics that the service writes.
const OUTPUT_TOPICS: [SchemaId; 2] = [SchemaId::StragglerSignal, SchemaId::Forecast];

/// How far the watermark stays behind the newest event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RunMode {
    /// The log is complete: 2 s, so that all ranks have reported the last step.
    Replay,
    /// The log grows: 20 s, because agents send what they read in batches of ten seconds. Step
    /// reports are processed up to that far ahead of the watermark.
    Live,
}

impl RunMode {
    pub(crate) fn lag_us(self) -> i64 {
        match self {
            Self::Replay => 2 * US_PER_S,
            Self::Live => 20 * US_PER_S,
        }
    }
}

/// Totals since the service was opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ServiceStats {
    /// Records read.
    pub read: u64,
    /// Signals, curves, forecasts and advice appended.
    pub written: u64,
    /// Outputs that the log held already, from an earlier run or another process.
    pub duplicates: u64,
    /// Records skipped because earlier lives died of them.
    pub poison: u64,
    /// Payloads that no schema decodes; the tables show them as dead letters.
    pub undecodable: u64,
    /// Events by outcome.
    pub counts: Counts,
    /// Snapshots saved.
    pub saved: u64,
    /// Memory of the state, and what was left out for its sake.
    pub memory: MemoryUse,
}

/// A partition being read. The partition with the oldest events goes on first, so the order of
/// reading is not that of a plain `tail::Tail`.
struct Reading {
    cursor: Cursor,
    /// Newest event time read, µs since 1970.
    newest_us: i64,
}

/// Reads a log and appends the signals, forecasts and advice that follow from it.
pub struct SignalService {
    log: Arc<dyn EventLog>,
    reorder: Reorder,
    history: Vec<Reading>,
    streams: Vec<Reading>,
    partitions: BTreeMap<String, u32>,
    /// Producer names of the outputs that the log holds, as far as they were read or written since
    /// the snapshot before the last. The log itself drops what is derived again from before.
    known_sources: HashSet<String>,
    /// Names that were known when the last snapshot was saved.
    older_sources: HashSet<String>,
    newest_us: i64,
    has_begun: bool,
    snapshots: Option<Snapshots>,
    watch: Watch,
    stats: ServiceStats,
}

impl std::fmt::Debug for SignalService {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SignalService").field("stats", &self.stats).finish_non_exhaustive()
    }
}

impl SignalService {
    /// Opens a service that begins at the beginning of the log and saves no snapshots.
    ///
    /// # Errors
    /// The log's.
    pub fn new(log: Arc<dyn EventLog>) -> Result<Self, LogError> {
        let mut service = Self::empty(log);
        service.refresh_extents()?;
        service.read_known_sources(&BTreeMap::new())?;
        Ok(service)
    }

    /// Opens a service that begins at the newest good snapshot in `folder` and saves its state
    /// there every ten minutes. `group` says on the log how far it has come, so that retention
    /// keeps what the snapshots do not hold.
    ///
    /// # Errors
    /// The log's. A snapshot that cannot be used is logged and skipped.
    pub fn with_snapshots(log: Arc<dyn EventLog>, folder: &Path, group: &str) -> Result<Self, LogError> {
        let mut service = Self::empty(log);
        service.refresh_extents()?;
        service.restore(folder, group)?;
        Ok(service)
    }

    /// Limits the memory of jobs, nodes and waiting events to `bytes` instead of
    /// [`DEFAULT_LIMIT_BYTES`](crate::DEFAULT_LIMIT_BYTES).
    #[must_use]
    pub fn limited_to(mut self, bytes: usize) -> Self {
        self.reorder.limit_memory(bytes);
        self
    }

    fn empty(log: Arc<dyn EventLog>) -> Self {
        Self {
            log,
            reorder: Reorder::new(i64::MIN),
            history: Vec::new(),
            streams: Vec::new(),
            partitions: BTreeMap::new(),
            known_sources: HashSet::new(),
            older_sources: HashSet::new(),
            newest_us: i64::MIN,
            has_begun: false,
            snapshots: None,
            watch: Watch::default(),
            stats: ServiceStats::default(),
        }
    }

    /// Reads to the present end of the log, and appends what follows. `now_ms`: the caller's clock,
    /// against which events of the future are rejected.
    ///
    /// # Errors
    /// The log's. After one, open a new service: outputs that were not appended are derived again.
    pub fn catch_up(&mut self, mode: RunMode, now_ms: i64) -> Result<ServiceStats, LogError> {
        self.refresh_extents()?;
        // The whole history of jobs and nodes is buffered before anything is decided on it, as far
        // as memory allows. The oldest partition goes on first, so that they stay side by side.
        while let Some((at, _)) = oldest_unread(&self.history) {
            self.read(false, at, now_ms)?;
            while self.reorder.is_full() {
                self.make_room(now_ms)?;
            }
        }
        self.begin();
        // Of the streams, the partition with the oldest events goes on first.
        while let Some((at, _)) = oldest_unread(&self.streams) {
            self.read(true, at, now_ms)?;
            if let Some((_, watermark_us)) = oldest_unread(&self.streams) {
                self.advance(watermark_us.saturating_sub(RunMode::Live.lag_us()))?;
            }
            self.save_if_due(now_ms)?;
        }
        if self.newest_us > i64::MIN {
            self.advance(self.newest_us.saturating_sub(RunMode::Live.lag_us()))?;
        }
        match mode {
            RunMode::Live => self.save_if_due(now_ms)?,
            // What is decided from here on would come later in a live run.
            RunMode::Replay => self.save(now_ms)?,
        }
        if self.newest_us > i64::MIN {
            self.advance(self.newest_us.saturating_sub(mode.lag_us()))?;
        }
        self.stats.counts = self.reorder.counts();
        self.stats.memory = self.reorder.memory();
        Ok(self.stats)
    }

    /// Sets what forecasts learn from, before the first event is applied.
    fn begin(&mut self) {
        if !self.has_begun && self.newest_us > i64::MIN {
            self.reorder.learn_from(self.newest_us.saturating_sub(LEARNING_PERIOD_US));
            self.has_begun = true;
        }
    }

    /// Applies the oldest events though not all is read, because there is no memory for more. The
    /// streams are read as far first: their events would be late.
    fn make_room(&mut self, now_ms: i64) -> Result<(), LogError> {
        self.begin();
        let oldest = oldest_unread(&self.streams);
        let until_us = oldest.map_or(i64::MAX, |(_, us)| us.saturating_sub(RunMode::Live.lag_us()));
        self.reorder.make_room(until_us, self.newest_us);
        self.publish_all()?;
        if let Some((at, _)) = oldest.filter(|_| self.reorder.is_full()) {
            self.read(true, at, now_ms)?;
        }
        self.save_if_due(now_ms)
    }

    fn advance(&mut self, watermark_us: i64) -> Result<(), LogError> {
        self.reorder.advance(watermark_us);
        self.publish_all()
    }

    fn publish_all(&mut self) -> Result<(), LogError> {
        for publication in self.reorder.take() {
            self.publish(publication)?;
        }
        Ok(())
    }

    /// Reads one piece of a partition.
    fn read(&mut self, is_stream: bool, place: usize, now_ms: i64) -> Result<(), LogError> {
        let shares = Shares::of(self.reorder.memory().limit_bytes);
        let room = if is_stream { shares.streams / self.streams.len().max(1) } else { shares.history };
        let bytes = (room / WAITING_FACTOR).clamp(LEAST_READ_BYTES, READ_BYTES);
        let reading = if is_stream { &mut self.streams[place] } else { &mut self.history[place] };
        let records = reading.cursor.read(self.log.as_ref(), bytes)?;
        let (at, mut newest_us) = (reading.cursor.at.clone(), reading.newest_us);
        for stored in &records {
            self.stats.read += 1;
            let Some(event) = self.decode(&at, stored)? else { continue };
            if let Some(at_us) = self.reorder.push(event, now_ms) {
                newest_us = newest_us.max(at_us);
            }
        }
        self.watch.leave();
        self.newest_us = self.newest_us.max(newest_us);
        let reading = if is_stream { &mut self.streams[place] } else { &mut self.history[place] };
        reading.newest_us = newest_us;
        Ok(())
    }

    /// Looks up where partitions end; new ones are read from their first record.
    fn refresh_extents(&mut self) -> Result<(), LogError> {
        for (topic, config) in self.log.topics()? {
            self.partitions.insert(topic.clone(), config.partitions);
            let of = |schemas: &[SchemaId]| schemas.iter().any(|schema| schema.topic() == topic);
            let readings = match (of(&HISTORY_TOPICS), of(&STREAM_TOPICS)) {
                (true, _) => &mut self.history,
                (_, true) => &mut self.streams,
                _ => continue,
            };
            for partition in 0..config.partitions {
                let at = TopicPartition { topic: topic.clone(), partition };
                match readings.iter_mut().find(|reading| reading.cursor.at == at) {
                    Some(reading) => reading.cursor.refresh_or_skip(self.log.as_ref())?,
                    None => {
                        let cursor = Cursor::at_start(self.log.as_ref(), at)?;
                        readings.push(Reading::new(cursor));
                    }
                }
            }
        }
        Ok(())
    }

    /// Notes the outputs of earlier runs that stand after `from`.
    fn read_known_sources(&mut self, from: &BTreeMap<TopicPartition, Position>) -> Result<(), LogError> {
        for topic in OUTPUT_TOPICS.map(SchemaId::topic) {
            for partition in 0..self.partitions.get(topic).copied().unwrap_or(0) {
                let at = TopicPartition { topic: topic.into(), partition };
                let mut cursor = match from.get(&at) {
                    Some(position) => position.cursor(),
                    None => Cursor::at_start(self.log.as_ref(), at)?,
                };
                cursor.refresh_or_skip(self.log.as_ref())?;
                while cursor.is_behind() {
                    for stored in &cursor.read(self.log.as_ref(), READ_BYTES)? {
                        let event = Event::decode(stored.record.schema, &stored.record.payload);
                        let source = event.ok().and_then(|mut event| {
                            Some(std::mem::take(&mut event.envelope_mut().source)).filter(|s| !s.is_empty())
                        });
                        self.known_sources.extend(source);
                    }
                }
            }
        }
        Ok(())
    }

    fn publish(&mut self, publication: Publication) -> Result<(), LogError> {
        let Publication { source, events } = publication;
        let Some(first) = events.first() else { return Ok(()) };
        let count = events.len() as u64;
        let (topic, key) = (first.schema().topic(), first.key());
        if self.older_sources.contains(&source) || !self.known_sources.insert(source.clone()) {
            self.stats.duplicates += count;
            return Ok(());
        }
        let partitions = self.partitions.get(topic).copied();
        let partitions = partitions.ok_or_else(|| LogError::UnknownTopic(topic.into()))?;
        let at = TopicPartition { topic: topic.into(), partition: partition_for(key.as_bytes(), partitions) };
        let record = |mut event: Event| event.record().ok().map(Record::from);
        let records: Vec<Record> = events.into_iter().filter_map(record).collect();
        let batch = Batch { producer: Producer { source, epoch: 0 }, first_seq: 0, records };
        let appended = self.log.append(&at, batch)?;
        self.stats.written += appended.written;
        self.stats.duplicates += appended.duplicates;
        Ok(())
    }
}

/// Of the partitions that are not read to their end, the one that has come least far, and its
/// newest time, µs since 1970.
fn oldest_unread(readings: &[Reading]) -> Option<(usize, i64)> {
    let unread = readings.iter().enumerate().filter(|(_, reading)| reading.cursor.is_behind());
    unread.map(|(at, reading)| (at, reading.newest_us)).min_by_key(|(_, newest_us)| *newest_us)
}

#[cfg(test)]
mod tests;
