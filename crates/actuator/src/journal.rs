//! The journal on the log: one partition, one source whose epoch is the generation of the lease. The log takes each number of
//! an epoch once and nothing of an older epoch, so the lease is held by whoever wrote the epoch's first record.

use std::sync::Arc;

use tidegate_autopilot::actuator::{Entry, Journal, JournalError, What};
use tidegate_events::SchemaId;
use tidegate_log::{Batch, EventLog, LogError, Producer, Record, TopicPartition, partition_for};

use super::event::{entry_of, event_of, source};

/// Payload bytes read at a time.
const READ_BYTES: usize = 8 << 20;

/// The journal of one cluster's autopilot on a log.
pub struct LogJournal {
    log: Arc<dyn EventLog>,
    at: TopicPartition,
    cluster: String,
    holder: String,
    /// Offset to read from.
    next: u64,
    /// Generation that is held; 0: none.
    generation: u64,
    /// Number of the next record in it.
    seq: u64,
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
    /// The journal of `cluster`, to be read from its beginning; `holder` names who writes here.
    ///
    /// # Errors
    /// The log has no topic for it, or cannot be reached.
    pub fn open(log: Arc<dyn EventLog>, cluster: &str, holder: &str) -> Result<Self, LogError> {
        let topic = SchemaId::AutopilotEvent.topic();
        let partitions = log.topics()?.into_iter().find(|(name, _)| name == topic);
        let partitions = partitions.ok_or_else(|| LogError::UnknownTopic(topic.into()))?.1.partitions;
        let at =
            TopicPartition { topic: topic.into(), partition: partition_for(cluster.as_bytes(), partitions) };
        let next = log.extent(&at)?.start;
        let (cluster, holder) = (cluster.to_owned(), holder.to_owned());
        Ok(Self { log, at, cluster, holder, next, generation: 0, seq: 0 })
    }

    fn write(&mut self, entries: &[Entry], generation: u64, first_seq: u64) -> Result<u64, JournalError> {
        let away = |why: String| JournalError::Away(why);
        let mut records = Vec::with_capacity(entries.len());
        for (seq, entry) in (first_seq..).zip(entries) {
            let mut event =
                event_of(entry, &self.cluster, &self.holder, seq).map_err(|e| away(e.to_string()))?;
            records.push(event.record().map(Record::from).map_err(|e| away(e.to_string()))?);
        }
        let producer = Producer { source: source(&self.cluster), epoch: generation };
        match self.log.append(&self.at, Batch { producer, first_seq, records }) {
            Ok(appended) => Ok(appended.written),
            Err(LogError::StaleEpoch { .. } | LogError::Fenced { .. }) => Err(JournalError::Lost(generation)),
            Err(error) => {
                // It may yet come to stand there. A new generation, which the next lease is, makes that harmless.
                self.generation = 0;
                Err(away(error.to_string()))
            }
        }
    }
}

impl Journal for LogJournal {
    fn take(&mut self, entry: Entry) -> Result<(), JournalError> {
        let generation = entry.generation;
        if generation == self.generation {
            return self.append(vec![entry]);
        }
        debug_assert!(matches!(entry.what, What::Lease(_)), "a generation begins with its lease");
        match self.write(&[entry], generation, 0)? {
            // The first record of this generation was there: somebody else's.
            0 => Err(JournalError::Lost(generation)),
            _ => {
                (self.generation, self.seq) = (generation, 1);
                Ok(())
            }
        }
    }

    fn append(&mut self, entries: Vec<Entry>) -> Result<(), JournalError> {
        if self.generation == 0 {
            return Err(JournalError::Lost(0));
        }
        let written = self.write(&entries, self.generation, self.seq)?;
        if written != entries.len() as u64 {
            return Err(JournalError::Lost(self.generation));
        }
        self.seq += written;
        Ok(())
    }

    fn read(&mut self) -> Result<Vec<Entry>, JournalError> {
        let away = |error: LogError| JournalError::Away(error.to_string());
        let end = self.log.extent(&self.at).map_err(away)?.end;
        let mut entries = Vec::new();
        while self.next < end {
            let records = self.log.read(&self.at, self.next, READ_BYTES).map_err(away)?;
            // On Kafka the end may hold marks of transactions alone.
            let Some(last) = records.last() else { break };
            self.next = last.offset + 1;
            let read =
                records.iter().filter_map(|stored| entry_of(stored.record.schema, &stored.record.payload));
            // A partition may hold other clusters too.
            let ours = read.filter(|(event, _)| {
                event.envelope.as_ref().is_some_and(|envelope| envelope.cluster == self.cluster)
            });
            entries.extend(ours.map(|(_, entry)| entry));
        }
        Ok(entries)
    }
}

#[cfg(test)]
mod tests {
    use tidegate_autopilot::intent::Lease;
    use tidegate_log::{EmbeddedLog, EmbeddedOptions, TopicConfig};

    use super::*;

    fn lease(holder: &str, generation: u64) -> Entry {
        let lease = Lease { holder: holder.to_owned(), generation, until_us: 90_000_000 };
        Entry { at_us: 60_000_000, generation, what: What::Lease(lease) }
    }

    #[test]
    fn of_two_who_take_a_generation_one_has_it_and_an_older_one_writes_nothing_more() {
        let folder = tempfile::tempdir().unwrap();
        let log = EmbeddedLog::open(folder.path(), EmbeddedOptions::default()).unwrap();
        let topic = TopicConfig { partitions: 3, retain_ms: None, retain_bytes: None };
        log.create_topic(SchemaId::AutopilotEvent.topic(), topic).unwrap();
        let log: Arc<dyn EventLog> = Arc::new(log);
        let open = |holder: &str| LogJournal::open(Arc::clone(&log), "c", holder).unwrap();
        let (mut one, mut other) = (open("one"), open("other"));
        assert_eq!(one.append(vec![lease("one", 1)]), Err(JournalError::Lost(0)));
        one.take(lease("one", 1)).unwrap();
        assert_eq!(other.take(lease("other", 1)), Err(JournalError::Lost(1)));
        one.take(lease("one", 1)).unwrap();
        assert_eq!(other.read().unwrap(), [lease("one", 1), lease("one", 1)]);
        other.take(lease("other", 2)).unwrap();
        assert_eq!(one.append(vec![lease("one", 1)]), Err(JournalError::Lost(1)));
        assert_eq!(one.read().unwrap().last(), Some(&lease("other", 2)));
        // Another cluster's autopilot is none of theirs.
        let mut elsewhere = LogJournal::open(Arc::clone(&log), "d", "one").unwrap();
        elsewhere.take(lease("one", 1)).unwrap();
        assert_eq!(open("third").read().unwrap().len(), 3);
    }
}
