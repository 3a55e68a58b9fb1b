//! What appending costs, counted in trips to the disk.

use std::thread;

use crate::support::{ONE_PARTITION, at, noise_batch};
use tidegate_log::{EmbeddedLog, EmbeddedOptions, EventLog};

#[test]
fn many_small_appends_share_few_fsyncs() {
    const THREADS: u64 = 64;
    const APPENDS: u64 = 50;
    let dir = tempfile::tempdir().unwrap();
    let log = EmbeddedLog::open(dir.path(), EmbeddedOptions::default()).unwrap();
    log.create_topic("t", ONE_PARTITION).unwrap();
    thread::scope(|scope| {
        for source in 0..THREADS {
            let log = &log;
            scope.spawn(move || {
                for seq in 0..APPENDS {
                    log.append(&at("t", 0), noise_batch(source, seq, 1, 100)).unwrap();
                }
            });
        }
    });
    let stats = log.stats();
    println!("{stats:?}");
    assert_eq!((stats.batches, stats.records), (THREADS * APPENDS, THREADS * APPENDS));
    assert!(stats.fsyncs >= APPENDS, "a thread's appends wait for each other");
    assert!(stats.fsyncs * 4 <= stats.batches, "{} fsyncs for {} appends", stats.fsyncs, stats.batches);
}

#[test]
fn an_append_costs_one_fsync_and_a_repetition_none() {
    let dir = tempfile::tempdir().unwrap();
    let log = EmbeddedLog::open(dir.path(), EmbeddedOptions::default()).unwrap();
    log.create_topic("t", ONE_PARTITION).unwrap();
    for _ in 0..3 {
        log.append(&at("t", 0), noise_batch(1, 0, 1000, 100)).unwrap();
    }
    assert_eq!((log.stats().fsyncs, log.stats().batches, log.stats().records), (1, 1, 1000));
}

#[test]
fn repetitive_records_are_stored_small() {
    let dir = tempfile::tempdir().unwrap();
    let log = EmbeddedLog::open(dir.path(), EmbeddedOptions::default()).unwrap();
    log.create_topic("t", ONE_PARTITION).unwrap();
    log.append(&at("t", 0), tidegate_testing::conformance::batch("import:jobs.csv", 0, 0, 10_000)).unwrap();
    let bytes_per_record = log.stats().bytes as f64 / 10_000.0;
    assert!(bytes_per_record < 8.0, "{bytes_per_record} bytes for a record of 45");
}
