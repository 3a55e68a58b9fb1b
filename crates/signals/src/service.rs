//! The signals service: reads the log from its beginning through [`Reorder`], and appends each
//! result once.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use tidegate_events::{Event, SchemaId};
use tidegate_log::tail::Cursor;
use tidegate_log::{Batch, EventLog, LogError, Producer, Record, TopicPartition, partition_for};

use crate::publication::Publication;
use crate::reorder::{Counts, Reorder};
use crate::time::{DAY_US, US_PER_S};

/// Payload bytes per read of a partition.
const READ_BYTES: usize = 4 << 20;
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
    /// Payloads that no schema decodes; the tables show them as dead letters.
    pub undecodable: u64,
    /// Events by outcome.
    pub counts: Counts,
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
    /// Producer names of the outputs that the log holds.
    known_sources: HashSet<String>,
    newest_us: i64,
    has_begun: bool,
    stats: ServiceStats,
}

impl std::fmt::Debug for SignalService {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SignalService").field("stats", &self.stats).finish_non_exhaustive()
    }
}

impl SignalService {
    /// Opens a service that has read its own earlier outputs, and nothing else yet.
    ///
    /// # Errors
    /// The log's.
    pub fn new(log: Arc<dyn EventLog>) -> Result<Self, LogError> {
        let mut service = Self {
            log,
            reorder: Reorder::new(i64::MIN),
            history: Vec::new(),
            streams: Vec::new(),
            partitions: BTreeMap::new(),
            known_sources: HashSet::new(),
            newest_us: i64::MIN,
            has_begun: false,
            stats: ServiceStats::default(),
        };
        service.read_known_sources()?;
        Ok(service)
    }

    /// Reads to the present end of the log, and appends what follows. `now_ms`: the caller's clock,
    /// against which events of the future are rejected.
    ///
    /// # Errors
    /// The log's. After one, open a new service: outputs that were not appended are derived again.
    pub fn catch_up(&mut self, mode: RunMode, now_ms: i64) -> Result<ServiceStats, LogError> {
        self.refresh_extents()?;
        // The whole history of jobs and nodes is buffered before anything is decided on it.
        for at in 0..self.history.len() {
            while self.read(false, at, now_ms)? {}
        }
        if !self.has_begun && self.newest_us > i64::MIN {
            self.reorder.learn_from(self.newest_us.saturating_sub(LEARNING_PERIOD_US));
            self.has_begun = true;
        }
        // Of the streams, the partition with the oldest events goes on first.
        while let Some((at, _)) = self.unread().min_by_key(|(_, newest_us)| *newest_us) {
            self.read(true, at, now_ms)?;
            if let Some(watermark_us) = self.unread().map(|(_, newest_us)| newest_us).min() {
                self.advance(watermark_us.saturating_sub(RunMode::Live.lag_us()))?;
            }
        }
        if self.newest_us > i64::MIN {
            self.advance(self.newest_us.saturating_sub(mode.lag_us()))?;
        }
        self.stats.counts = self.reorder.counts();
        Ok(self.stats)
    }

    /// Stream partitions that are not read to their end, with the newest time read.
    fn unread(&self) -> impl Iterator<Item = (usize, i64)> + '_ {
        let unread = self.streams.iter().enumerate().filter(|(_, reading)| reading.cursor.is_behind());
        unread.map(|(at, reading)| (at, reading.newest_us))
    }

    fn advance(&mut self, watermark_us: i64) -> Result<(), LogError> {
        self.reorder.advance(watermark_us);
        for publication in self.reorder.take() {
            self.publish(publication)?;
        }
        Ok(())
    }

    /// Reads one piece of a partition. Returns whether more is left.
    fn read(&mut self, is_stream: bool, at: usize, now_ms: i64) -> Result<bool, LogError> {
        let reading = if is_stream { &mut self.streams[at] } else { &mut self.history[at] };
        for stored in &reading.cursor.read(self.log.as_ref(), READ_BYTES)? {
            self.stats.read += 1;
            match Event::decode(stored.record.schema, &stored.record.payload) {
                Ok(event) => {
                    if let Some(at_us) = self.reorder.push(event, now_ms) {
                        reading.newest_us = reading.newest_us.max(at_us);
                        self.newest_us = self.newest_us.max(at_us);
                    }
                }
                Err(_) => self.stats.undecodable += 1,
            }
        }
        Ok(reading.cursor.is_behind())
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
                        readings.push(Reading { cursor, newest_us: i64::MIN });
                    }
                }
            }
        }
        Ok(())
    }

    /// Notes the outputs of earlier runs.
    fn read_known_sources(&mut self) -> Result<(), LogError> {
        self.refresh_extents()?;
        for topic in OUTPUT_TOPICS.map(SchemaId::topic) {
            for partition in 0..self.partitions.get(topic).copied().unwrap_or(0) {
                let at = TopicPartition { topic: topic.into(), partition };
                let mut cursor = Cursor::at_start(self.log.as_ref(), at)?;
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
        if !self.known_sources.insert(source.clone()) {
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

#[cfg(test)]
mod tests {
    use tidegate_events::v1;
    use tidegate_log::{EmbeddedLog, EmbeddedOptions, TopicConfig};

    use super::*;

    const HOUR_MS: i64 = 3_600_000;

    fn log_with_jobs(folder: &std::path::Path) -> Arc<dyn EventLog> {
        let log = EmbeddedLog::open(folder, EmbeddedOptions::default()).unwrap();
        for schema in [SchemaId::JobEvent, SchemaId::StragglerSignal, SchemaId::Forecast] {
            let config = TopicConfig { partitions: 2, retain_ms: None, retain_bytes: None };
            log.create_topic(schema.topic(), config).unwrap();
        }
        // Exports come in any order; here the last job comes first.
        for hour in (1..40).rev() {
            let mut event = Event::Job(v1::JobEvent {
                envelope: Some(v1::Envelope {
                    cluster: "c".into(),
                    event_time_ms: hour * HOUR_MS,
                    ..v1::Envelope::default()
                }),
                kind: v1::JobEventKind::Submitted.into(),
                job_id: format!("j{hour}"),
                gpus_milli: Some(1_000),
                ..v1::JobEvent::default()
            });
            let at =
                TopicPartition { topic: SchemaId::JobEvent.topic().into(), partition: (hour % 2) as u32 };
            let producer = Producer { source: format!("test#{hour}"), epoch: 0 };
            let records = vec![event.record().unwrap().into()];
            log.append(&at, Batch { producer, first_seq: 0, records }).unwrap();
        }
        Arc::new(log)
    }

    fn records(log: &dyn EventLog) -> u64 {
        let end = |partition| {
            let at = TopicPartition { topic: SchemaId::Forecast.topic().into(), partition };
            log.extent(&at).unwrap().end
        };
        end(0) + end(1)
    }

    #[test]
    fn outputs_are_appended_once_across_runs() {
        let folder = tempfile::tempdir().unwrap();
        let log = log_with_jobs(folder.path());
        let catch_up = |forget: bool| {
            let mut service = SignalService::new(Arc::clone(&log)).unwrap();
            if forget {
                service.known_sources.clear();
            }
            service.catch_up(RunMode::Replay, 100 * HOUR_MS).unwrap()
        };
        let first = catch_up(false);
        // The first hour is 1, and 24 hours are over at 25: the total and the class of one GPU are
        // forecast at 30 and 36.
        assert_eq!((first.written, first.duplicates, first.read), (2 * 2 * 16, 0, 39));
        assert_eq!(records(log.as_ref()), 64);
        let input = catch_up(false);
        assert_eq!((input.written, input.duplicates), (0, 64));
        // Another process appended the same meanwhile; the log drops the duplicates.
        let beside = catch_up(true);
        assert_eq!((beside.written, beside.duplicates), (0, 64));
        assert_eq!(records(log.as_ref()), 64);
    }

    fn append(log: &dyn EventLog, mut event: Event, source: &str) {
        let at = TopicPartition { topic: event.schema().topic().into(), partition: 0 };
        let producer = Producer { source: source.into(), epoch: 0 };
        let records = vec![event.record().unwrap().into()];
        log.append(&at, Batch { producer, first_seq: 0, records }).unwrap();
    }

    fn advice(log: &dyn EventLog) -> Vec<v1::SizingAdvice> {
        let read = |partition| {
            let at = TopicPartition { topic: SchemaId::SizingAdvice.topic().into(), partition };
            log.read(&at, 0, 1 << 20).unwrap()
        };
        let events = (0..2)
            .flat_map(read)
            .map(|stored| Event::decode(stored.record.schema, &stored.record.payload).unwrap());
        let advice = events.filter_map(|event| if let Event::Sizing(it) = event { Some(it) } else { None });
        advice.collect()
    }

    #[test]
    fn new_prices_renew_the_advice_once() {
        let folder = tempfile::tempdir().unwrap();
        let log = log_with_jobs(folder.path());
        let config = TopicConfig { partitions: 1, retain_ms: None, retain_bytes: None };
        log.create_topic(SchemaId::CapacityEvent.topic(), config).unwrap();
        let envelope = |at_ms| {
            Some(v1::Envelope { cluster: "c".into(), event_time_ms: at_ms, ..v1::Envelope::default() })
        };
        let heartbeat = v1::JobEvent {
            envelope: envelope(50 * HOUR_MS),
            kind: v1::JobEventKind::Submitted.into(),
            job_id: "last".into(),
            ..v1::JobEvent::default()
        };
        append(log.as_ref(), Event::Job(heartbeat), "last");
        let catch_up = || {
            SignalService::new(Arc::clone(&log)).unwrap().catch_up(RunMode::Replay, 100 * HOUR_MS).unwrap()
        };
        catch_up();
        // For the total, at the second midnight; at the first only 23 hours were known.
        let output = advice(log.as_ref());
        assert_eq!(output.iter().map(|it| it.term.as_str()).collect::<Vec<_>>(), ["WEEK", "MONTH", "YEAR"]);
        assert!(output.iter().all(|it| it.reason.as_deref() == Some("NO_RESERVED_PRICE")), "{output:?}");
        // Prices of any model and pool, and of one, valid since the first hour and entered now.
        let mut service = SignalService::new(Arc::clone(&log)).unwrap();
        service.catch_up(RunMode::Replay, 100 * HOUR_MS).unwrap();
        let price = |contract: &str, micros, entered_ms, at_ms| {
            Event::Capacity(v1::CapacityEvent {
                envelope: envelope(at_ms),
                kind: v1::CapacityEventKind::PriceSet.into(),
                owner: "total".into(),
                contract: Some(contract.into()),
                price_micros_per_gpu_hour: Some(micros),
                currency: Some("EUR".into()),
                entered_ms: Some(entered_ms),
                ..v1::CapacityEvent::default()
            })
        };
        append(log.as_ref(), price("on_demand", 4_000_000, 1, HOUR_MS), "price#1");
        service.catch_up(RunMode::Replay, 100 * HOUR_MS).unwrap();
        let output = advice(log.as_ref());
        assert_eq!((output.len(), output[3].on_demand_micros_per_gpu_hour), (6, Some(4_000_000)));
        assert_eq!(output[3].envelope.as_ref().unwrap().event_time_ms, 48 * HOUR_MS);
        // A replay derives only the second advice, which the log holds.
        assert_eq!((catch_up().written, advice(log.as_ref()).len()), (0, 6));
    }
}
