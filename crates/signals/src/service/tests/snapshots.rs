//! A start from a snapshot gives the same bytes as one that never stopped, and as one from the
//! beginning of the log; it reads what came after the snapshot and no more.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock};

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use tidegate_events::{Event, SchemaId};
use tidegate_log::snapshot::{SnapshotStore, stored};

use super::super::*;
use super::{append_all, log_with_all_topics};
use crate::reorder::tests::{NOW_MS, input_where};

const GROUP: &str = "tidegate-signals";
/// The committed snapshot of version 3, taken at half of [`history`].
const FIXTURE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/signals-v3.snapshot");

/// A job of 16 ranks with a straggler, device samples, a fault and an end, in the order in which
/// time passed.
fn history() -> Vec<Event> {
    let slow = |step: u64| if (100..200).contains(&step) { 1.25 } else { 1.0 };
    let mut events = input_where(300, &slow).concat();
    events.sort_by_key(|event| (ready_ms(event), event.envelope().unwrap().event_id.clone()));
    events
}

/// When an event reaches the log: steps at their end, samples after ten seconds.
fn ready_ms(event: &Event) -> i64 {
    event.event_time_ms()
        + match event {
            Event::Step(step) => step.duration_us as i64 / 1_000,
            Event::GpuSamples(_) => 9_000,
            _ => 0,
        }
}

struct Site {
    folder: tempfile::TempDir,
    log: Arc<dyn EventLog>,
    appended: u64,
}

impl Site {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let log = log_with_all_topics(&folder.path().join("log"), Some(1));
        Self { folder, log: Arc::new(log), appended: 0 }
    }

    fn append(&mut self, events: &[Event]) {
        append_all(self.log.as_ref(), &format!("test#{}", self.appended), events);
        self.appended += 1;
    }

    fn snapshots(&self) -> PathBuf {
        self.folder.path().join("snapshots")
    }

    fn open(&self) -> SignalService {
        SignalService::with_snapshots(self.log.clone(), &self.snapshots(), GROUP).unwrap()
    }

    /// What was published, partition by partition, in order.
    fn output(&self) -> Vec<Vec<(Vec<u8>, Vec<u8>)>> {
        let mut output = Vec::new();
        for topic in OUTPUT_TOPICS.map(SchemaId::topic) {
            for partition in 0..2 {
                let at = TopicPartition { topic: topic.into(), partition };
                let mut cursor = Cursor::at_start(self.log.as_ref(), at).unwrap();
                let records = cursor.read(self.log.as_ref(), usize::MAX).unwrap();
                let bytes = |stored: tidegate_log::StoredRecord| {
                    (stored.record.key.to_vec(), stored.record.payload.to_vec())
                };
                output.push(records.into_iter().map(bytes).collect());
            }
        }
        output
    }
}

/// The same in no order: a run from the beginning decides more at a time.
fn in_no_order(output: Vec<Vec<(Vec<u8>, Vec<u8>)>>) -> Vec<Vec<(Vec<u8>, Vec<u8>)>> {
    let sorted = |mut records: Vec<(Vec<u8>, Vec<u8>)>| {
        records.sort_unstable();
        records
    };
    output.into_iter().map(sorted).collect()
}

fn catch_up(service: &mut SignalService) -> ServiceStats {
    service.catch_up(RunMode::Live, NOW_MS).unwrap()
}

#[test]
fn restarts_at_random_cuts_change_no_byte() {
    let events = history();
    let mut all = Site::new();
    all.append(&events);
    catch_up(&mut SignalService::new(all.log.clone()).unwrap());
    assert!(all.output().iter().map(Vec::len).sum::<usize>() > 3, "the history has something to find");
    for seed in 0..5 {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let (mut restarted, mut alive) = (Site::new(), Site::new());
        let mut service = alive.open();
        let mut next = 0;
        while next < events.len() {
            let end = (next + random.random_range(1..=events.len() / 4)).min(events.len());
            let piece = &events[next..end];
            restarted.append(piece);
            alive.append(piece);
            catch_up(&mut service);
            let mut life = restarted.open();
            let stats = catch_up(&mut life);
            // Costs are counted: a start reads what was appended since the snapshot, not the log.
            assert_eq!(stats.read, piece.len() as u64, "seed {seed}, events {next}..{end}");
            assert_eq!(stats.counts.late, 0);
            life.save(NOW_MS).unwrap();
            next = end;
        }
        assert_eq!(restarted.output(), alive.output(), "seed {seed}");
        assert_eq!(in_no_order(restarted.output()), in_no_order(all.output()), "seed {seed}");
        assert_eq!(stored(&restarted.snapshots()).unwrap().len(), 2, "two are kept");
        assert_eq!(catch_up(&mut restarted.open()).read, 0);
    }
}

#[test]
fn a_snapshot_within_a_long_catch_up_counts_too() {
    let mut site = Site::new();
    let events = history();
    site.append(&events);
    let mut service = site.open().saving_every(std::time::Duration::ZERO);
    let whole = catch_up(&mut service);
    assert!(whole.saved > 1, "it saves while it reads");
    let expected = site.output();
    drop(service);
    // Killed before the last snapshot: the one before it gives the same.
    let newest = SnapshotFiles::of(&site).0.pop().unwrap();
    std::fs::remove_file(newest).unwrap();
    let again = catch_up(&mut site.open());
    assert!(again.read < whole.read && again.written == 0, "{again:?}");
    assert_eq!(site.output(), expected);
}

#[test]
fn a_replay_leaves_the_state_of_a_live_run() {
    let events = history();
    let (first, rest) = events.split_at(events.len() / 2);
    let output = |mode: RunMode| {
        let mut site = Site::new();
        site.append(first);
        let mut service = site.open();
        service.catch_up(mode, NOW_MS).unwrap();
        service.save(NOW_MS).unwrap();
        drop(service);
        if mode == RunMode::Replay {
            // The snapshot at the end of the replay is that of a state which decided too early.
            let files = SnapshotFiles::of(&site).0;
            std::fs::remove_file(files.last().unwrap()).unwrap();
        }
        site.append(rest);
        let stats = catch_up(&mut site.open());
        assert_eq!(stats.counts.late, 0, "{mode:?}");
        in_no_order(site.output())
    };
    assert_eq!(output(RunMode::Replay), output(RunMode::Live));
}

#[test]
fn a_damaged_snapshot_costs_reading_and_nothing_else() {
    let events = history();
    let mut site = Site::new();
    let pieces: Vec<&[Event]> = events.chunks(events.len() / 3 + 1).collect();
    for piece in &pieces {
        site.append(piece);
        let mut life = site.open();
        catch_up(&mut life);
        life.save(NOW_MS).unwrap();
    }
    let expected = site.output();
    let files = SnapshotFiles::of(&site).0;
    let damage = |path: &Path| {
        let mut bytes = std::fs::read(path).unwrap();
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
        std::fs::write(path, bytes).unwrap();
    };
    damage(&files[1]);
    let stats = catch_up(&mut site.open());
    assert_eq!((stats.read, stats.written), (pieces[2].len() as u64, 0), "the one before");
    damage(&files[0]);
    let stats = catch_up(&mut site.open());
    assert_eq!((stats.read, stats.written), (events.len() as u64, 0), "the whole log");
    assert_eq!(site.output(), expected);
}

#[test]
fn the_log_keeps_what_the_older_snapshot_lacks() {
    let events = history();
    let mut site = Site::new();
    let mut passed = Vec::new();
    for piece in events.chunks(events.len() / 4 + 1) {
        site.append(piece);
        let mut life = site.open();
        catch_up(&mut life);
        life.save(NOW_MS).unwrap();
        for at_ms in [NOW_MS, NOW_MS + 10_000] {
            site.log.apply_retention(at_ms).unwrap();
        }
        passed = site.log.consumers(&steps()).unwrap();
    }
    let start = site.log.extent(&steps()).unwrap().start;
    assert!(start > 0, "what both snapshots have passed is dropped");
    assert_eq!(passed.len(), 1);
    assert!(start <= passed[0].1);
    let expected = site.output();
    // The newest is lost, the one before needs what the log still has.
    std::fs::remove_file(SnapshotFiles::of(&site).0.pop().unwrap()).unwrap();
    let stats = catch_up(&mut site.open());
    assert!(stats.read > 0 && stats.written == 0, "{stats:?}");
    assert_eq!(site.output(), expected);
}

/// The partition of the job's steps.
fn steps() -> TopicPartition {
    let topic = SchemaId::StepReport.topic().into();
    TopicPartition { topic, partition: partition_for(b"c/j", 2) }
}

/// Files of snapshots, oldest first.
struct SnapshotFiles(Vec<PathBuf>);

impl SnapshotFiles {
    fn of(site: &Site) -> Self {
        Self::below(&site.snapshots())
    }

    fn below(snapshots: &Path) -> Self {
        let entries = std::fs::read_dir(snapshots.join("signals")).unwrap();
        let mut files: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
        files.retain(|path| path.extension().is_some_and(|end| end == "snapshot"));
        files.sort_unstable();
        Self(files)
    }
}

/// Copies of the snapshots' folder at each instant at which writing one changes the disk.
static COPIES: OnceLock<Mutex<Vec<(&'static str, tempfile::TempDir)>>> = OnceLock::new();

#[test]
fn killed_at_any_instant_of_a_save_the_next_start_gives_the_same() {
    let events = history();
    let mut site = Site::new();
    let pieces: Vec<&[Event]> = events.chunks(events.len() / 3 + 1).collect();
    let snapshots = site.snapshots();
    let watched = snapshots.clone();
    let copies = COPIES.get_or_init(Mutex::default);
    tidegate_log::fault::watch(Box::new(move |done, place| {
        if !place.starts_with(&watched) {
            return;
        }
        let copy = tempfile::tempdir().unwrap();
        let (from, to) = (watched.join("signals"), copy.path().join("signals"));
        std::fs::create_dir(&to).unwrap();
        for entry in std::fs::read_dir(from).unwrap() {
            let entry = entry.unwrap();
            std::fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
        }
        copies.lock().unwrap().push((done, copy));
    }));
    for piece in &pieces {
        site.append(piece);
        let mut life = site.open();
        catch_up(&mut life);
        life.save(NOW_MS).unwrap();
    }
    let expected = site.output();
    let copies = std::mem::take(&mut *copies.lock().unwrap());
    let instants: std::collections::BTreeSet<&str> = copies.iter().map(|(done, _)| *done).collect();
    assert_eq!(instants.len(), 4, "{instants:?}");
    for (done, copy) in copies {
        let service = SignalService::with_snapshots(site.log.clone(), copy.path(), GROUP);
        let stats = catch_up(&mut service.unwrap());
        assert_eq!(stats.written, 0, "{done}");
        assert_eq!(site.output(), expected, "{done}");
        let save = SignalService::with_snapshots(site.log.clone(), copy.path(), GROUP);
        save.unwrap().save(NOW_MS).unwrap();
        assert!(SnapshotFiles::below(copy.path()).0.len() <= 2, "{done}");
    }
}

/// Half of the history, and the service that read it.
fn half(site: &mut Site) -> SignalService {
    let events = history();
    site.append(&events[..events.len() / 2]);
    let mut service = site.open();
    catch_up(&mut service);
    service
}

#[test]
fn the_committed_snapshot_of_this_version_still_gives_the_same() {
    let mut site = Site::new();
    half(&mut site).save(NOW_MS).unwrap();
    let newest = SnapshotFiles::of(&site).0.pop().unwrap();
    if std::env::var("TIDEGATE_BLESS").is_ok() {
        std::fs::copy(&newest, FIXTURE).unwrap();
    }
    let expected = {
        let mut beside = Site::new();
        half(&mut beside);
        beside.append(&history()[history().len() / 2..]);
        catch_up(&mut beside.open());
        in_no_order(beside.output())
    };
    std::fs::copy(FIXTURE, &newest).unwrap();
    site.append(&history()[history().len() / 2..]);
    let mut service = site.open();
    let stats = catch_up(&mut service);
    assert_eq!(
        stats.read as usize,
        history().len() - history().len() / 2,
        "the layout changed: raise VERSION in service/saved.rs, name the fixture after it, and write it with TIDEGATE_BLESS=1"
    );
    assert_eq!(in_no_order(site.output()), expected);
}

#[test]
fn a_snapshot_of_another_version_is_skipped_for_the_log() {
    for version in [0, saved::VERSION - 1, u32::MAX] {
        let mut site = Site::new();
        drop(half(&mut site));
        let expected = site.output();
        let mut store = SnapshotStore::new(&site.snapshots(), "signals", "", version);
        store.save(Vec::new(), b"laid out otherwise", NOW_MS).unwrap();
        let stats = catch_up(&mut site.open());
        assert_eq!((stats.read as usize, stats.written), (history().len() / 2, 0), "version {version}");
        assert_eq!(site.output(), expected);
    }
}

#[test]
fn a_state_that_lies_is_refused_and_does_not_take_memory() {
    let mut site = Site::new();
    drop(half(&mut site));
    // A map that claims 2^60 entries, an end in the middle, and nothing.
    for state in [&[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x0f][..], &[1, 1, 7], &[]] {
        let mut store = SnapshotStore::new(&site.snapshots(), "signals", "", saved::VERSION);
        store.save(Vec::new(), state, NOW_MS).unwrap();
        assert_eq!(catch_up(&mut site.open()).read as usize, history().len() / 2);
    }
}
