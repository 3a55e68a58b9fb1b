//! Damaged files are noticed: opening or reading fails, or returns every record as it was; records
//! never go missing silently.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::support::{ONE_PARTITION, Random, at, noise_batch};
use tidegate_log::{EmbeddedLog, EmbeddedOptions, EventLog, LogError, StoredRecord, TopicPartition};
use tidegate_testing::conformance::read_all;

const OPTIONS: EmbeddedOptions =
    EmbeddedOptions { segment_bytes: 1 << 30, segment_batches: 60, memory_table_bytes: 64 << 10 };

type Content = Vec<(TopicPartition, Vec<StoredRecord>)>;

/// A closed log with records in tables, blob files, several segments and the journal.
fn build(dir: &Path) -> Content {
    let log = EmbeddedLog::open(dir, OPTIONS).unwrap();
    for topic in ["large", "small"] {
        log.create_topic(topic, ONE_PARTITION).unwrap();
    }
    for seq in 0..150 {
        log.append(&at("large", 0), noise_batch(1, seq, 1, 2000)).unwrap();
        log.append(&at("small", 0), noise_batch(2, seq, 1, 100)).unwrap();
    }
    let tables =
        || files(dir).iter().filter(|path| path.parent().is_some_and(|p| p.ends_with("tables"))).count();
    let patience = Instant::now() + Duration::from_secs(30);
    while tables() < 3 {
        assert!(Instant::now() < patience, "nothing was flushed to tables");
        std::thread::yield_now();
    }
    drop(log);
    // Opening cuts the unused end off the journal, so that the damage below hits used bytes.
    let log = EmbeddedLog::open(dir, OPTIONS).unwrap();
    log.append(&at("small", 0), noise_batch(2, 150, 1, 100)).unwrap();
    content(&log).unwrap()
}

fn content(log: &EmbeddedLog) -> Result<Content, LogError> {
    log.verify()?;
    let places = ["large", "small"].map(|topic| at(topic, 0));
    places.into_iter().map(|at| log.extent(&at).map(|_| (at.clone(), read_all(log, &at)))).collect()
}

fn files(dir: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in fs::read_dir(dir).into_iter().flatten().map_while(Result::ok) {
        match entry.path() {
            path if path.is_dir() => files.extend(self::files(&path)),
            path => files.push(path),
        }
    }
    files.sort();
    files
}

fn copy(from: &Path, to: &Path) {
    for file in files(from) {
        let target = to.join(file.strip_prefix(from).unwrap());
        fs::create_dir_all(target.parent().unwrap()).unwrap();
        fs::copy(file, target).unwrap();
    }
}

/// Damages a copy of the log and returns whether that was noticed.
fn noticed(original: &Path, file: &Path, expected: &Content, damage: impl Fn(&Path)) -> bool {
    let dir = tempfile::tempdir().unwrap();
    copy(original, dir.path());
    damage(&dir.path().join(file));
    match EmbeddedLog::open(dir.path(), OPTIONS).and_then(|log| content(&log)) {
        Ok(found) => {
            assert!(found == *expected, "damage to {} changed the records silently", file.display());
            false
        }
        Err(error) => {
            let named = matches!(
                error,
                LogError::Corrupt { .. } | LogError::CorruptStore { .. } | LogError::NewerFormat { .. }
            );
            assert!(named, "damage to {} is reported as {error:?}", file.display());
            true
        }
    }
}

#[test]
fn damage_is_never_silent() {
    let dir = tempfile::tempdir().unwrap();
    let expected = build(dir.path());
    let mut random = Random::new(1);
    let (mut flips, mut seen) = (0, 0);
    for path in files(dir.path()) {
        let file = path.strip_prefix(dir.path()).unwrap();
        let length = path.metadata().unwrap().len();
        noticed(dir.path(), file, &expected, |path| fs::remove_file(path).unwrap());
        noticed(dir.path(), file, &expected, |path| {
            File::options().write(true).open(path).unwrap().set_len(length / 2).unwrap()
        });
        for _ in 0..length.min(8) {
            let (position, bit) = (random.below(length), random.below(8));
            flips += 1;
            seen += u32::from(noticed(dir.path(), file, &expected, |path| flip(path, position, bit)));
        }
    }
    println!("{seen} of {flips} flipped bits were reported, the others changed no record");
    assert!(seen > 0);
}

fn flip(path: &Path, position: u64, bit: u64) {
    let file = File::options().read(true).write(true).open(path).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, position).unwrap();
    file.write_all_at(&[byte[0] ^ (1 << bit)], position).unwrap();
}

/// A log of twenty commits, all in its journal; gives the journal's path and where each commit
/// ends.
fn journal_of_twenty(dir: &Path) -> (PathBuf, Vec<u64>) {
    let log = EmbeddedLog::open(dir, EmbeddedOptions::default()).unwrap();
    log.create_topic("t", ONE_PARTITION).unwrap();
    for seq in 0..20 {
        log.append(&at("t", 0), noise_batch(1, seq, 1, 10)).unwrap();
    }
    drop(log);
    let journal = dir.join("store/0.jnl");
    let bytes = fs::read(&journal).unwrap();
    let ends = bytes.windows(4).enumerate().filter(|(_, window)| window == b"FJL\x03");
    let ends: Vec<_> = ends.map(|(position, _)| position as u64 + 4).collect();
    assert_eq!(ends.len(), 21, "one for the topic, one for each append");
    (journal, ends)
}

fn open(dir: &Path) -> Result<EmbeddedLog, LogError> {
    EmbeddedLog::open(dir, EmbeddedOptions::default())
}

#[test]
fn a_damaged_journal_is_named_and_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let (journal, ends) = journal_of_twenty(dir.path());
    // The tag of the eleventh commit; the store itself would take it for the end and drop the other
    // ten.
    flip(&journal, ends[10], 7);
    let damaged = fs::read(&journal).unwrap();
    for _ in 0..2 {
        let error = open(dir.path()).map(|_| ()).unwrap_err();
        assert!(matches!(error, LogError::CorruptStore { .. }), "{error:?}");
        let place = format!("0.jnl is damaged at byte {}", ends[10]);
        assert!(error.to_string().contains(&place), "{error}");
        assert!(fs::read(&journal).unwrap() == damaged, "the journal was changed");
    }
    flip(&journal, ends[10], 7);
    assert_eq!(open(dir.path()).unwrap().verify().unwrap().records, 20, "undoing the damage brings all back");
}

#[test]
fn a_lost_last_commit_is_missed() {
    let dir = tempfile::tempdir().unwrap();
    let (journal, ends) = journal_of_twenty(dir.path());
    // Alone it looks like a write that never finished, but it was acknowledged.
    flip(&journal, ends[19] + 40, 0);
    for _ in 0..2 {
        let error = open(dir.path()).map(|_| ()).unwrap_err();
        let named =
            matches!(&error, LogError::Corrupt { topic, partition: 0, offset: 19, .. } if topic == "t");
        assert!(named, "{error:?}");
    }
}

#[test]
fn an_unfinished_commit_is_dropped() {
    for torn in [10, 60, 0] {
        let dir = tempfile::tempdir().unwrap();
        let (journal, ends) = journal_of_twenty(dir.path());
        let (from, end) = (ends[19] as usize, *ends.last().unwrap());
        let mut commit = fs::read(&journal).unwrap()[from..end as usize].to_vec();
        // Either its end did not reach the disk, or a block in its middle.
        if torn > 0 {
            commit.truncate(torn)
        } else {
            commit[50..60].fill(0)
        }
        File::options().write(true).open(&journal).unwrap().write_all_at(&commit, end).unwrap();
        let log = open(dir.path()).unwrap();
        assert_eq!(log.verify().unwrap().records, 20);
        assert_eq!(log.append(&at("t", 0), noise_batch(1, 20, 1, 10)).unwrap().first_offset, 20);
        drop(log);
        assert_eq!(open(dir.path()).unwrap().verify().unwrap().records, 21);
    }
}
