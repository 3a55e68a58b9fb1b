//! State of the spool: its owner, and the log's progress.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use serde::{Deserialize, Serialize};
use tidegate_log::TopicPartition;
use xxhash_rust::xxh3::xxh3_64;

use super::SpoolError;
use crate::checkpoint::replace;

const FILE: &str = "state.json";
const FORMAT: u32 = 1;

/// A position in the spool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
pub struct Position {
    /// Life of the spool.
    pub epoch: u64,
    /// Sequence number within the epoch.
    pub seq: u64,
}

/// Machine, boot and folder of a spool. A copy of the spool differs in at least one of them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct SpoolIdentity {
    boot_id: String,
    device: u64,
    inode: u64,
}

impl SpoolIdentity {
    /// The identity of the spool whose lock file this is.
    pub fn from_lock(lock: &File) -> std::io::Result<Self> {
        let metadata = lock.metadata()?;
        Ok(Self { boot_id: boot_id(), device: metadata.dev(), inode: metadata.ino() })
    }

    /// Short hash of it.
    pub fn fingerprint(&self) -> String {
        let Self { boot_id, device, inode } = self;
        format!("{:016x}", xxh3_64(format!("{boot_id}/{device}/{inode}").as_bytes()))
    }
}

/// The kernel's random id of this boot; empty if unavailable.
pub fn boot_id() -> String {
    fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim().to_owned()
}

/// Progress of delivery. Saved after each acknowledgement; if a crash prevents that, records are
/// sent again under their old numbers, by which the log recognises them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct State {
    format: u32,
    pub source: String,
    pub cluster: String,
    pub place: SpoolIdentity,
    /// Epoch of new records.
    pub epoch: u64,
    /// First record that the log may lack.
    pub position: Position,
    /// Records of older epochs are appended under this epoch.
    pub floor: u64,
    /// The epoch of current appends, and the next sequence number by `TOPIC/PARTITION`.
    pub appending: u64,
    pub next: BTreeMap<String, u64>,
    /// Newest epoch, of another collector, for which the log refused us.
    pub refused_for: u64,
}

impl State {
    /// The state of an empty spool.
    pub fn new(source: &str, cluster: &str, place: SpoolIdentity, now: u64) -> Self {
        Self {
            format: FORMAT,
            source: source.into(),
            cluster: cluster.into(),
            place,
            epoch: now,
            position: Position { epoch: now, seq: 0 },
            floor: 0,
            appending: now,
            next: BTreeMap::new(),
            refused_for: 0,
        }
    }

    /// Reads the state; `None` if there is none or it is damaged.
    pub fn read(dir: &Path) -> Result<Option<Self>, SpoolError> {
        let path = dir.join(FILE);
        let text = match fs::read(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(SpoolError::io("reading", &path, error)),
        };
        match serde_json::from_slice::<Self>(&text) {
            Ok(state) if state.format > FORMAT => Err(SpoolError::NewerFormat { path }),
            Ok(state) => Ok(Some(state)),
            Err(error) => {
                tracing::error!(path = %path.display(), %error, "damaged; what the spool holds is sent again");
                Ok(None)
            }
        }
    }

    /// Replaces the file atomically.
    pub fn write(&self, dir: &Path) -> Result<(), SpoolError> {
        let path = dir.join(FILE);
        let json = serde_json::to_vec(self).map_err(|e| SpoolError::io("writing", &path, e.into()))?;
        replace(&path, &json).map_err(|error| SpoolError::io("writing", &path, error))
    }

    /// Begins an epoch newer than any before.
    pub fn begin_epoch(&mut self, now: u64) {
        self.epoch = now.max(self.epoch + 1).max(self.floor + 1).max(self.refused_for + 1);
    }

    /// Makes all further appends use the newest epoch, numbered from 0. Needed when it is no longer
    /// known which number a record was appended under.
    pub fn renumber(&mut self, now: u64) {
        self.begin_epoch(now);
        self.floor = self.epoch;
    }

    /// Epoch under which records of `epoch` are appended.
    pub fn append_epoch(&self, epoch: u64) -> u64 {
        epoch.max(self.floor)
    }
}

/// Key of a partition in [`State::next`].
pub(super) fn partition_key(at: &TopicPartition) -> String {
    format!("{}/{}", at.topic, at.partition)
}
