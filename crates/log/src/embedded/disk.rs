//! What each topic takes on disk. Only the process that has the log open can tell, so it leaves a
//! note beside the log for others.

use std::fs;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::EmbeddedLog;
use crate::{EventLog, LogError, TopicPartition};

const NOTE: &str = "disk.json";

/// What a topic takes on disk, and what bounds it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TopicDisk {
    /// Name of the topic.
    pub topic: String,
    /// Bytes of its records on disk, compressed. What was appended lately may still be in the
    /// journal that all topics share.
    pub bytes: u64,
    /// Number of records.
    pub records: u64,
    /// Records are dropped this many ms after they were written; `None` if never.
    pub retain_ms: Option<u64>,
    /// Largest size of a partition in bytes; `None` if there is none.
    pub retain_bytes: Option<u64>,
}

/// What topics take, and when that was so.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogDisk {
    /// When it was so, ms since the epoch.
    pub at_ms: i64,
    /// By topic, in order of their names.
    pub topics: Vec<TopicDisk>,
}

impl EmbeddedLog {
    /// What each topic takes on disk.
    pub fn disk_use(&self, now_ms: i64) -> Result<LogDisk, LogError> {
        let mut topics = Vec::new();
        for (topic, config) in self.topics()? {
            let (mut bytes, mut records) = (0, 0);
            for partition in 0..config.partitions {
                let partition = self.partition(&TopicPartition { topic: topic.clone(), partition })?;
                bytes += partition.segments().iter().map(|s| s.keyspace.disk_space()).sum::<u64>();
                records += partition.extent().end - partition.extent().start;
            }
            let (retain_ms, retain_bytes) = (config.retain_ms, config.retain_bytes);
            topics.push(TopicDisk { topic, bytes, records, retain_ms, retain_bytes });
        }
        topics.sort_by(|a, b| a.topic.cmp(&b.topic));
        Ok(LogDisk { at_ms: now_ms, topics })
    }

    /// Leaves the note. Without it others only know the size of the whole log, so a failure is not
    /// an error.
    pub(super) fn note_disk_use(&self, now_ms: i64) {
        let aside = self.core.store.dir.join("disk.json.new");
        let noted = self.disk_use(now_ms).map_err(std::io::Error::other).and_then(|disk| {
            fs::write(&aside, serde_json::to_vec(&disk)?)?;
            fs::rename(&aside, self.core.store.dir.join(NOTE))
        });
        if let Err(error) = noted {
            tracing::debug!(%error, "what topics take on disk was not noted");
        }
    }
}

/// What the process that last had the log open noted; `None` if it noted nothing.
pub fn noted_disk_use(log_dir: &Path) -> Option<LogDisk> {
    serde_json::from_slice(&fs::read(log_dir.join(NOTE)).ok()?).ok()
}
