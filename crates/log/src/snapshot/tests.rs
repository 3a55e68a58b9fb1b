use std::io::Read;
use std::sync::Arc;

use super::*;
use crate::{Batch, EmbeddedLog, EmbeddedOptions, Producer, Record, TopicConfig};

const AT_MS: i64 = 1_800_000_000_000;

struct Site {
    folder: tempfile::TempDir,
    log: Arc<dyn EventLog>,
}

impl Site {
    /// A log of one partition with ten records.
    fn new() -> Self {
        Self::saying("a")
    }

    fn saying(text: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let log = EmbeddedLog::open(folder.path().join("log"), EmbeddedOptions::default()).unwrap();
        log.create_topic("jobs", TopicConfig { partitions: 1, retain_ms: None, retain_bytes: None }).unwrap();
        let site = Self { folder, log: Arc::new(log) };
        site.append(0..10, text);
        site
    }

    fn append(&self, seqs: std::ops::Range<u64>, text: &str) {
        for seq in seqs {
            let payload = format!("{text}{seq}").into();
            let record = Record { key: "k".into(), schema: 1, event_time_ms: 0, payload };
            let batch = Batch {
                producer: Producer { source: "s".into(), epoch: 0 },
                first_seq: seq,
                records: vec![record],
            };
            self.log.append(&at(), batch).unwrap();
        }
    }

    fn store(&self) -> SnapshotStore {
        SnapshotStore::new(self.folder.path(), "test", "c", 3)
    }

    /// The position after that many records.
    fn position(&self, next: u64) -> Position {
        let cursor = Cursor { at: at(), next, end: 10, last: next.checked_sub(1) };
        Position::of(&cursor, self.log.as_ref()).unwrap()
    }

    fn save(&self, store: &mut SnapshotStore, next: u64) -> Vec<Position> {
        store.save(vec![self.position(next)], format!("state {next}").as_bytes(), AT_MS).unwrap()
    }

    /// The state that a start finds, and why newer ones were skipped.
    fn found(&self) -> (Option<String>, Vec<String>) {
        let found = self
            .store()
            .restore(self.log.as_ref(), |state| String::from_utf8(state.to_vec()).map_err(|e| e.to_string()));
        let found = found.unwrap();
        (found.restored.map(|it| it.state), found.skipped.into_iter().map(|(_, why)| why).collect())
    }

    fn files(&self) -> Vec<PathBuf> {
        self.store().numbered().unwrap().into_iter().map(|(_, path)| path).collect()
    }
}

fn at() -> TopicPartition {
    TopicPartition { topic: "jobs".into(), partition: 0 }
}

#[test]
fn the_newest_is_found_and_two_are_kept() {
    let site = Site::new();
    assert_eq!(site.found(), (None, vec![]));
    let mut store = site.store();
    store.begin(vec![site.position(0)]);
    for next in 1..=9 {
        let before = site.save(&mut store, next);
        assert_eq!(before[0].next, next - 1, "the log keeps what the one before lacks");
        assert_eq!(site.found(), (Some(format!("state {next}")), vec![]));
        assert!(site.files().len() <= KEPT, "{:?}", site.files());
    }
    // A new process goes on numbering, and knows the one it began with.
    let mut store = site.store();
    store.restore(site.log.as_ref(), |_| Ok(())).unwrap();
    assert_eq!(site.save(&mut store, 10)[0].next, 9);
    let all = stored(site.folder.path()).unwrap();
    assert_eq!(all.iter().map(|it| it.positions[0].next).collect::<Vec<_>>(), [9, 10]);
    assert_eq!(all[0].reader, "test of c");
}

#[test]
fn every_damage_is_noticed_and_the_one_before_is_used() {
    let site = Site::new();
    let mut store = site.store();
    site.save(&mut store, 4);
    site.save(&mut store, 7);
    let newest = site.files().pop().unwrap();
    let whole = std::fs::read(&newest).unwrap();
    for position in 0..whole.len() {
        let mut damaged = whole.clone();
        damaged[position] ^= 1 << (position % 8);
        std::fs::write(&newest, &damaged).unwrap();
        let (state, skipped) = site.found();
        assert_eq!((state.as_deref(), skipped.len()), (Some("state 4"), 1), "byte {position}");
    }
    for length in 0..whole.len() {
        std::fs::write(&newest, &whole[..length]).unwrap();
        let (state, skipped) = site.found();
        assert_eq!((state.as_deref(), skipped.len()), (Some("state 4"), 1), "cut at {length}");
    }
    // The damaged one makes way; the good one before it stays.
    let mut store = site.store();
    store.restore(site.log.as_ref(), |_| Ok(())).unwrap();
    site.save(&mut store, 9);
    assert!(!newest.exists());
    assert_eq!(site.files().len(), 2);
    assert_eq!(site.found(), (Some("state 9".into()), vec![]));
    // Nothing usable: the log is read.
    for file in site.files() {
        std::fs::write(file, b"").unwrap();
    }
    let (state, skipped) = site.found();
    assert_eq!((state, skipped.len()), (None, 2));
}

#[test]
fn what_is_of_another_reader_version_or_log_is_skipped() {
    let site = Site::new();
    let why = |store: &mut SnapshotStore, position: Position| {
        store.save(vec![position], b"state", AT_MS).unwrap();
        let (state, skipped) = site.found();
        std::fs::remove_file(site.files().pop().unwrap()).unwrap();
        assert_eq!((state, skipped.len()), (None, 1));
        skipped[0].clone()
    };
    let folder = site.folder.path();
    let store = |kind, version| SnapshotStore { kind, version, ..SnapshotStore::new(folder, "test", "c", 3) };
    let here = || site.position(5);
    assert!(why(&mut store("test", 4), here()).contains("version 4, of a newer program"));
    assert!(why(&mut store("test", 2), here()).contains("version 2, of an older program"));
    assert!(why(&mut store("other", 3), here()).contains("it is of other \"c\""));
    let mut elsewhere = SnapshotStore { subject: "d".into(), ..store("test", 3) };
    assert!(why(&mut elsewhere, here()).contains("it is of test \"d\""));
    let mut mine = store("test", 3);
    let other = Site::saying("b");
    assert!(why(&mut mine, other.position(5)).contains("made from another log"));
    let beyond = Position { next: 11, ..here() };
    assert!(why(&mut mine, beyond).contains("offset 11 of jobs/0, which ends at 10"));
    let nowhere = Position { topic: "gone".into(), ..here() };
    assert!(why(&mut mine, nowhere).contains("the log has no gone/0"));
    let early = site.position(2);
    site.log.trim(&at(), 6).unwrap();
    assert!(why(&mut mine, early).contains("dropped what lies before 6"));
    // A state that its reader refuses is skipped too.
    mine.save(vec![site.position(8)], &[0xff], AT_MS).unwrap();
    assert_eq!(site.found().0, None);
}

#[test]
fn a_snapshot_holds_where_its_last_record_was_dropped() {
    let site = Site::new();
    site.save(&mut site.store(), 6);
    site.log.trim(&at(), 6).unwrap();
    assert_eq!(site.found(), (Some("state 6".into()), vec![]));
    // The log forgot everything and was filled anew: what lies there is another record.
    let refilled = Site::saying("b");
    refilled.log.trim(&at(), 3).unwrap();
    let mut store = refilled.store();
    store.save(vec![site_position(6)], b"state", AT_MS).unwrap();
    assert!(refilled.found().1[0].contains("another log"));
}

/// The position after `next` records of [`Site::new`].
fn site_position(next: u64) -> Position {
    Site::new().position(next)
}

#[test]
fn hostile_lengths_are_bounded_before_they_are_believed() {
    let site = Site::new();
    let mut store = site.store();
    site.save(&mut store, 4);
    let path = store.folder().join(format!("{:020}{SUFFIX}", 99));
    let header = |state_bytes| file::Header {
        kind: "test".into(),
        subject: "c".into(),
        version: 3,
        saved_ms: AT_MS,
        state_bytes,
        positions: vec![site.position(5)],
    };
    let sealed = |header: &[u8], header_bytes: u32, state: &[u8]| {
        let mut bytes = b"TGSNAP\x01\x00".to_vec();
        bytes.extend_from_slice(&header_bytes.to_le_bytes());
        bytes.extend_from_slice(header);
        bytes.extend_from_slice(state);
        let checksum = xxhash_rust::xxh3::xxh3_128(&bytes).to_le_bytes();
        bytes.extend_from_slice(&checksum);
        bytes
    };
    let whole = |state_bytes: u64, state: &[u8]| {
        let header = serde_json::to_vec(&header(state_bytes)).unwrap();
        sealed(&header, header.len() as u32, state)
    };
    let bomb = zstd::encode_all(std::io::repeat(0).take(64 << 20), 1).unwrap();
    let few = zstd::encode_all(&b"few"[..], 1).unwrap();
    for (bytes, said) in [
        (sealed(b"{}", u32::MAX, b""), "header claims 4294967295 bytes"),
        (sealed(b"{}", 3, b""), "lacks its header"),
        (sealed(b"{}", 2, b""), "header is not readable"),
        (whole(u64::MAX, &few), "claims a state of 18446744073709551615 bytes"),
        (whole(5, &bomb), "not the 5 bytes that it claims"),
        (whole(1 << 20, &few), "not the 1048576 bytes that it claims"),
        (whole(3, b"no zstd"), "cannot be decompressed"),
        (b"TGSNAP\x02\x00 of the future".to_vec(), "format is version 2"),
        (b"TGSNAP".to_vec(), "ends after its first bytes"),
        (b"Not a snapshot, but long enough to be one".to_vec(), "no snapshot"),
    ] {
        std::fs::write(&path, bytes).unwrap();
        let (state, skipped) = site.found();
        assert_eq!(state.as_deref(), Some("state 4"));
        assert!(skipped[0].contains(said), "{said}: {skipped:?}");
    }
    std::fs::File::create(&path).unwrap().set_len(1 << 40).unwrap();
    assert!(site.found().1[0].contains("more than"), "a terabyte of nothing is not read");
    std::fs::remove_file(&path).unwrap();
    std::fs::create_dir(&path).unwrap();
    assert!(site.found().1[0].contains("no file"));
}

#[test]
fn a_state_that_is_too_large_or_a_folder_that_refuses_changes_nothing() {
    let site = Site::new();
    let mut store = site.store();
    site.save(&mut store, 4);
    let huge = vec![0; MAX_STATE_BYTES + 1];
    let refused = store.save(vec![site.position(5)], &huge, AT_MS).unwrap_err();
    assert!(refused.to_string().contains("writing a snapshot"), "{refused}");
    assert_eq!(site.found(), (Some("state 4".into()), vec![]));
    std::fs::remove_dir_all(store.folder()).unwrap();
    std::fs::write(store.folder(), b"a file where the folder was").unwrap();
    assert!(store.save(vec![site.position(5)], b"", AT_MS).is_err());
}

#[test]
fn unfinished_files_are_left_alone_until_they_are_old() {
    let site = Site::new();
    let mut store = site.store();
    site.save(&mut store, 4);
    let new = store.folder().join(format!("7.1{UNFINISHED}"));
    let old = store.folder().join(format!("8.1{UNFINISHED}"));
    for file in [&new, &old] {
        std::fs::write(file, b"half").unwrap();
    }
    let long_ago = SystemTime::now() - 2 * ABANDONED;
    std::fs::File::options().append(true).open(&old).unwrap().set_modified(long_ago).unwrap();
    site.save(&mut store, 5);
    assert_eq!((new.exists(), old.exists()), (true, false), "another process may be writing it");
}

#[test]
fn subjects_name_files_whatever_they_are() {
    assert_eq!(file_name("helios-1"), "helios-1");
    let names: BTreeSet<String> = ["../etc", "a/b", "a b", "", "c".repeat(65).as_str()].map(file_name).into();
    assert_eq!(names.len(), 5);
    assert!(names.iter().all(|name| !name.contains('/') && name.len() <= 64), "{names:?}");
}
