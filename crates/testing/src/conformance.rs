//! Conformance suite: what every [`EventLog`] must do, as tests.
//!
//! An implementation provides a [`Harness`] and calls
//! [`conformance_suite!`](crate::conformance_suite) in a test file. The cases require what the
//! trait promises and no more: offsets grow but may have gaps (transaction markers take some on
//! Kafka), and a trim may cut exactly or at the batch before.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use bytes::Bytes;

use tidegate_log::snapshot::{Position, SnapshotStore};
use tidegate_log::tail::Cursor;
use tidegate_log::{
    Appended, Batch, EventLog, LogError, MAX_BATCH_BYTES, MAX_RECORD_BYTES, Member, Producer, RebalanceEvent,
    Record, StoredRecord, TopicConfig, TopicPartition,
};

/// Long enough for a slow machine; no case waits that long unless it fails.
const PATIENCE: Duration = Duration::from_secs(30);

/// Gives the suite a log to test, empty as far as [`Harness::topic`] names go.
pub trait Harness {
    /// A handle to the log. Two handles write to the same log and are fenced apart.
    fn handle(&self) -> Arc<dyn EventLog>;

    /// Closes the log, as far as the implementation can, and opens it again.
    fn reopen(&mut self);

    /// A topic name that no other case uses.
    fn topic(&self, name: &str) -> String {
        name.into()
    }

    /// Whether `apply_retention` drops at once, or leaves it to a broker that does so in its own
    /// time.
    fn retention_is_immediate(&self) -> bool {
        true
    }
}

/// Makes a `#[test]` of each case; the argument is an expression that returns a new [`Harness`].
#[macro_export]
macro_rules! conformance_suite {
    ($harness:expr) => {
        $crate::conformance_suite!($harness,
            appended_records_are_read_back_in_order, reads_stop_at_max_bytes, topics_are_listed_and_checked,
            unknown_places_are_refused, a_batch_becomes_readable_as_a_whole, appending_again_writes_nothing,
            an_overlap_writes_only_what_is_new, gaps_and_stale_epochs_are_refused, progress_survives_reopening,
            offsets_are_found_by_time, waiting_ends_when_records_come, consumer_offsets_are_kept,
            consumers_hold_until_they_are_forgotten, retention_can_be_changed, snapshots_fit_the_log_that_they_are_of,
            trimmed_records_are_refused, retention_spares_what_groups_need,
            retention_goes_by_when_records_were_written, producers_keep_their_order, older_generations_are_fenced,
            limits_are_enforced, one_member_holds_all_that_it_asks_for
        );
    };
    ($harness:expr, $($case:ident),*) => {
        $(#[test]
        fn $case() {
            $crate::conformance::$case(&mut $harness);
        })*
    };
}

/// A record whose content holds its producer and number.
pub fn record(source: &str, seq: u64) -> Record {
    Record {
        key: Bytes::from(format!("cluster/{source}")),
        schema: 1 + (seq % 3) as u32,
        event_time_ms: 1_000 * seq as i64,
        payload: Bytes::from(format!("{source}:{seq}")),
    }
}

/// Records `first_seq..first_seq + count` of a source's life.
pub fn batch(source: &str, epoch: u64, first_seq: u64, count: u64) -> Batch {
    let records = (first_seq..first_seq + count).map(|seq| record(source, seq)).collect();
    Batch { producer: Producer { source: source.into(), epoch }, first_seq, records }
}

/// Everything readable, following the offsets; fails if they do not grow.
pub fn read_all(log: &dyn EventLog, at: &TopicPartition) -> Vec<StoredRecord> {
    let mut next = log.extent(at).unwrap().start;
    let mut all: Vec<StoredRecord> = Vec::new();
    loop {
        let records = log.read(at, next, 1 << 20).unwrap();
        let Some(last) = records.last() else { return all };
        assert!(records[0].offset >= next && records.is_sorted_by(|a, b| a.offset < b.offset));
        next = last.offset + 1;
        all.extend(records);
    }
}

fn topic_of(harness: &dyn Harness, name: &str, config: TopicConfig) -> (Arc<dyn EventLog>, TopicPartition) {
    let (log, topic) = (harness.handle(), harness.topic(name));
    log.create_topic(&topic, config).unwrap();
    (log, TopicPartition { topic, partition: 0 })
}

fn one_partition(harness: &dyn Harness, name: &str) -> (Arc<dyn EventLog>, TopicPartition) {
    topic_of(harness, name, TopicConfig { partitions: 1, retain_ms: None, retain_bytes: None })
}

fn payloads(records: &[StoredRecord]) -> Vec<String> {
    records.iter().map(|stored| String::from_utf8(stored.record.payload.to_vec()).unwrap()).collect()
}

fn expected(source: &str, seqs: std::ops::Range<u64>) -> Vec<String> {
    seqs.map(|seq| format!("{source}:{seq}")).collect()
}

/// Reads return the appended records, in order, from any offset.
pub fn appended_records_are_read_back_in_order(harness: &mut dyn Harness) {
    let (log, at) = one_partition(harness, "read-back");
    assert_eq!(log.read(&at, 0, 1024).unwrap(), []);
    let appended = log.append(&at, batch("a", 0, 0, 500)).unwrap();
    assert_eq!((appended.written, appended.duplicates), (500, 0));
    let second = log.append(&at, batch("a", 0, 500, 1)).unwrap();
    assert!(second.first_offset >= appended.first_offset + 500);

    let all = read_all(&*log, &at);
    assert_eq!(all[0].offset, appended.first_offset);
    assert_eq!(all[500].offset, second.first_offset);
    let wanted: Vec<_> = (0..501).map(|seq| record("a", seq)).collect();
    assert_eq!(all.iter().map(|stored| stored.record.clone()).collect::<Vec<_>>(), wanted);
    assert!(log.extent(&at).unwrap().end > all[500].offset);

    let middle = log.read(&at, all[250].offset, 1 << 20).unwrap();
    assert_eq!(middle[..], all[250..250 + middle.len()]);
}

/// A read stops at `max_bytes` of payload, but returns at least one record.
pub fn reads_stop_at_max_bytes(harness: &mut dyn Harness) {
    let (log, at) = one_partition(harness, "max-bytes");
    let mut wanted = batch("a", 0, 0, 10);
    wanted.records.iter_mut().for_each(|record| record.payload = Bytes::from(vec![7; 100]));
    let first = log.append(&at, wanted).unwrap().first_offset;
    assert_eq!(log.read(&at, first, 350).unwrap().len(), 3);
    assert_eq!(log.read(&at, first + 3, 200).unwrap()[0].offset, first + 3);
    assert_eq!(
        log.read(&at, first + 5, 0).unwrap().len(),
        1,
        "at least one record, so that a reader gets on"
    );
}

/// Topics are listed by name; creating one again checks its layout.
pub fn topics_are_listed_and_checked(harness: &mut dyn Harness) {
    let config = TopicConfig { partitions: 3, retain_ms: Some(60_000), retain_bytes: None };
    let (log, at) = topic_of(harness, "topics", config);
    log.create_topic(&at.topic, config).expect("creating it again with the same layout is fine");
    assert!(log.topics().unwrap().contains(&(at.topic.clone(), config)));
    let other = log.create_topic(&at.topic, TopicConfig { partitions: 4, ..config });
    assert!(matches!(other, Err(LogError::TopicMismatch { existing: 3, wanted: 4, .. })), "{other:?}");
    for name in ["", "a/b", "..", &"x".repeat(500)] {
        assert!(matches!(log.create_topic(name, config), Err(LogError::InvalidTopic { .. })), "{name:?}");
    }
}

/// Calls for a topic or partition that does not exist are refused.
pub fn unknown_places_are_refused(harness: &mut dyn Harness) {
    let (log, at) = one_partition(harness, "known");
    let nowhere = TopicPartition { topic: harness.topic("unknown"), partition: 0 };
    assert!(matches!(log.append(&nowhere, batch("a", 0, 0, 1)), Err(LogError::UnknownTopic(_))));
    assert!(matches!(log.read(&nowhere, 0, 1), Err(LogError::UnknownTopic(_))));
    let beyond = TopicPartition { partition: 1, ..at };
    assert!(matches!(
        log.append(&beyond, batch("a", 0, 0, 1)),
        Err(LogError::UnknownPartition { partitions: 1, .. })
    ));
    assert!(matches!(log.extent(&beyond), Err(LogError::UnknownPartition { .. })));
}

/// A concurrent reader sees all of a batch or nothing of it.
pub fn a_batch_becomes_readable_as_a_whole(harness: &mut dyn Harness) {
    let (log, at) = one_partition(harness, "atomic");
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            for i in 0..40 {
                log.append(&at, batch("a", 0, i * 25, 25)).unwrap();
            }
            done.store(true, Ordering::SeqCst);
        });
        loop {
            let last_look = done.load(Ordering::SeqCst);
            let seen = read_all(&*log, &at).len();
            assert_eq!(seen % 25, 0, "a reader saw part of a batch");
            if last_look {
                assert_eq!(seen, 1000);
                break;
            }
        }
    });
}

/// A repeated append is reported as duplicates and writes nothing.
pub fn appending_again_writes_nothing(harness: &mut dyn Harness) {
    let (log, at) = one_partition(harness, "again");
    log.append(&at, batch("a", 7, 0, 20)).unwrap();
    let end = log.extent(&at).unwrap().end;
    let again = log.append(&at, batch("a", 7, 0, 20)).unwrap();
    assert_eq!(again, Appended { first_offset: end, written: 0, duplicates: 20 });
    assert_eq!(log.append(&at, batch("a", 7, 5, 3)).unwrap().duplicates, 3);
    assert_eq!(payloads(&read_all(&*log, &at)), expected("a", 0..20));
}

/// Of a batch that overlaps an earlier one, only the new records are written.
pub fn an_overlap_writes_only_what_is_new(harness: &mut dyn Harness) {
    let (log, at) = one_partition(harness, "overlap");
    log.append(&at, batch("a", 0, 0, 20)).unwrap();
    let overlap = log.append(&at, batch("a", 0, 15, 10)).unwrap();
    assert_eq!((overlap.written, overlap.duplicates), (5, 5));
    let all = read_all(&*log, &at);
    assert_eq!(payloads(&all), expected("a", 0..25));
    assert_eq!(all[20].offset, overlap.first_offset);
}

/// Gaps in the sequence numbers and epochs older than the newest are refused.
pub fn gaps_and_stale_epochs_are_refused(harness: &mut dyn Harness) {
    let (log, at) = one_partition(harness, "sequence");
    log.append(&at, batch("a", 1, 0, 10)).unwrap();
    let gap = log.append(&at, batch("a", 1, 11, 1));
    assert!(matches!(gap, Err(LogError::SequenceGap { expected: 10, got: 11, .. })), "{gap:?}");
    let stale = log.append(&at, batch("a", 0, 0, 1));
    assert!(matches!(stale, Err(LogError::StaleEpoch { newest: 1, got: 0, .. })), "{stale:?}");
    let late_start = log.append(&at, batch("a", 2, 3, 1));
    assert!(matches!(late_start, Err(LogError::SequenceGap { expected: 0, got: 3, .. })), "{late_start:?}");
    assert_eq!(read_all(&*log, &at).len(), 10, "refused appends leave nothing behind");
    log.append(&at, batch("a", 2, 0, 1)).expect("a new epoch numbers from 0");
    log.append(&at, batch("b", 0, 0, 1)).expect("sources are independent");
}

/// Records, producers' progress and committed offsets survive a restart.
pub fn progress_survives_reopening(harness: &mut dyn Harness) {
    let (log, at) = one_partition(harness, "reopen");
    log.append(&at, batch("a", 4, 0, 30)).unwrap();
    log.commit_offset("sink", &at, 17).unwrap();
    let before = read_all(&*log, &at);
    drop(log);
    harness.reopen();
    let log = harness.handle();
    assert_eq!(read_all(&*log, &at), before);
    assert_eq!(log.committed_offset("sink", &at).unwrap(), Some(17));
    assert_eq!(log.append(&at, batch("a", 4, 0, 31)).unwrap().duplicates, 30);
    assert!(matches!(log.append(&at, batch("a", 3, 0, 1)), Err(LogError::StaleEpoch { .. })));
    assert_eq!(payloads(&read_all(&*log, &at)), expected("a", 0..31));
}

/// `offset_for_time` finds the first record that is not older.
pub fn offsets_are_found_by_time(harness: &mut dyn Harness) {
    let (log, at) = one_partition(harness, "time");
    assert_eq!(log.offset_for_time(&at, 0).unwrap(), log.extent(&at).unwrap().end);
    for i in 0..10 {
        log.append(&at, batch("a", 0, i * 10, 10)).unwrap();
    }
    let all = read_all(&*log, &at);
    for wanted in [0, 1, 37, 99] {
        assert_eq!(log.offset_for_time(&at, 1_000 * wanted as i64).unwrap(), all[wanted].offset);
        assert_eq!(log.offset_for_time(&at, 1_000 * wanted as i64 - 1).unwrap(), all[wanted].offset);
    }
    assert_eq!(log.offset_for_time(&at, 99_001).unwrap(), log.extent(&at).unwrap().end);
    assert_eq!(log.offset_for_time(&at, i64::MIN).unwrap(), all[0].offset);
}

/// `wait_for` returns when a record arrives or the time is up.
pub fn waiting_ends_when_records_come(harness: &mut dyn Harness) {
    let (log, at) = one_partition(harness, "wait");
    let end = log.extent(&at).unwrap().end;
    assert!(!log.wait_for(&at, end, Duration::from_millis(10)).unwrap());
    thread::scope(|scope| {
        let began = Instant::now();
        let waiter = scope.spawn(|| log.wait_for(&at, end, PATIENCE).unwrap());
        log.append(&at, batch("a", 0, 0, 1)).unwrap();
        assert!(waiter.join().unwrap());
        assert!(began.elapsed() < PATIENCE);
    });
    assert!(log.wait_for(&at, end, Duration::ZERO).unwrap());
}

/// Each group's newest committed offset is kept.
pub fn consumer_offsets_are_kept(harness: &mut dyn Harness) {
    let (log, at) = one_partition(harness, "groups");
    log.append(&at, batch("a", 0, 0, 10)).unwrap();
    assert_eq!(log.committed_offset("g", &at).unwrap(), None);
    log.commit_offset("g", &at, 3).unwrap();
    log.commit_offset("other", &at, 9).unwrap();
    log.commit_offset("g", &at, 5).unwrap();
    assert_eq!(log.committed_offset("g", &at).unwrap(), Some(5));
    assert_eq!(log.committed_offset("other", &at).unwrap(), Some(9));
}

/// Consumers are listed with their offsets, hold retention back, and let go once forgotten.
pub fn consumers_hold_until_they_are_forgotten(harness: &mut dyn Harness) {
    let config = TopicConfig { partitions: 1, retain_ms: Some(10_000), retain_bytes: None };
    let (log, at) = topic_of(harness, "consumers", config);
    let (gone, here) = (harness.topic("gone"), harness.topic("here"));
    assert_eq!(log.consumers(&at).unwrap(), []);
    let starts: Vec<_> =
        (0..3).map(|i| log.append(&at, batch("a", 0, i * 10, 10)).unwrap().first_offset).collect();
    let end = log.extent(&at).unwrap().end;
    log.commit_offset(&gone, &at, starts[1]).unwrap();
    log.commit_offset(&here, &at, end).unwrap();
    let mut expected = vec![(gone.clone(), starts[1]), (here.clone(), end)];
    expected.sort();
    let mut consumers = log.consumers(&at).unwrap();
    consumers.sort();
    assert_eq!(consumers, expected);
    log.apply_retention(NOW_MS).unwrap();
    log.apply_retention(NOW_MS + 20_000).unwrap();
    assert!(log.extent(&at).unwrap().start <= starts[1], "dropped what a consumer has not read");
    assert!(log.forget_consumer(&gone).unwrap());
    assert!(!log.forget_consumer(&gone).unwrap(), "nothing is left to forget");
    assert_eq!(log.committed_offset(&gone, &at).unwrap(), None);
    assert_eq!(log.consumers(&at).unwrap(), [(here, end)]);
    log.apply_retention(NOW_MS + 40_000).unwrap();
    if harness.retention_is_immediate() {
        assert!(log.extent(&at).unwrap().start > starts[1], "nobody needs it any more");
    }
}

/// How long a topic keeps records can be changed, for this handle and the next.
pub fn retention_can_be_changed(harness: &mut dyn Harness) {
    let config = TopicConfig { partitions: 1, retain_ms: None, retain_bytes: None };
    let (log, at) = topic_of(harness, "retention-changed", config);
    let retain_ms = |log: &dyn EventLog| {
        log.topics().unwrap().into_iter().find(|(topic, _)| *topic == at.topic).unwrap().1.retain_ms
    };
    assert_eq!(retain_ms(&*log), None);
    for wanted in [Some(10_000), Some(20_000), None] {
        log.set_retention(&at.topic, wanted).unwrap();
        assert_eq!(retain_ms(&*log), wanted);
        assert_eq!(retain_ms(&*harness.handle()), wanted);
    }
    log.set_retention(&at.topic, Some(30_000)).unwrap();
    drop(log);
    harness.reopen();
    assert_eq!(retain_ms(&*harness.handle()), Some(30_000));
    let unknown = harness.handle().set_retention("no-such-topic", None);
    assert!(matches!(unknown, Err(LogError::UnknownTopic(_))), "{unknown:?}");
}

/// A snapshot stands at offsets of this log and of no other, whatever gaps the log has.
pub fn snapshots_fit_the_log_that_they_are_of(harness: &mut dyn Harness) {
    let (log, at) = one_partition(harness, "snapshots");
    let folder = std::env::temp_dir().join(format!("tidegate-{}-{}", std::process::id(), at.topic));
    let mut store = SnapshotStore::new(&folder, "test", "", 1);
    log.append(&at, batch("a", 0, 0, 10)).unwrap();
    log.append(&at, batch("b", 0, 0, 10)).unwrap();
    let mut cursor = Cursor::at_start(&*log, at.clone()).unwrap();
    cursor.read(&*log, 1 << 20).unwrap();
    store.save(vec![Position::of(&cursor, &*log).unwrap()], b"twenty", NOW_MS).unwrap();
    log.append(&at, batch("a", 0, 10, 5)).unwrap();
    let decode = |state: &[u8]| Ok(state.to_vec());
    let restored = store.restore(&*log, decode).unwrap().restored.unwrap();
    assert_eq!(restored.state, b"twenty");
    let mut cursor = restored.positions[0].cursor();
    cursor.refresh(&*log).unwrap();
    assert_eq!(payloads(&cursor.read(&*log, 1 << 20).unwrap()), expected("a", 10..15));
    // Another log has other records at these offsets.
    let (other, elsewhere) = one_partition(harness, "snapshots-elsewhere");
    for seq in 0..30 {
        other.append(&elsewhere, batch("c", 0, seq, 1)).unwrap();
    }
    let moved = Position { topic: elsewhere.topic.clone(), ..restored.positions[0].clone() };
    store.save(vec![moved], b"foreign", NOW_MS).unwrap();
    let found = store.restore(&*log, decode).unwrap();
    assert_eq!(found.restored.unwrap().state, b"twenty");
    assert!(found.skipped[0].1.contains("another log"), "{:?}", found.skipped);
    std::fs::remove_dir_all(&folder).unwrap();
}

/// Reads below the start are refused after a trim; producers are not forgotten.
pub fn trimmed_records_are_refused(harness: &mut dyn Harness) {
    let (log, at) = one_partition(harness, "trim");
    let starts: Vec<_> =
        (0..5).map(|i| log.append(&at, batch("a", 0, i * 10, 10)).unwrap().first_offset).collect();
    let extent = log.trim(&at, starts[2]).unwrap();
    assert_eq!(extent, log.extent(&at).unwrap());
    assert_eq!(extent.start, starts[2]);
    let below = log.read(&at, starts[2] - 1, 1);
    assert!(
        matches!(below, Err(LogError::OffsetOutOfRange { start, .. }) if start == starts[2]),
        "{below:?}"
    );
    assert!(matches!(log.read(&at, extent.end + 1, 1), Err(LogError::OffsetOutOfRange { .. })));
    let inside = log.trim(&at, starts[3] + 4).unwrap().start;
    assert!((starts[3]..=starts[3] + 4).contains(&inside));
    assert_eq!(log.trim(&at, 0).unwrap().start, inside, "a start never goes back");
    assert_eq!(payloads(&read_all(&*log, &at)).last().unwrap(), "a:49");
    assert_eq!(log.append(&at, batch("a", 0, 0, 51)).unwrap().duplicates, 50, "trimming forgets no producer");
    let all_gone = log.trim(&at, u64::MAX).unwrap();
    assert_eq!(all_gone.start, all_gone.end);
    log.append(&at, batch("a", 0, 51, 2)).unwrap();
    drop(log);
    harness.reopen();
    assert_eq!(payloads(&read_all(&*harness.handle(), &at)), expected("a", 51..53));
}

/// When the cases of retention take place, ms since the epoch.
const NOW_MS: i64 = 1_800_000_000_000;

/// Retention drops nothing that a committed group has not passed.
pub fn retention_spares_what_groups_need(harness: &mut dyn Harness) {
    let config = TopicConfig { partitions: 1, retain_ms: Some(10_000), retain_bytes: None };
    let (log, at) = topic_of(harness, "retention", config);
    let first = log.extent(&at).unwrap().start;
    // A batch each five seconds, each seen by a run of retention: at 20 s the first three are ten
    // seconds old.
    let starts: Vec<_> = (0..5)
        .map(|i| {
            log.commit_offset("slow", &at, first).unwrap();
            let start = log.append(&at, batch("a", 0, i * 10, 10)).unwrap().first_offset;
            log.apply_retention(NOW_MS + i as i64 * 5_000).unwrap();
            start
        })
        .collect();
    assert_eq!(log.extent(&at).unwrap().start, first, "dropped what the slow group has not read");
    log.commit_offset("fast", &at, starts[4]).unwrap();
    log.commit_offset("slow", &at, starts[1] + 5).unwrap();
    log.apply_retention(NOW_MS + 20_000).unwrap();
    assert!(log.extent(&at).unwrap().start <= starts[1] + 5, "dropped what the slow group has not read");
    log.commit_offset("slow", &at, starts[4]).unwrap();
    log.apply_retention(NOW_MS + 20_000).unwrap();
    assert!(log.extent(&at).unwrap().start <= starts[3], "dropped a batch that is young enough");
    if harness.retention_is_immediate() {
        assert_eq!(log.extent(&at).unwrap().start, starts[3]);
        let sized = TopicConfig { partitions: 1, retain_ms: None, retain_bytes: Some(1) };
        let (log, at) = topic_of(harness, "retention-bytes", sized);
        log.append(&at, batch("a", 0, 0, 10)).unwrap();
        log.apply_retention(NOW_MS).unwrap();
        let extent = log.extent(&at).unwrap();
        assert_eq!(extent.start, extent.end);
    }
}

/// A clock that is wrong somewhere dates a record centuries ahead or into 1970: neither may move
/// retention.
pub fn retention_goes_by_when_records_were_written(harness: &mut dyn Harness) {
    let config = TopicConfig { partitions: 1, retain_ms: Some(10_000), retain_bytes: None };
    let (log, at) = topic_of(harness, "retention-claims", config);
    let of = |first_seq: u64, event_time_ms: i64| {
        let mut batch = batch("a", 0, first_seq, 10);
        batch.records.iter_mut().for_each(|record| record.event_time_ms = NOW_MS + first_seq as i64);
        batch.records[3].event_time_ms = event_time_ms;
        batch
    };
    let centuries = 300 * 365 * 86_400_000;
    log.append(&at, of(0, NOW_MS + centuries)).unwrap();
    log.append(&at, of(10, 0)).unwrap();
    log.apply_retention(NOW_MS).unwrap();
    let second = log.append(&at, of(20, -1)).unwrap().first_offset;
    log.apply_retention(NOW_MS + 9_000).unwrap();
    assert_eq!(payloads(&read_all(&*log, &at)), expected("a", 0..30), "dropped what was written just now");
    drop(log);
    harness.reopen();
    let log = harness.handle();
    log.apply_retention(NOW_MS + 10_000).unwrap();
    let start = log.extent(&at).unwrap().start;
    assert!(start <= second, "dropped what was written a second ago");
    log.apply_retention(NOW_MS + 19_000).unwrap();
    let last = log.extent(&at).unwrap();
    assert!(last.start >= start, "{last:?}");
    if harness.retention_is_immediate() {
        assert_eq!(start, second, "one record of the far future keeps the others");
        assert_eq!(last.start, last.end);
    }
}

/// Records of each concurrent producer stay in its order.
pub fn producers_keep_their_order(harness: &mut dyn Harness) {
    let (log, at) = one_partition(harness, "producers");
    thread::scope(|scope| {
        for producer in 0..8 {
            let (log, at) = (&log, &at);
            scope.spawn(move || {
                let source = format!("p{producer}");
                for i in 0..50 {
                    log.append(at, batch(&source, 0, i * 3, 3)).unwrap();
                }
            });
        }
    });
    let all = payloads(&read_all(&*log, &at));
    assert_eq!(all.len(), 8 * 150);
    for producer in 0..8 {
        let source = format!("p{producer}");
        let own: Vec<_> = all.iter().filter(|p| p.starts_with(&format!("{source}:"))).cloned().collect();
        assert_eq!(own, expected(&source, 0..150));
    }
}

/// After a fence, appends through older handles are refused, also after a restart.
pub fn older_generations_are_fenced(harness: &mut dyn Harness) {
    let (old, at) = one_partition(harness, "fence");
    let new = harness.handle();
    old.append(&at, batch("a", 0, 0, 1)).unwrap();
    let generation = new.fence().unwrap();
    let refused = old.append(&at, batch("a", 0, 1, 1));
    assert!(matches!(refused, Err(LogError::Fenced { current, .. }) if current == generation), "{refused:?}");
    new.append(&at, batch("a", 0, 1, 1)).expect("who fenced may write");
    assert_eq!(read_all(&*old, &at).len(), 2, "reading is not fenced");
    assert!(old.fence().unwrap() > generation);
    old.append(&at, batch("a", 0, 2, 1)).expect("the newest generation may write");
    assert!(matches!(new.append(&at, batch("a", 0, 3, 1)), Err(LogError::Fenced { .. })));
    drop((old, new));
    harness.reopen();
    assert!(harness.handle().fence().unwrap() > generation + 1, "generations never repeat");
}

/// Records, batches and source names over their limits are refused.
pub fn limits_are_enforced(harness: &mut dyn Harness) {
    let (log, at) = one_partition(harness, "limits");
    let mut large = batch("a", 0, 0, 1);
    large.records[0].payload = Bytes::from(vec![1; MAX_RECORD_BYTES - large.records[0].key.len()]);
    let payload = large.records[0].payload.clone();
    log.append(&at, large.clone()).expect("a record of the largest size is fine");
    assert_eq!(log.read(&at, log.extent(&at).unwrap().start, 1).unwrap()[0].record.payload, payload);
    large.records[0].payload = Bytes::from(vec![1; MAX_RECORD_BYTES + 1]);
    assert!(matches!(log.append(&at, large), Err(LogError::RecordTooLarge { .. })));
    let mut many = batch("a", 0, 1, 1 + (MAX_BATCH_BYTES / payload.len()) as u64);
    many.records.iter_mut().for_each(|record| record.payload = payload.clone());
    assert!(matches!(log.append(&at, many), Err(LogError::BatchTooLarge { .. })));
    assert!(matches!(log.append(&at, batch("", 0, 0, 1)), Err(LogError::InvalidSource { .. })));
    assert_eq!(log.append(&at, batch("a", 0, 1, 0)).unwrap().written, 0, "an empty batch is no harm");
}

/// The only member of a group is assigned all partitions of its topics.
pub fn one_member_holds_all_that_it_asks_for(harness: &mut dyn Harness) {
    let three = TopicConfig { partitions: 3, retain_ms: None, retain_bytes: None };
    let (log, at) = topic_of(harness, "shared", three);
    let (_, single) = one_partition(harness, "shared-too");
    one_partition(harness, "not-shared");
    let mut all: Vec<_> = (0..3).map(|partition| TopicPartition { partition, ..at.clone() }).collect();
    all.push(single.clone());

    let gains_all = |member: &mut dyn Member| {
        let (began, mut gained) = (Instant::now(), Vec::new());
        while gained.len() < all.len() {
            match member.poll(Duration::from_millis(100)).unwrap() {
                Some(RebalanceEvent::Assigned(more)) => gained.extend(more),
                Some(other) => panic!("{other:?}"),
                None => assert!(began.elapsed() < PATIENCE, "only {gained:?}"),
            }
        }
        gained.sort_unstable();
        assert_eq!(gained, all);
    };
    let mut member = log.join("readers", &[&at.topic, &single.topic]).unwrap();
    gains_all(&mut *member);
    assert!(member.rebalances() >= 1);
    let began = Instant::now();
    assert_eq!(member.poll(Duration::from_millis(20)).unwrap(), None);
    assert!(began.elapsed() < PATIENCE, "a poll ends when its time is over");
    log.append(&at, batch("a", 0, 0, 5)).unwrap();
    member.commit(&[(at.clone(), 3), (single.clone(), 0)]).unwrap();
    member.commit(&[(at.clone(), 4)]).unwrap();
    let began = Instant::now();
    let committed = |at| log.committed_offset("readers", at).unwrap();
    while (committed(&at), committed(&single)) != (Some(4), Some(0)) {
        assert_eq!(member.poll(Duration::from_millis(20)).unwrap(), None);
        let now = (committed(&at), committed(&single));
        assert!(began.elapsed() < PATIENCE, "commits are heard within moments, not {now:?}");
    }
    drop(member);
    gains_all(&mut *log.join("readers", &[&at.topic, &single.topic]).unwrap());
    log.commit_offset("readers", &at, 5).expect("a group without members takes anybody's word");
    assert_eq!(log.committed_offset("readers", &at).unwrap(), Some(5));
}
