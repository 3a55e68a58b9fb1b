//! What the spool remembers beside its records: who it is, and how far the log has taken it in.

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

/// A place in the spool: the epoch, and the number in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
pub struct Position {
    pub epoch: u64,
    pub seq: u64,
}

/// Which machine, which of its lives, and which folder: a copy of the spool differs in one of them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Place {
    boot_id: String,
    device: u64,
    inode: u64,
}

impl Place {
    /// Of the spool whose lock file this is.
    pub fn of(lock: &File) -> std::io::Result<Self> {
        let metadata = lock.metadata()?;
        Ok(Self { boot_id: boot_id(), device: metadata.dev(), inode: metadata.ino() })
    }

    /// A short name of it.
    pub fn fingerprint(&self) -> String {
        let Self { boot_id, device, inode } = self;
        format!("{:016x}", xxh3_64(format!("{boot_id}/{device}/{inode}").as_bytes()))
    }
}

/// The kernel's random id of this boot; empty where there is none.
pub fn boot_id() -> String {
    fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim().to_owned()
}

/// How far the log got. Written after it acknowledged; if a crash keeps it from being written,
/// records are sent again under the numbers they had, by which the log knows them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct State {
    format: u32,
    pub source: String,
    pub cluster: String,
    pub place: Place,
    /// New records are of this epoch.
    pub epoch: u64,
    /// The first record that the log may not have yet.
    pub position: Position,
    /// Records of older epochs are appended under this one.
    pub floor: u64,
    /// The epoch that records are being appended under, and the next number by `TOPIC/PARTITION`.
    pub appending: u64,
    pub next: BTreeMap<String, u64>,
    /// The newest epoch that the log refused us for; somebody else's.
    pub refused_for: u64,
}

impl State {
    /// Of a spool that never held anything.
    pub fn new(source: &str, cluster: &str, place: Place, now: u64) -> Self {
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

    /// Reads it; `None` where there is none, or none that can be read.
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

    /// Writes it so that there is always either the old or the new one.
    pub fn write(&self, dir: &Path) -> Result<(), SpoolError> {
        let path = dir.join(FILE);
        let json = serde_json::to_vec(self).map_err(|e| SpoolError::io("writing", &path, e.into()))?;
        replace(&path, &json).map_err(|error| SpoolError::io("writing", &path, error))
    }

    /// A new life: newer than any that was.
    pub fn begin_epoch(&mut self, now: u64) {
        self.epoch = now.max(self.epoch + 1).max(self.floor + 1).max(self.refused_for + 1);
    }

    /// From now on all appends are of the newest epoch and numbered from 0: what was appended under
    /// which number is not known any more.
    pub fn number_anew(&mut self, now: u64) {
        self.begin_epoch(now);
        self.floor = self.epoch;
    }

    /// The epoch that records of `epoch` are appended under.
    pub fn append_epoch(&self, epoch: u64) -> u64 {
        epoch.max(self.floor)
    }
}

/// The name of a partition in [`State::next`].
pub(super) fn place_name(at: &TopicPartition) -> String {
    format!("{}/{}", at.topic, at.partition)
}
