//! Collects the events of accepted rows and appends them to the log in chunks.

use tidegate_events::{Event, SchemaId, v1};
use tidegate_log::{Batch, EventLog, Producer, Record, TopicConfig, TopicPartition, partition_for};
use xxhash_rust::xxh3::{xxh3_64, xxh3_128};

use crate::error::{ImportError, Reject, RejectCode};

/// A chunk is appended once it has this many events or bytes; both bound the memory of an import.
pub(crate) const CHUNK_EVENTS: usize = 16_384;
const CHUNK_BYTES: usize = 8 << 20;

/// Records of one partition that are not in the log yet.
#[derive(Default)]
struct Chunk {
    records: Vec<Record>,
    bytes: usize,
    /// Events of the current row that will follow the records.
    staged: usize,
    /// Concatenated event ids of the records: they identify the chunk, whoever writes it and when.
    ids: Vec<u8>,
}

struct Topic {
    name: &'static str,
    chunks: Vec<Chunk>,
}

/// An event of the current row, until the row is accepted.
struct Pending {
    topic: usize,
    partition: usize,
    record: Record,
    id: [u8; 16],
}

/// Where a dead letter is from.
pub(crate) struct Place<'a> {
    pub cluster: &'a str,
    pub origin: &'a str,
    pub line: Option<u64>,
    /// Time of the dead letter, ms since the epoch; the same in every import of the same history.
    pub at_ms: i64,
    pub raw: Vec<u8>,
}

/// Collects events and appends them in chunks. Each chunk has a producer named by its content, so
/// the log recognises a chunk that it already has.
pub(crate) struct Outbox<'a> {
    log: &'a dyn EventLog,
    /// `import/<mapping>`, the source of every event; `import/<mapping>#<hash>` is the producer of
    /// a chunk.
    source: String,
    config: TopicConfig,
    topics: Vec<Topic>,
    row: Vec<Pending>,
    pub(crate) written: u64,
    pub(crate) already_present: u64,
}

impl<'a> Outbox<'a> {
    pub(crate) fn new(log: &'a dyn EventLog, mapping: &str, config: TopicConfig) -> Self {
        Self {
            log,
            source: format!("import/{mapping}"),
            config,
            topics: Vec::new(),
            row: Vec::new(),
            written: 0,
            already_present: 0,
        }
    }

    /// Index of the topic, which is created in the log if it is missing.
    fn topic(&mut self, schema: SchemaId) -> Result<usize, ImportError> {
        let name = schema.topic();
        if let Some(index) = self.topics.iter().position(|topic| topic.name == name) {
            return Ok(index);
        }
        let existing = self.log.topics()?.into_iter().find(|(topic, _)| topic == name);
        let partitions = match existing {
            Some((_, config)) => config.partitions,
            None => {
                self.log.create_topic(name, self.config)?;
                self.config.partitions
            }
        };
        self.topics.push(Topic { name, chunks: (0..partitions).map(|_| Chunk::default()).collect() });
        Ok(self.topics.len() - 1)
    }

    /// Creates the topic up front, so that adding rows cannot fail on it.
    pub(crate) fn prepare(&mut self, schema: SchemaId) -> Result<(), ImportError> {
        self.topic(schema).map(|_| ())
    }

    /// Adds an event to the current row. Its envelope must hold cluster and event time.
    ///
    /// An import observed nothing itself, so the observed time is the event time. A second import
    /// of the file then gives the same bytes.
    pub(crate) fn add(&mut self, event: &mut Event) -> Result<(), Reject> {
        let name = event.schema().topic();
        let topic = self.topics.iter().position(|topic| topic.name == name).unwrap_or_default();
        let key = event.key();
        let chunks = &self.topics[topic].chunks;
        let partition = partition_for(key.as_bytes(), chunks.len() as u32) as usize;
        self.stage(event, topic, partition)
    }

    fn stage(&mut self, event: &mut Event, topic: usize, partition: usize) -> Result<(), Reject> {
        let chunk = &mut self.topics[topic].chunks[partition];
        let seq = chunk.records.len() + chunk.staged;
        let envelope = event.envelope_mut();
        envelope.source.clone_from(&self.source);
        envelope.seq = seq as u64;
        envelope.observed_time_ms = envelope.event_time_ms;
        let record = event.record().map_err(|error| {
            Reject::new(RejectCode::MissingValue, format!("the row gives no event: {error}"))
        })?;
        chunk.staged += 1;
        let mut id = [0; 16];
        id.copy_from_slice(&event.envelope_mut().event_id);
        self.row.push(Pending { topic, partition, record: record.into(), id });
        Ok(())
    }

    /// Hash of the events of the current row: equal rows have equal fingerprints.
    pub(crate) fn row_fingerprint(&self) -> u32 {
        let fold = |sum: u64, pending: &Pending| sum.rotate_left(17) ^ xxh3_64(&pending.id);
        self.row.iter().fold(0, fold) as u32
    }

    pub(crate) fn drop_row(&mut self) {
        for pending in self.row.drain(..) {
            self.topics[pending.topic].chunks[pending.partition].staged = 0;
        }
    }

    /// Drops the current row, and writes a dead letter in its place.
    pub(crate) fn dead_letter(&mut self, reject: Reject, place: Place<'_>) -> Result<(), ImportError> {
        self.drop_row();
        let letter = v1::DeadLetter {
            envelope: Some(v1::Envelope {
                cluster: place.cluster.to_owned(),
                event_time_ms: place.at_ms,
                ..v1::Envelope::default()
            }),
            origin: place.origin.to_owned(),
            line: place.line,
            code: reject.code.as_str().to_owned(),
            reason: reject.reason,
            raw: place.raw,
            ..v1::DeadLetter::default()
        };
        // A dead letter has everything an event needs, so adding it cannot fail.
        if self.add(&mut Event::DeadLetter(letter)).is_err() {
            self.drop_row();
        }
        self.accept_row()
    }

    /// Accepts the current row, and appends full chunks.
    pub(crate) fn accept_row(&mut self) -> Result<(), ImportError> {
        let mut row = std::mem::take(&mut self.row);
        for Pending { topic, partition, record, id } in row.drain(..) {
            let chunk = &mut self.topics[topic].chunks[partition];
            chunk.staged = 0;
            chunk.bytes += record.key.len() + record.payload.len();
            chunk.ids.extend_from_slice(&id);
            chunk.records.push(record);
            if chunk.records.len() >= CHUNK_EVENTS || chunk.bytes >= CHUNK_BYTES {
                self.flush(topic, partition)?;
            }
        }
        self.row = row;
        Ok(())
    }

    /// Adds an event to every partition of its topic, after everything added so far.
    pub(crate) fn broadcast(&mut self, event: &mut Event) -> Result<(), ImportError> {
        let topic = self.topic(event.schema())?;
        for partition in 0..self.topics[topic].chunks.len() {
            if self.stage(event, topic, partition).is_ok() {
                self.accept_row()?;
            }
        }
        Ok(())
    }

    pub(crate) fn flush_all(&mut self) -> Result<(), ImportError> {
        for topic in 0..self.topics.len() {
            for partition in 0..self.topics[topic].chunks.len() {
                self.flush(topic, partition)?;
            }
        }
        Ok(())
    }

    fn flush(&mut self, topic: usize, partition: usize) -> Result<(), ImportError> {
        let Topic { name, chunks } = &mut self.topics[topic];
        let chunk = &mut chunks[partition];
        if chunk.records.is_empty() {
            return Ok(());
        }
        let producer =
            Producer { source: format!("{}#{:032x}", self.source, xxh3_128(&chunk.ids)), epoch: 0 };
        let records = std::mem::replace(&mut chunk.records, Vec::with_capacity(CHUNK_EVENTS));
        chunk.ids.clear();
        chunk.bytes = 0;
        let at = TopicPartition { topic: (*name).to_owned(), partition: partition as u32 };
        let appended = self.log.append(&at, Batch { producer, first_seq: 0, records })?;
        self.written += appended.written;
        self.already_present += appended.duplicates;
        Ok(())
    }
}
