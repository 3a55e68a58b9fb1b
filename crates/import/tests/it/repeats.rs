//! Importing twice changes nothing, and a killed import is completed by the next one.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::support::{Imported, MemoryLog, text};
use tidegate_events::Event;
use tidegate_import::generate::{SacctFile, sacct};
use tidegate_import::{ImportError, ImportOptions, ImportSummary, Mapping, import};
use tidegate_log::{
    Appended, Batch, EmbeddedLog, EmbeddedOptions, EventLog, Extent, LogError, Member, StoredRecord,
    TopicConfig, TopicPartition, partition_for,
};

/// Many chunks: each partition gets more events than a chunk holds.
fn content() -> Vec<u8> {
    let mut bytes = Vec::new();
    sacct(&mut bytes, &SacctFile { days: 90, ..SacctFile::year(1, 30_000, 1024) }).unwrap();
    bytes.extend_from_slice(b"a bad row\n");
    bytes
}

fn options() -> ImportOptions {
    ImportOptions {
        topics: TopicConfig { partitions: 2, retain_ms: None, retain_bytes: None },
        ..ImportOptions::default()
    }
}

fn import_into(log: &dyn EventLog, content: &[u8]) -> Result<ImportSummary, ImportError> {
    import(text("dump.txt", content), &Mapping::load("sacct").unwrap(), &options(), log, &mut |_| {})
}

fn ids(log: &MemoryLog) -> BTreeSet<Vec<u8>> {
    log.events("jobs").iter().map(|event| event.envelope().unwrap().event_id.clone()).collect()
}

/// Fails from the given append on, like a process killed there.
struct Dying<'a> {
    log: &'a MemoryLog,
    appends_left: AtomicUsize,
}

impl EventLog for Dying<'_> {
    fn append(&self, at: &TopicPartition, batch: Batch) -> Result<Appended, LogError> {
        let alive = |left: usize| left.checked_sub(1);
        match self.appends_left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, alive) {
            Ok(_) => self.log.append(at, batch),
            Err(_) => Err(LogError::UnknownTopic("killed".into())),
        }
    }

    fn create_topic(&self, topic: &str, config: TopicConfig) -> Result<(), LogError> {
        self.log.create_topic(topic, config)
    }

    fn topics(&self) -> Result<Vec<(String, TopicConfig)>, LogError> {
        self.log.topics()
    }

    fn read(&self, at: &TopicPartition, from: u64, max_bytes: usize) -> Result<Vec<StoredRecord>, LogError> {
        self.log.read(at, from, max_bytes)
    }

    fn extent(&self, at: &TopicPartition) -> Result<Extent, LogError> {
        self.log.extent(at)
    }

    fn offset_for_time(&self, at: &TopicPartition, event_time_ms: i64) -> Result<u64, LogError> {
        self.log.offset_for_time(at, event_time_ms)
    }

    fn wait_for(&self, at: &TopicPartition, offset: u64, timeout: Duration) -> Result<bool, LogError> {
        self.log.wait_for(at, offset, timeout)
    }

    fn commit_offset(&self, group: &str, at: &TopicPartition, offset: u64) -> Result<(), LogError> {
        self.log.commit_offset(group, at, offset)
    }

    fn join(&self, group: &str, topics: &[&str]) -> Result<Box<dyn Member>, LogError> {
        self.log.join(group, topics)
    }

    fn committed_offset(&self, group: &str, at: &TopicPartition) -> Result<Option<u64>, LogError> {
        self.log.committed_offset(group, at)
    }

    fn trim(&self, at: &TopicPartition, before: u64) -> Result<Extent, LogError> {
        self.log.trim(at, before)
    }

    fn apply_retention(&self, now_ms: i64) -> Result<(), LogError> {
        self.log.apply_retention(now_ms)
    }

    fn set_retention(&self, topic: &str, retain_ms: Option<u64>) -> Result<(), LogError> {
        self.log.set_retention(topic, retain_ms)
    }

    fn consumers(&self, at: &TopicPartition) -> Result<Vec<(String, u64)>, LogError> {
        self.log.consumers(at)
    }

    fn forget_consumer(&self, group: &str) -> Result<bool, LogError> {
        self.log.forget_consumer(group)
    }

    fn fence(&self) -> Result<u64, LogError> {
        self.log.fence()
    }
}

#[test]
fn the_second_import_writes_nothing() {
    let (log, content) = (MemoryLog::default(), content());
    let first = import_into(&log, &content).unwrap();
    assert_eq!((first.events_already_present, first.events_written as usize), (0, log.count()));
    let before = log.count();
    let second = import_into(&log, &content).unwrap();
    assert_eq!((second.events_written, second.events_already_present), (0, first.events_written));
    assert_eq!(log.count(), before);
    assert_eq!(second.rows_accepted, first.rows_accepted);
}

#[test]
fn an_import_killed_at_any_append_is_completed_by_the_next() {
    let (whole, content) = (MemoryLog::default(), content());
    let undisturbed = import_into(&whole, &content).unwrap();
    for appends in 0..4 {
        let log = MemoryLog::default();
        let dying = Dying { log: &log, appends_left: AtomicUsize::new(appends) };
        assert!(matches!(import_into(&dying, &content), Err(ImportError::Log(_))));
        assert!(log.count() < whole.count());
        let present = log.count() as u64;
        let rest = import_into(&log, &content).unwrap();
        assert_eq!(
            (rest.events_already_present, rest.events_written),
            (present, undisturbed.events_written - present)
        );
        assert_eq!((ids(&log), log.count()), (ids(&whole), whole.count()));
    }
}

#[test]
fn a_longer_export_repeats_the_ids_of_a_shorter_one() {
    let content = content();
    let text = String::from_utf8(content.clone()).unwrap();
    let lines: Vec<_> = text.lines().collect();
    let (part, whole) = (MemoryLog::default(), MemoryLog::default());
    import_into(&part, lines[..lines.len() / 2].join("\n").as_bytes()).unwrap();
    import_into(&whole, &content).unwrap();
    let jobs = |log: &MemoryLog| -> BTreeSet<_> {
        log.jobs().into_iter().map(|job| job.envelope.unwrap().event_id).collect()
    };
    assert!(jobs(&part).is_subset(&jobs(&whole)));
}

#[test]
fn events_of_a_chunk_are_numbered_and_keys_stay_together() {
    let log = MemoryLog::default();
    let bytes = content();
    let text = String::from_utf8(bytes).unwrap();
    let head = text.lines().take(500).collect::<Vec<_>>().join("\n");
    import_into(&log, head.as_bytes()).unwrap();
    let events = log.events("jobs");
    let mut next = [0_u64; 2];
    for event in &events {
        let envelope = event.envelope().unwrap();
        assert_eq!((envelope.source.as_str(), envelope.epoch), ("import/sacct", 0));
        assert_eq!(envelope.observed_time_ms, envelope.event_time_ms);
    }
    let by_key = |event: &&Event| !event.key().ends_with('/');
    for event in events.iter().filter(by_key) {
        let partition = partition_for(event.key().as_bytes(), 2) as usize;
        assert_eq!(event.envelope().unwrap().seq, next[partition]);
        next[partition] += 1;
    }
}

#[test]
fn every_partition_gets_the_observed_time_of_the_cluster() {
    let log = MemoryLog::default();
    let rows = "job_id,gpus,submit_time,start_time,end_time,cluster\n1,1,1704067200,1704067300,1704067400,A\n2,1,1704067200,,,B\n";
    let mapping = Mapping::load("jobs_csv").unwrap();
    let summary = import(text("x", rows), &mapping, &options(), &log, &mut |_| {}).unwrap();
    let observed: Vec<_> =
        log.events("jobs").into_iter().filter(|event| event.key().ends_with('/')).collect();
    assert_eq!(observed.len(), 2 * 2);
    for event in observed {
        let envelope = event.envelope().unwrap();
        assert_eq!(envelope.event_time_ms, summary.clusters[&envelope.cluster].1);
    }
    assert_eq!(summary.clusters["A"], (1_704_067_200_000, 1_704_067_400_000));
}

#[test]
fn a_reopened_embedded_log_recognises_a_repeated_import() {
    let (folder, content) = (tempfile::tempdir().unwrap(), content());
    let open = || EmbeddedLog::open(folder.path(), EmbeddedOptions::default()).unwrap();
    let first = import_into(&open(), &content).unwrap();
    let again = import_into(&open(), &content).unwrap();
    assert_eq!((again.events_written, again.events_already_present), (0, first.events_written));
    let log = open();
    let ends =
        (0..2).map(|partition| log.extent(&TopicPartition { topic: "jobs".into(), partition }).unwrap().end);
    assert_eq!(ends.sum::<u64>() + first.rejected(), first.events_written);
}
