//! The log on both sides of [`Feed`]: topics are read from their beginning, and what is said is
//! appended once.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use tidegate_events::{Event, SchemaId};
use tidegate_log::{Batch, EventLog, LogError, Producer, Record, TopicPartition, partition_for};

use super::feed::{Counts, Feed};
use super::{Publication, US_PER_S};

/// Payload bytes read from a partition at a time.
const READ_BYTES: usize = 4 << 20;
/// Forecasts learn from so much of the past: what the job table looks back over.
const LEARNED_US: i64 = 42 * 86_400 * US_PER_S;
/// Topics whose history may come in any order: an export is imported as its rows stand.
const SPARSE: [SchemaId; 3] = [SchemaId::JobEvent, SchemaId::NodeEvent, SchemaId::CapacityEvent];
/// Topics that come as it happens, much of it.
const DENSE: [SchemaId; 2] = [SchemaId::StepReport, SchemaId::GpuSampleBatch];
/// Topics that this writes.
const SAID: [SchemaId; 2] = [SchemaId::StragglerSignal, SchemaId::Forecast];

/// How far the watermark stays behind the newest event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pace {
    /// Nothing more comes: 2 s, so that reports of the last step are whole.
    Once,
    /// Agents send what they read in batches of ten seconds: 20 s. Steps run that far
    /// [ahead](super::feed).
    Live,
}

impl Pace {
    pub(crate) fn lag_us(self) -> i64 {
        match self {
            Self::Once => 2 * US_PER_S,
            Self::Live => 20 * US_PER_S,
        }
    }
}

/// What was published so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Published {
    /// Records read.
    pub read: u64,
    /// Signals, curves, forecasts and advice that the log did not hold yet.
    pub written: u64,
    /// That it held already: said before, by this or another process.
    pub known: u64,
    /// Payloads that no schema reads; the tables show them as dead letters.
    pub undecodable: u64,
    pub counts: Counts,
}

struct Cursor {
    at: TopicPartition,
    next: u64,
    end: u64,
    /// Newest time read, in the order of events.
    newest_us: i64,
}

/// Reads a log and publishes on it what it says.
pub struct Operator {
    log: Arc<dyn EventLog>,
    feed: Feed,
    sparse: Vec<Cursor>,
    dense: Vec<Cursor>,
    partitions: BTreeMap<String, u32>,
    /// Sources of what the log holds.
    said: HashSet<String>,
    newest_us: i64,
    has_begun: bool,
    published: Published,
}

impl std::fmt::Debug for Operator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Operator").field("published", &self.published).finish_non_exhaustive()
    }
}

impl Operator {
    /// An operator that has read nothing yet but what was said before.
    pub fn new(log: Arc<dyn EventLog>) -> Result<Self, LogError> {
        let mut operator = Self {
            log,
            feed: Feed::new(i64::MIN),
            sparse: Vec::new(),
            dense: Vec::new(),
            partitions: BTreeMap::new(),
            said: HashSet::new(),
            newest_us: i64::MIN,
            has_begun: false,
            published: Published::default(),
        };
        operator.read_said()?;
        Ok(operator)
    }

    /// Reads what the log holds now, and publishes what follows from it.
    pub fn catch_up(&mut self, pace: Pace, now_ms: i64) -> Result<Published, LogError> {
        self.look()?;
        // History of jobs and nodes is put in order before anything is said of it.
        for at in 0..self.sparse.len() {
            while self.read(false, at, now_ms)? {}
        }
        if !self.has_begun && self.newest_us > i64::MIN {
            self.feed.learn_from(self.newest_us.saturating_sub(LEARNED_US));
            self.has_begun = true;
        }
        // Of the rest, the partition whose time is least is read on.
        while let Some((at, _)) = self.unread().min_by_key(|(_, newest_us)| *newest_us) {
            self.read(true, at, now_ms)?;
            if let Some(watermark_us) = self.unread().map(|(_, newest_us)| newest_us).min() {
                self.advance(watermark_us.saturating_sub(Pace::Live.lag_us()))?;
            }
        }
        if self.newest_us > i64::MIN {
            self.advance(self.newest_us.saturating_sub(pace.lag_us()))?;
        }
        self.published.counts = self.feed.counts();
        Ok(self.published)
    }

    /// Dense partitions that are not read to their end, with the newest time read.
    fn unread(&self) -> impl Iterator<Item = (usize, i64)> + '_ {
        let unread = self.dense.iter().enumerate().filter(|(_, cursor)| cursor.next < cursor.end);
        unread.map(|(at, cursor)| (at, cursor.newest_us))
    }

    fn advance(&mut self, watermark_us: i64) -> Result<(), LogError> {
        self.feed.advance(watermark_us);
        for publication in self.feed.take() {
            self.publish(publication)?;
        }
        Ok(())
    }

    /// Reads a little of a partition; tells whether there is more.
    fn read(&mut self, is_dense: bool, at: usize, now_ms: i64) -> Result<bool, LogError> {
        let cursor = if is_dense { &mut self.dense[at] } else { &mut self.sparse[at] };
        if cursor.next >= cursor.end {
            return Ok(false);
        }
        let records = self.log.read(&cursor.at, cursor.next, READ_BYTES)?;
        let Some(last) = records.last() else {
            // On Kafka the end may hold marks of transactions alone.
            cursor.next = cursor.end;
            return Ok(false);
        };
        cursor.next = last.offset + 1;
        for stored in &records {
            self.published.read += 1;
            match Event::decode(stored.record.schema, &stored.record.payload) {
                Ok(event) => {
                    if let Some(at_us) = self.feed.push(event, now_ms) {
                        cursor.newest_us = cursor.newest_us.max(at_us);
                        self.newest_us = self.newest_us.max(at_us);
                    }
                }
                Err(_) => self.published.undecodable += 1,
            }
        }
        Ok(cursor.next < cursor.end)
    }

    /// Looks where partitions end; those that are new begin at their first record.
    fn look(&mut self) -> Result<(), LogError> {
        for (topic, config) in self.log.topics()? {
            self.partitions.insert(topic.clone(), config.partitions);
            let of = |schemas: &[SchemaId]| schemas.iter().any(|schema| schema.topic() == topic);
            let cursors = match (of(&SPARSE), of(&DENSE)) {
                (true, _) => &mut self.sparse,
                (_, true) => &mut self.dense,
                _ => continue,
            };
            for partition in 0..config.partitions {
                let at = TopicPartition { topic: topic.clone(), partition };
                let extent = self.log.extent(&at)?;
                match cursors.iter_mut().find(|cursor| cursor.at == at) {
                    Some(cursor) => {
                        cursor.end = extent.end;
                        // What retention dropped meanwhile cannot be read any more.
                        cursor.next = cursor.next.max(extent.start);
                    }
                    None => {
                        cursors.push(Cursor { at, next: extent.start, end: extent.end, newest_us: i64::MIN })
                    }
                }
            }
        }
        Ok(())
    }

    /// Notes what the log holds of earlier lives.
    fn read_said(&mut self) -> Result<(), LogError> {
        self.look()?;
        for topic in SAID.map(SchemaId::topic) {
            for partition in 0..self.partitions.get(topic).copied().unwrap_or(0) {
                let at = TopicPartition { topic: topic.into(), partition };
                let extent = self.log.extent(&at)?;
                let mut next = extent.start;
                while next < extent.end {
                    let records = self.log.read(&at, next, READ_BYTES)?;
                    let Some(last) = records.last() else { break };
                    next = last.offset + 1;
                    for stored in &records {
                        let event = Event::decode(stored.record.schema, &stored.record.payload);
                        let source = event.ok().and_then(|mut event| {
                            Some(std::mem::take(&mut event.envelope_mut().source)).filter(|s| !s.is_empty())
                        });
                        self.said.extend(source);
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
        if !self.said.insert(source.clone()) {
            self.published.known += count;
            return Ok(());
        }
        let partitions = self.partitions.get(topic).copied();
        let partitions = partitions.ok_or_else(|| LogError::UnknownTopic(topic.into()))?;
        let at = TopicPartition { topic: topic.into(), partition: partition_for(key.as_bytes(), partitions) };
        let record = |mut event: Event| event.record().ok().map(Record::from);
        let records: Vec<Record> = events.into_iter().filter_map(record).collect();
        let batch = Batch { producer: Producer { source, epoch: 0 }, first_seq: 0, records };
        let appended = self.log.append(&at, batch)?;
        self.published.written += appended.written;
        self.published.known += appended.duplicates;
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
        // As exports come: the last job first.
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
    fn what_was_said_is_not_said_again_whatever_is_known_of_it() {
        let folder = tempfile::tempdir().unwrap();
        let log = log_with_jobs(folder.path());
        let catch_up = |forget: bool| {
            let mut operator = Operator::new(Arc::clone(&log)).unwrap();
            if forget {
                operator.said.clear();
            }
            operator.catch_up(Pace::Once, 100 * HOUR_MS).unwrap()
        };
        let first = catch_up(false);
        // The first hour is 1; 24 of them are over at 25, so the total and jobs of one GPU are
        // foreseen at 30 and 36.
        assert_eq!((first.written, first.known, first.read), (2 * 2 * 16, 0, 39));
        assert_eq!(records(log.as_ref()), 64);
        let told = catch_up(false);
        assert_eq!((told.written, told.known), (0, 64));
        // Somebody else said it since: the log itself knows.
        let beside = catch_up(true);
        assert_eq!((beside.written, beside.known), (0, 64));
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
    fn prices_of_the_log_are_answered_and_said_once() {
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
        let catch_up =
            || Operator::new(Arc::clone(&log)).unwrap().catch_up(Pace::Once, 100 * HOUR_MS).unwrap();
        catch_up();
        // Of the total, at the second midnight: the first has seen 23 hours.
        let said = advice(log.as_ref());
        assert_eq!(said.iter().map(|it| it.term.as_str()).collect::<Vec<_>>(), ["WEEK", "MONTH", "YEAR"]);
        assert!(said.iter().all(|it| it.reason.as_deref() == Some("NO_RESERVED_PRICE")), "{said:?}");
        // Prices for all models of any pool, and for one, that hold since the first hour and were
        // entered now.
        let mut operator = Operator::new(Arc::clone(&log)).unwrap();
        operator.catch_up(Pace::Once, 100 * HOUR_MS).unwrap();
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
        operator.catch_up(Pace::Once, 100 * HOUR_MS).unwrap();
        let said = advice(log.as_ref());
        assert_eq!((said.len(), said[3].on_demand_micros_per_gpu_hour), (6, Some(4_000_000)));
        assert_eq!(said[3].envelope.as_ref().unwrap().event_time_ms, 48 * HOUR_MS);
        // A life that reads it all anew says the second alone, which is known.
        assert_eq!((catch_up().written, advice(log.as_ref()).len()), (0, 6));
    }
}
