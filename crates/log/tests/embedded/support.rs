//! Records whose content follows from their source and number, and child processes to be killed.

use std::env;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use bytes::Bytes;
use tidegate_log::{
    Batch, EmbeddedLog, EmbeddedOptions, LogError, Producer, Record, TopicConfig, TopicPartition,
};

pub const ONE_PARTITION: TopicConfig = TopicConfig { partitions: 1, retain_ms: None, retain_bytes: None };

/// Payload bytes that do not compress, the same for the same source and number.
pub fn noise(source: u64, seq: u64, bytes: usize) -> Bytes {
    let mut random = Random::new(source << 40 | seq);
    let mut noise = Vec::with_capacity(bytes + 8);
    while noise.len() < bytes {
        noise.extend_from_slice(&random.next().to_le_bytes());
    }
    noise.truncate(bytes);
    noise.into()
}

pub fn noise_record(source: u64, seq: u64, bytes: usize) -> Record {
    let key = Bytes::from(format!("cluster/{source}"));
    Record { key, schema: 1, event_time_ms: seq as i64, payload: noise(source, seq, bytes) }
}

pub fn noise_batch(source: u64, first_seq: u64, count: u64, bytes: usize) -> Batch {
    let records = (first_seq..first_seq + count).map(|seq| noise_record(source, seq, bytes)).collect();
    Batch { producer: Producer { source: source.to_string(), epoch: 0 }, first_seq, records }
}

pub fn at(topic: &str, partition: u32) -> TopicPartition {
    TopicPartition { topic: topic.into(), partition }
}

/// This test binary again, to run only `test` with its output visible.
pub fn this_test(test: &str) -> Command {
    let mut command = Command::new(env::current_exe().unwrap());
    command.args([test, "--exact", "--nocapture", "--test-threads=1"]);
    command
}

/// splitmix64: enough randomness for instants, sizes and payloads, repeatable from its seed.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }
}

/// Reopens a log that this process has just closed. Retries while the log is locked: a child that
/// another test forks inherits the lock until it execs.
pub fn reopened(dir: &Path, options: EmbeddedOptions) -> EmbeddedLog {
    let deadline = Instant::now() + Duration::from_secs(5);
    loop {
        match EmbeddedLog::open(dir, options) {
            Err(LogError::AlreadyOpen { .. }) if Instant::now() < deadline => {
                std::thread::sleep(Duration::from_millis(10));
            }
            opened => return opened.unwrap(),
        }
    }
}
