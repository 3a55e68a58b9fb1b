//! Damaged files are noticed: an error, or every record as it was; never fewer records without a word.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::support::{ONE_PARTITION, Random, at, noise_batch};
use tidegate_log::conformance::read_all;
use tidegate_log::{EmbeddedLog, EmbeddedOptions, EventLog, LogError, StoredRecord, TopicPartition};

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

/// Damages a copy of the log and tells whether that was noticed.
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

#[test]
fn a_journal_cut_by_a_flipped_tag_names_the_place() {
    let dir = tempfile::tempdir().unwrap();
    let log = EmbeddedLog::open(dir.path(), OPTIONS).unwrap();
    log.create_topic("t", ONE_PARTITION).unwrap();
    for seq in 0..20 {
        log.append(&at("t", 0), noise_batch(1, seq, 1, 10)).unwrap();
    }
    drop(log);
    // The store takes an unknown tag for the end of the journal: everything after it is dropped without an error.
    let journal = dir.path().join("store/0.jnl");
    let bytes = fs::read(&journal).unwrap();
    let end_of_commit = b"FJL\x03";
    let commits = bytes.windows(4).enumerate().filter(|(_, window)| window == end_of_commit);
    let tenth = commits.map(|(position, _)| position + 4).nth(10).unwrap();
    flip(&journal, tenth as u64, 7);
    let opened = EmbeddedLog::open(dir.path(), OPTIONS).map(|_| ());
    assert!(
        matches!(&opened, Err(LogError::Corrupt { topic, partition: 0, offset, .. }) if topic == "t" && *offset < 20),
        "{opened:?}"
    );
    let again = EmbeddedLog::open(dir.path(), OPTIONS).map(|_| ());
    assert!(again.is_err(), "the loss is reported until somebody decides what to do");
}
