//! The executor's journal on the log: one partition, whose order decides who holds the lease.
//!
//! Each process is a source of its own, whose epoch is the generation of its lease. Where the site
//! has keys, each entry proves who wrote it and after which other, and entries that do not are left
//! out and counted.

mod check;
mod proof;
mod table;
#[cfg(test)]
mod tests;

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use tidegate_autopilot::executor::{
    EntriesRefused, Journal, JournalEntry, JournalError, JournalEvent, MadePlan,
};
use tidegate_events::v1::AutopilotEvent;
use tidegate_events::{Event, SchemaId};
use tidegate_log::poison::{DeathWatch, Place as PoisonPlace};
use tidegate_log::snapshot::Position;
use tidegate_log::tail::Cursor;
use tidegate_log::{
    Batch, EventLog, LogError, Producer, Record, StoredRecord, TopicPartition, partition_for,
};

pub use check::Chains;
pub use proof::JournalKey;
pub use table::{TableEntry, TableProofs};

use self::proof::Place;
use super::event::{decode_entry, decode_event, encode_entry, source};
use super::newest_plan::NewestPlanFile;
use super::plan_archive::{PlanArchive, without_inputs};
use crate::authority::{Signers, hash};

/// Payload bytes read at a time.
const READ_BYTES: usize = 8 << 20;
/// Longest part of a forged name that is recorded, characters.
const SHOWN: usize = 200;
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
    /// Offsets of the last records written: they must be read back before anything is done on
    /// them.
    last_written: Range<u64>,
    /// Where inputs of plans go; without one they are recorded in the journal.
    archive: Option<PlanArchive>,
    /// Where the newest plan stands for people, recorded or not.
    newest: Option<NewestPlanFile>,
    /// Whose proofs count, and with which key this process proves what it writes; `None`: entries
    /// count unproven.
    keys: Option<JournalKeys>,
    chains: Chains,
    /// Hash of the last entry written in this generation.
    written: Option<String>,
    refused: Option<EntriesRefused>,
    /// Notes that entries are read, so that a life which dies of one is known.
    watch: Option<DeathWatch>,
}

/// Keys of a journal whose entries prove themselves.
#[derive(Debug, Clone)]
pub struct JournalKeys {
    /// Whose signatures count.
    pub signers: Signers,
    /// This process' key; without one it only reads.
    pub key: Option<JournalKey>,
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
            last_written: 0..0,
            archive: None,
            newest: None,
            keys: None,
            chains: Chains::default(),
            written: None,
            refused: None,
            watch: None,
        })
    }

    /// Notes with `watch` where it reads. Where earlier lives died twice it reads no further: no
    /// entry may be left out, because what follows proves and means nothing without it.
    #[must_use]
    pub fn watched_by(self, watch: DeathWatch) -> Self {
        Self { watch: Some(watch), ..self }
    }

    /// Why nothing more is read, if earlier lives died of what comes next.
    pub fn stopped(&self) -> Option<String> {
        self.watch.as_ref().and_then(|watch| watch.stops(&self.cursor.at, self.cursor.next))
    }

    /// Keeps inputs of plans in an archive, and records the plans without them.
    #[must_use]
    pub fn archiving(self, archive: PlanArchive) -> Self {
        Self { archive: Some(archive), ..self }
    }

    /// Shows the newest plan in the files, whether or not it is recorded.
    #[must_use]
    pub(crate) fn showing(self, newest: NewestPlanFile) -> Self {
        Self { newest: Some(newest), ..self }
    }

    /// Proves and checks entries, from where chains stand: of the position that it goes on from.
    #[must_use]
    pub fn proving(self, keys: Option<JournalKeys>, chains: Chains) -> Self {
        Self { keys, chains, ..self }
    }

    /// Where the chains stand at the position.
    pub fn chains(&self) -> &Chains {
        &self.chains
    }

    /// Entries that were read since the last call and do not count.
    pub fn take_refused(&mut self) -> Option<EntriesRefused> {
        self.refused.take()
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

    /// The records of entries, and the hash of the last where they are proven.
    fn records(
        &self,
        entries: &[JournalEntry],
        first_seq: u64,
    ) -> Result<(Vec<Record>, Option<String>), JournalError> {
        let mut written = self.written.clone();
        let mut records = Vec::with_capacity(entries.len());
        for (seq, entry) in (first_seq..).zip(entries) {
            let slim = self.slim(entry);
            let mut event =
                encode_entry(entry, &slim, &self.cluster, &self.holder, seq).map_err(journal_error)?;
            if let (Some(keys), Event::Autopilot(event)) = (&self.keys, &mut event) {
                let previous = written.as_deref().unwrap_or_else(|| self.chains.last());
                written = Some(prove(keys, event, previous)?);
            }
            records.push(event.record().map(Record::from).map_err(journal_error)?);
        }
        Ok((records, written))
    }
}

/// Adds the proof to an entry that follows on `previous`; returns its hash.
fn prove(keys: &JournalKeys, event: &mut AutopilotEvent, previous: &str) -> Result<String, JournalError> {
    let key = keys.key.as_ref().ok_or_else(|| journal_error("this process has no key to write with"))?;
    let envelope = event.envelope.clone().unwrap_or_default();
    let place = Place {
        cluster: &envelope.cluster,
        source: &envelope.source,
        generation: envelope.epoch,
        seq: envelope.seq,
    };
    let statement = proof::statement(place, previous, &event.body);
    let proof = key.prove(&statement, previous).map_err(journal_error)?;
    event.body = proof::attach(&event.body, &proof).map_err(journal_error)?;
    Ok(hash(statement.as_bytes()))
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
            (self.generation, self.seq, self.written) = (generation, 0, None);
        }
        let (records, written) = self.records(&entries, self.seq)?;
        let count = records.len() as u64;
        let producer = Producer { source: source(&self.cluster, &self.holder), epoch: generation };
        match self.log.append(&self.cursor.at, Batch { producer, first_seq: self.seq, records }) {
            Ok(appended) if appended.written == count => {
                self.seq += count;
                self.written = written;
                self.last_written = appended.first_offset..appended.first_offset + count;
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
        if let Some(why) = self.stopped() {
            return Err(JournalError(why));
        }
        if let Some(watch) = &mut self.watch {
            watch.enter(PoisonPlace::all_from(&self.cursor.at, self.cursor.next));
        }
        let (cursor, chains, refused) = (self.cursor.clone(), self.chains.clone(), self.refused.clone());
        let entries = self.read_all();
        if entries.is_err() {
            // What was read before the error is not handed over, so it is read again.
            (self.cursor, self.chains, self.refused) = (cursor, chains, refused);
            self.folded();
        }
        entries
    }

    fn folded(&mut self) {
        if let Some(watch) = &mut self.watch {
            watch.saved();
        }
    }

    fn made(&mut self, made: &MadePlan<'_>) {
        if let Some(Err(error)) = self.newest.as_mut().map(|newest| newest.write(&self.holder, made)) {
            tracing::warn!("the newest plan cannot be shown, `plan show` has the recorded ones: {error}");
        }
    }
}

impl LogJournal {
    fn read_all(&mut self) -> Result<Vec<JournalEntry>, JournalError> {
        let mut entries = Vec::new();
        loop {
            let records = self.cursor.read_on(self.log.as_ref(), READ_BYTES).map_err(journal_error)?;
            if records.is_empty() {
                if self.cursor.next >= self.last_written.end {
                    return Ok(entries);
                }
                // A durable record becomes readable once all before it are decided.
                if !self
                    .log
                    .wait_for(&self.cursor.at, self.last_written.end - 1, PATIENCE)
                    .map_err(journal_error)?
                {
                    return Err(JournalError("what was written cannot be read back".to_owned()));
                }
                continue;
            }
            for stored in &records {
                entries.extend(self.take(stored)?);
            }
        }
    }

    /// The entry of a record, if it is one of this journal that counts. An entry of our own that
    /// does not is an error: nothing may be done on it.
    fn take(&mut self, stored: &StoredRecord) -> Result<Option<JournalEntry>, JournalError> {
        let decoded = decode_event(stored.record.schema, &stored.record.payload);
        // A partition may hold other clusters too.
        let ours = |event: &AutopilotEvent| {
            event.envelope.as_ref().is_some_and(|envelope| envelope.cluster == self.cluster)
        };
        let Some(event) = decoded.filter(ours) else { return Ok(None) };
        let entry = decode_entry(&event);
        let Some(keys) = &self.keys else { return Ok(entry) };
        match self.chains.take(&keys.signers, &event, entry.as_ref()) {
            Ok(()) => Ok(entry),
            Err(why) if self.last_written.contains(&stored.offset) => {
                self.broken = Some(self.generation);
                // Said once: the next read passes over it.
                self.last_written = 0..0;
                Err(JournalError(format!("what this process wrote does not count: {why}")))
            }
            Err(why) => {
                self.refuse(stored.offset, &event, why);
                Ok(None)
            }
        }
    }

    /// Counts an entry that does not count.
    fn refuse(&mut self, offset: u64, event: &AutopilotEvent, why: String) {
        let source = event.envelope.as_ref().map_or("", |envelope| envelope.source.as_str());
        let holder: String = source.chars().take(SHOWN).collect();
        let before = self.refused.take();
        let (count, first) = before.map_or((0, offset), |before| (before.count, before.offsets.0));
        self.refused = Some(EntriesRefused { count: count + 1, offsets: (first, offset), holder, why });
    }
}
