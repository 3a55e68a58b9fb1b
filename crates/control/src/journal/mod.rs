//! The executor's journal on the log: one partition, whose order decides who holds the lease.
//!
//! Each process is a source of its own, whose epoch is the generation of its lease.

use std::sync::Arc;
use std::time::Duration;

use tidegate_autopilot::executor::{Journal, JournalEntry, JournalError, JournalEvent};
use tidegate_events::SchemaId;
use tidegate_log::snapshot::Position;
use tidegate_log::tail::Cursor;
use tidegate_log::{Batch, EventLog, LogError, Producer, Record, TopicPartition, partition_for};

use super::event::{decode_entry, encode_entry, source};
use super::plan_archive::{PlanArchive, without_inputs};

/// Payload bytes read at a time.
const READ_BYTES: usize = 8 << 20;
/// How long a written record may take to become readable.
const PATIENCE: Duration = Duration::from_secs(10);

/// The journal of one cluster's autopilot on a log.
pub struct LogJournal {
    log: Arc<dyn EventLog>,
    cursor: Cursor,
    cluster: String,
    holder: String,
    /// Generation of the last write; 0: none.
    generation: u64,
    /// Number of the next record in that generation.
    seq: u64,
    /// Generation in which a write failed: the record may still appear.
    broken: Option<u64>,
    /// Offset after the last record written: it must be read back before anything is done on it.
    written_to: u64,
    /// Where inputs of plans go; without one they are recorded in the journal.
    archive: Option<PlanArchive>,
}

impl std::fmt::Debug for LogJournal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { cluster, holder, generation, seq, .. } = self;
        f.debug_struct("LogJournal")
            .field("cluster", cluster)
            .field("holder", holder)
            .field("generation", generation)
            .field("seq", seq)
            .finish_non_exhaustive()
    }
}

impl LogJournal {
    /// Opens the journal of `cluster`, to be read from its beginning. `holder` names this process.
    ///
    /// # Errors
    /// The log has no topic for it, or cannot be reached.
    pub fn open(log: Arc<dyn EventLog>, cluster: &str, holder: &str) -> Result<Self, LogError> {
        let topic = SchemaId::AutopilotEvent.topic();
        let partitions = log.topics()?.into_iter().find(|(name, _)| name == topic);
        let partitions = partitions.ok_or_else(|| LogError::UnknownTopic(topic.into()))?.1.partitions;
        let at =
            TopicPartition { topic: topic.into(), partition: partition_for(cluster.as_bytes(), partitions) };
        let cursor = Cursor::at_start(log.as_ref(), at)?;
        let (cluster, holder) = (cluster.to_owned(), holder.to_owned());
        Ok(Self {
            log,
            cursor,
            cluster,
            holder,
            generation: 0,
            seq: 0,
            broken: None,
            written_to: 0,
            archive: None,
        })
    }

    /// Keeps inputs of plans in an archive, and records the plans without them.
    #[must_use]
    pub fn archiving(self, archive: PlanArchive) -> Self {
        Self { archive: Some(archive), ..self }
    }

    /// Goes on where a state stands that was folded from this journal. Positions of other
    /// partitions change nothing.
    #[must_use]
    pub fn resumed(mut self, positions: &[Position]) -> Self {
        if let Some(position) = positions.iter().find(|position| position.at() == self.cursor.at) {
            self.cursor = position.cursor();
        }
        self
    }

    /// How far it was read.
    ///
    /// # Errors
    /// The log cannot be reached.
    pub fn position(&self) -> Result<Position, LogError> {
        Position::of(&self.cursor, self.log.as_ref())
    }

    /// The entry as it is recorded: a plan without its inputs, once the archive has them. A plan
    /// that cannot be archived is recorded without them all the same: it cannot be made again, and
    /// `explain decision` says so.
    fn slim<'a>(&self, entry: &'a JournalEntry) -> std::borrow::Cow<'a, JournalEntry> {
        let (Some(archive), JournalEvent::Planned(planned)) = (&self.archive, &entry.event) else {
            return std::borrow::Cow::Borrowed(entry);
        };
        if let Err(error) = archive.write(planned) {
            tracing::warn!(
                "the inputs of plan {} are not kept, it cannot be explained: {error}",
                planned.plan.id
            );
        }
        let event = JournalEvent::Planned(Box::new(without_inputs(planned)));
        std::borrow::Cow::Owned(JournalEntry { event, ..entry.clone() })
    }

    fn records(&self, entries: &[JournalEntry], first_seq: u64) -> Result<Vec<Record>, JournalError> {
        let record = |(seq, entry): (u64, &JournalEntry)| {
            let slim = self.slim(entry);
            let mut event =
                encode_entry(entry, &slim, &self.cluster, &self.holder, seq).map_err(journal_error)?;
            event.record().map(Record::from).map_err(journal_error)
        };
        (first_seq..).zip(entries).map(record).collect()
    }
}

fn journal_error(error: impl std::fmt::Display) -> JournalError {
    JournalError(error.to_string())
}

impl Journal for LogJournal {
    fn append(&mut self, entries: Vec<JournalEntry>) -> Result<(), JournalError> {
        let Some(generation) = entries.first().map(|entry| entry.generation) else { return Ok(()) };
        if self.broken == Some(generation) {
            return Err(JournalError(format!("writes of generation {generation} may still be on their way")));
        }
        if generation != self.generation {
            (self.generation, self.seq) = (generation, 0);
        }
        let records = self.records(&entries, self.seq)?;
        let count = records.len() as u64;
        let producer = Producer { source: source(&self.cluster, &self.holder), epoch: generation };
        match self.log.append(&self.cursor.at, Batch { producer, first_seq: self.seq, records }) {
            Ok(appended) if appended.written == count => {
                self.seq += count;
                self.written_to = appended.first_offset + count;
                Ok(())
            }
            answer => {
                self.broken = Some(generation);
                Err(answer.map_or_else(journal_error, |_| {
                    JournalError("another process writes under this name".to_owned())
                }))
            }
        }
    }

    fn read(&mut self) -> Result<Vec<JournalEntry>, JournalError> {
        let begun = self.cursor.clone();
        let entries = self.read_all();
        if entries.is_err() {
            // What was read before the error is not handed over, so it is read again.
            self.cursor = begun;
        }
        entries
    }
}

impl LogJournal {
    fn read_all(&mut self) -> Result<Vec<JournalEntry>, JournalError> {
        let mut entries = Vec::new();
        loop {
            let records = self.cursor.read_on(self.log.as_ref(), READ_BYTES).map_err(journal_error)?;
            if records.is_empty() {
                if self.cursor.next >= self.written_to {
                    return Ok(entries);
                }
                // A durable record becomes readable once all before it are decided.
                if !self
                    .log
                    .wait_for(&self.cursor.at, self.written_to - 1, PATIENCE)
                    .map_err(journal_error)?
                {
                    return Err(JournalError("what was written cannot be read back".to_owned()));
                }
                continue;
            }
            let read = records
                .iter()
                .filter_map(|stored| decode_entry(stored.record.schema, &stored.record.payload));
            // A partition may hold other clusters too.
            let ours = read.filter(|(event, _)| {
                event.envelope.as_ref().is_some_and(|envelope| envelope.cluster == self.cluster)
            });
            entries.extend(ours.map(|(_, entry)| entry));
        }
    }
}
