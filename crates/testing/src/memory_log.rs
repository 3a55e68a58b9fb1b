//! A log in memory, for tests of what appends: topics, records and the sequence numbers of sources.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tidegate_events::Event;
use tidegate_log::{
    Appended, Batch, EventLog, Extent, LogError, Member, Record, StoredRecord, TopicConfig, TopicPartition,
};

/// Keeps all records, and takes each sequence number of a source once. It drops nothing, knows no
/// groups of consumers, and nobody takes it over.
#[derive(Debug, Default)]
pub struct MemoryLog(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    topics: BTreeMap<String, TopicConfig>,
    records: BTreeMap<TopicPartition, Vec<Record>>,
    /// Epoch and next sequence number of each source of a partition.
    sources: BTreeMap<(TopicPartition, String), (u64, u64)>,
    committed: BTreeMap<(String, TopicPartition), u64>,
}

impl MemoryLog {
    /// A log with a topic of one partition.
    pub fn with_topic(topic: &str) -> Self {
        let one = TopicConfig { partitions: 1, retain_ms: None, retain_bytes: None };
        let log = Self::default();
        log.state().topics.insert(topic.into(), one);
        log
    }

    /// The same log with another record, in partition 0 of a topic.
    #[must_use]
    pub fn holding(self, topic: &str, record: Record) -> Self {
        let at = TopicPartition { topic: topic.into(), partition: 0 };
        self.state().records.entry(at).or_default().push(record);
        self
    }

    /// All records of a topic, partition by partition.
    pub fn records(&self, topic: &str) -> Vec<Record> {
        let state = self.state();
        let of_topic = state.records.iter().filter(|(at, _)| at.topic == topic);
        of_topic.flat_map(|(_, records)| records.clone()).collect()
    }

    /// All events of a topic, partition by partition.
    pub fn events(&self, topic: &str) -> Vec<Event> {
        let decode = |record: Record| {
            let event = Event::decode(record.schema, &record.payload).unwrap();
            assert_eq!(record.key, event.key());
            assert_eq!(record.event_time_ms, event.event_time_ms());
            event
        };
        self.records(topic).into_iter().map(decode).collect()
    }

    /// Number of records of all topics.
    pub fn count(&self) -> usize {
        self.state().records.values().map(Vec::len).sum()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The state, if the log has the topic.
    fn state_of(&self, at: &TopicPartition) -> Result<MutexGuard<'_, State>, LogError> {
        let state = self.state();
        match state.topics.contains_key(&at.topic) {
            true => Ok(state),
            false => Err(LogError::UnknownTopic(at.topic.clone())),
        }
    }
}

impl EventLog for MemoryLog {
    fn create_topic(&self, topic: &str, config: TopicConfig) -> Result<(), LogError> {
        self.state().topics.insert(topic.into(), config);
        Ok(())
    }

    fn topics(&self) -> Result<Vec<(String, TopicConfig)>, LogError> {
        Ok(self.state().topics.iter().map(|(name, config)| (name.clone(), *config)).collect())
    }

    fn append(&self, at: &TopicPartition, batch: Batch) -> Result<Appended, LogError> {
        let mut state = self.state_of(at)?;
        let Batch { producer, first_seq, records } = batch;
        let source = state.sources.entry((at.clone(), producer.source)).or_default();
        if source.0 != producer.epoch {
            *source = (producer.epoch, 0);
        }
        let count = records.len() as u64;
        let duplicates = source.1.saturating_sub(first_seq).min(count);
        source.1 = source.1.max(first_seq + count);
        let stored = state.records.entry(at.clone()).or_default();
        let first_offset = stored.len() as u64;
        stored.extend(records.into_iter().skip(duplicates as usize));
        Ok(Appended { first_offset, written: count - duplicates, duplicates })
    }

    fn read(&self, at: &TopicPartition, from: u64, max_bytes: usize) -> Result<Vec<StoredRecord>, LogError> {
        let state = self.state_of(at)?;
        let records = state.records.get(at).into_iter().flatten().cloned().zip(0..).skip(from as usize);
        let mut bytes = 0;
        let fits = records.take_while(|(record, _)| {
            let is_first = bytes == 0;
            bytes += record.payload.len();
            is_first || bytes <= max_bytes
        });
        Ok(fits.map(|(record, offset)| StoredRecord { offset, record }).collect())
    }

    fn extent(&self, at: &TopicPartition) -> Result<Extent, LogError> {
        let end = self.state_of(at)?.records.get(at).map_or(0, Vec::len) as u64;
        Ok(Extent { start: 0, end })
    }

    fn offset_for_time(&self, at: &TopicPartition, event_time_ms: i64) -> Result<u64, LogError> {
        let state = self.state_of(at)?;
        let records = state.records.get(at).map_or(&[][..], Vec::as_slice);
        let found = records.iter().position(|record| record.event_time_ms >= event_time_ms);
        Ok(found.unwrap_or(records.len()) as u64)
    }

    fn wait_for(&self, at: &TopicPartition, offset: u64, _: Duration) -> Result<bool, LogError> {
        Ok(self.extent(at)?.end > offset)
    }

    fn commit_offset(&self, group: &str, at: &TopicPartition, offset: u64) -> Result<(), LogError> {
        self.state_of(at)?.committed.insert((group.into(), at.clone()), offset);
        Ok(())
    }

    fn join(&self, group: &str, _: &[&str]) -> Result<Box<dyn Member>, LogError> {
        panic!("{group}: a log in memory shares no partitions")
    }

    fn committed_offset(&self, group: &str, at: &TopicPartition) -> Result<Option<u64>, LogError> {
        Ok(self.state_of(at)?.committed.get(&(group.into(), at.clone())).copied())
    }

    fn trim(&self, at: &TopicPartition, _: u64) -> Result<Extent, LogError> {
        self.extent(at)
    }

    fn apply_retention(&self, _: i64) -> Result<(), LogError> {
        Ok(())
    }

    fn set_retention(&self, topic: &str, retain_ms: Option<u64>) -> Result<(), LogError> {
        match self.state().topics.get_mut(topic) {
            Some(config) => config.retain_ms = retain_ms,
            None => return Err(LogError::UnknownTopic(topic.into())),
        }
        Ok(())
    }

    fn consumers(&self, at: &TopicPartition) -> Result<Vec<(String, u64)>, LogError> {
        let state = self.state_of(at)?;
        let of_partition = state.committed.iter().filter(|((_, of), _)| of == at);
        Ok(of_partition.map(|((group, _), offset)| (group.clone(), *offset)).collect())
    }

    fn forget_consumer(&self, group: &str) -> Result<bool, LogError> {
        let mut state = self.state();
        let before = state.committed.len();
        state.committed.retain(|(name, _), _| name != group);
        Ok(state.committed.len() < before)
    }

    fn fence(&self) -> Result<u64, LogError> {
        Ok(0)
    }
}
