//! A log in memory with what journals and imports ask of one.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use tidegate_events::SchemaId;
use tidegate_log::{
    Appended, Batch, EventLog, Extent, LogError, Member, Record, StoredRecord, TopicConfig, TopicPartition,
};

/// Keeps topics, and the records of all of them in one row.
#[derive(Default)]
pub struct ScratchLog(Mutex<State>);

#[derive(Default)]
struct State {
    topics: BTreeMap<String, TopicConfig>,
    records: Vec<Record>,
}

impl ScratchLog {
    /// With the topic of journals.
    pub fn with_journal() -> Self {
        let log = Self::default();
        let one = TopicConfig { partitions: 1, retain_ms: None, retain_bytes: None };
        log.create_topic(SchemaId::AutopilotEvent.topic(), one).unwrap();
        log
    }

    pub fn holding(self, record: Record) -> Self {
        self.state().records.push(record);
        self
    }

    pub fn records(&self) -> Vec<Record> {
        self.state().records.clone()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }
}

impl EventLog for ScratchLog {
    fn create_topic(&self, topic: &str, config: TopicConfig) -> Result<(), LogError> {
        self.state().topics.insert(topic.into(), config);
        Ok(())
    }

    fn topics(&self) -> Result<Vec<(String, TopicConfig)>, LogError> {
        Ok(self.state().topics.iter().map(|(name, config)| (name.clone(), *config)).collect())
    }

    fn append(&self, _: &TopicPartition, batch: Batch) -> Result<Appended, LogError> {
        let mut state = self.state();
        let (first_offset, written) = (state.records.len() as u64, batch.records.len() as u64);
        state.records.extend(batch.records);
        Ok(Appended { first_offset, written, duplicates: 0 })
    }

    fn read(&self, _: &TopicPartition, from: u64, _: usize) -> Result<Vec<StoredRecord>, LogError> {
        let records = self.records().into_iter().zip(0..).skip(from as usize);
        Ok(records.map(|(record, offset)| StoredRecord { offset, record }).collect())
    }

    fn extent(&self, _: &TopicPartition) -> Result<Extent, LogError> {
        Ok(Extent { start: 0, end: self.state().records.len() as u64 })
    }

    fn offset_for_time(&self, _: &TopicPartition, _: i64) -> Result<u64, LogError> {
        unimplemented!("nobody asks")
    }

    fn wait_for(&self, _: &TopicPartition, _: u64, _: Duration) -> Result<bool, LogError> {
        Ok(true)
    }

    fn commit_offset(&self, _: &str, _: &TopicPartition, _: u64) -> Result<(), LogError> {
        unimplemented!("nobody asks")
    }

    fn join(&self, _: &str, _: &[&str]) -> Result<Box<dyn Member>, LogError> {
        unimplemented!("nobody asks")
    }

    fn committed_offset(&self, _: &str, _: &TopicPartition) -> Result<Option<u64>, LogError> {
        unimplemented!("nobody asks")
    }

    fn trim(&self, _: &TopicPartition, _: u64) -> Result<Extent, LogError> {
        unimplemented!("nobody asks")
    }

    fn apply_retention(&self, _: i64) -> Result<(), LogError> {
        unimplemented!("nobody asks")
    }

    fn set_retention(&self, _: &str, _: Option<u64>) -> Result<(), LogError> {
        unimplemented!("nobody asks")
    }

    fn consumers(&self, _: &TopicPartition) -> Result<Vec<(String, u64)>, LogError> {
        unimplemented!("nobody asks")
    }

    fn forget_consumer(&self, _: &str) -> Result<bool, LogError> {
        unimplemented!("nobody asks")
    }

    fn fence(&self) -> Result<u64, LogError> {
        unimplemented!("nobody asks")
    }
}
