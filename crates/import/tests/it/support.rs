//! An in-memory log, and accessors for tests.

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::sync::Mutex;
use std::time::Duration;

use tidegate_events::{Event, v1};
use tidegate_import::{ImportError, ImportOptions, ImportSummary, Mapping, Source, import};
use tidegate_log::{
    Appended, Batch, EventLog, Extent, LogError, Member, Producer, Record, StoredRecord, TopicConfig,
    TopicPartition,
};
use tidegate_testing::needs;

/// Keeps appended records and remembers producers, so that a repeated chunk is recognised. The
/// importer creates topics.
#[derive(Debug, Default)]
pub struct MemoryLog {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    topics: BTreeMap<String, TopicConfig>,
    records: BTreeMap<(String, u32), Vec<Record>>,
    producers: HashMap<(String, u32, Producer), u64>,
}

impl EventLog for MemoryLog {
    fn create_topic(&self, topic: &str, config: TopicConfig) -> Result<(), LogError> {
        self.state.lock().unwrap().topics.insert(topic.into(), config);
        Ok(())
    }

    fn topics(&self) -> Result<Vec<(String, TopicConfig)>, LogError> {
        let state = self.state.lock().unwrap();
        Ok(state.topics.iter().map(|(name, config)| (name.clone(), *config)).collect())
    }

    fn append(&self, at: &TopicPartition, batch: Batch) -> Result<Appended, LogError> {
        let mut state = self.state.lock().unwrap();
        assert!(state.topics.contains_key(&at.topic), "append to a topic that was not created");
        assert_eq!(batch.first_seq, 0);
        let count = batch.records.len() as u64;
        let known = state.producers.insert((at.topic.clone(), at.partition, batch.producer), count);
        let records = state.records.entry((at.topic.clone(), at.partition)).or_default();
        let first_offset = records.len() as u64;
        if let Some(known) = known {
            assert_eq!(known, count, "a chunk's name is its content");
            return Ok(Appended { first_offset, written: 0, duplicates: count });
        }
        records.extend(batch.records);
        Ok(Appended { first_offset, written: count, duplicates: 0 })
    }

    fn read(&self, _: &TopicPartition, _: u64, _: usize) -> Result<Vec<StoredRecord>, LogError> {
        unimplemented!("the importer does not read")
    }

    fn extent(&self, _: &TopicPartition) -> Result<Extent, LogError> {
        unimplemented!("the importer does not read")
    }

    fn offset_for_time(&self, _: &TopicPartition, _: i64) -> Result<u64, LogError> {
        unimplemented!("the importer does not read")
    }

    fn wait_for(&self, _: &TopicPartition, _: u64, _: Duration) -> Result<bool, LogError> {
        unimplemented!("the importer does not read")
    }

    fn commit_offset(&self, _: &str, _: &TopicPartition, _: u64) -> Result<(), LogError> {
        unimplemented!("the importer does not read")
    }

    fn join(&self, _: &str, _: &[&str]) -> Result<Box<dyn Member>, LogError> {
        unimplemented!("the importer does not read")
    }

    fn committed_offset(&self, _: &str, _: &TopicPartition) -> Result<Option<u64>, LogError> {
        unimplemented!("the importer does not read")
    }

    fn trim(&self, _: &TopicPartition, _: u64) -> Result<Extent, LogError> {
        unimplemented!("the importer does not trim")
    }

    fn apply_retention(&self, _: i64) -> Result<(), LogError> {
        unimplemented!("the importer does not trim")
    }

    fn set_retention(&self, _: &str, _: Option<u64>) -> Result<(), LogError> {
        unimplemented!("the importer does not trim")
    }

    fn consumers(&self, _: &TopicPartition) -> Result<Vec<(String, u64)>, LogError> {
        unimplemented!("the importer does not read")
    }

    fn forget_consumer(&self, _: &str) -> Result<bool, LogError> {
        unimplemented!("the importer does not read")
    }

    fn fence(&self) -> Result<u64, LogError> {
        unimplemented!("the importer does not fence")
    }
}

impl MemoryLog {
    /// All events of a topic, partition by partition.
    pub fn events(&self, topic: &str) -> Vec<Event> {
        let state = self.state.lock().unwrap();
        let of_topic = state.records.iter().filter(|((name, _), _)| name == topic);
        let decode = |record: &Record| {
            let event = Event::decode(record.schema, &record.payload).unwrap();
            assert_eq!(record.key, event.key());
            assert_eq!(record.event_time_ms, event.event_time_ms());
            event
        };
        of_topic.flat_map(|(_, records)| records.iter().map(decode)).collect()
    }

    /// Job events without the heartbeats, by time, then kind.
    pub fn jobs(&self) -> Vec<v1::JobEvent> {
        let mut jobs: Vec<_> = self
            .events("jobs")
            .into_iter()
            .filter_map(|event| match event {
                Event::Job(job) if job.kind() != v1::JobEventKind::Observed => Some(job),
                _ => None,
            })
            .collect();
        jobs.sort_by_key(|job| (job.envelope.as_ref().unwrap().event_time_ms, job.kind));
        jobs
    }

    /// Dead letters by line.
    pub fn dead_letters(&self) -> Vec<v1::DeadLetter> {
        let letters = self.events("dead-letters").into_iter().map(|event| match event {
            Event::DeadLetter(letter) => letter,
            other => panic!("not a dead letter: {other:?}"),
        });
        let mut letters: Vec<_> = letters.collect();
        letters.sort_by_key(|letter| letter.line);
        letters
    }

    /// Number of records of all topics.
    pub fn len(&self) -> usize {
        self.state.lock().unwrap().records.values().map(Vec::len).sum()
    }
}

/// A text as a source.
pub fn text(name: &str, content: impl Into<Vec<u8>>) -> Source {
    Source::Reader { name: name.into(), reader: Box::new(std::io::Cursor::new(content.into())) }
}

/// Imports into a new log with default options.
pub fn run(source: Source, mapping: &Mapping) -> Result<(MemoryLog, ImportSummary), ImportError> {
    let log = MemoryLog::default();
    let summary = import(source, mapping, &ImportOptions::default(), &log, &mut |_| {})?;
    Ok((log, summary))
}

/// GPU time of STARTED..ENDED pairs in GPU × ms, without steps.
pub fn gpu_ms(jobs: &[v1::JobEvent]) -> i128 {
    let mut starts = HashMap::new();
    let mut total = 0;
    for job in jobs.iter().filter(|job| job.step_id.is_none()) {
        let time_ms = job.envelope.as_ref().unwrap().event_time_ms;
        let attempt = (job.envelope.as_ref().unwrap().cluster.clone(), job.job_id.clone(), job.attempt_id);
        match job.kind() {
            v1::JobEventKind::Started => {
                starts.insert(attempt, (time_ms, job.gpus_milli.unwrap_or(0)));
            }
            v1::JobEventKind::Ended if job.attempt_id.is_some() => {
                let (start_ms, gpus_milli) = starts.remove(&attempt).expect("an end follows its start");
                total += i128::from(gpus_milli) * i128::from(time_ms - start_ms) / 1000;
            }
            _ => {}
        }
    }
    total
}

/// A file of the public traces, if they are next to the repository; otherwise the test is skipped.
pub fn trace(name: &str) -> Option<PathBuf> {
    let folder = std::env::var_os("TIDEGATE_SHARED_DATA")
        .map_or_else(|| PathBuf::from("../../../shared/data"), PathBuf::from);
    let path = Some(folder.join(name)).filter(|path| path.exists());
    if path.is_none() {
        needs::note(&format!("the public trace {name} is not in TIDEGATE_SHARED_DATA"));
    }
    path
}
