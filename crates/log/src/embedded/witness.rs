//! The witness file: a partition's acknowledged end, kept where the store cannot lose it.
//!
//! The store below the log takes an undecodable journal entry for the torn end of an unfinished
//! write and drops it with everything after it, which is right after a crash and wrong after a
//! flipped bit. So every partition's acknowledged end is also kept in a small file of its own. A
//! store that comes back with less than that has lost records, and opening it fails. The file is
//! written after the commit is durable and is not fsynced itself: killing the process cannot make
//! it lie, and after a power cut it may only be older than the truth, never ahead of it.

use std::fs::{self, File};
use std::io::{ErrorKind, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use xxhash_rust::xxh3::xxh3_64;

use crate::fault::point;
use crate::{LogError, TopicPartition};

pub(super) struct Witness {
    file: File,
    path: PathBuf,
}

impl Witness {
    /// Opens the partition's witness and sets it to `end`.
    pub fn create(log_dir: &Path, at: &TopicPartition, end: u64) -> Result<Self, LogError> {
        let path = path(log_dir, at);
        let io = |e| LogError::io(log_dir, format!("writing {}", path.display()), e);
        path.parent().map_or(Ok(()), fs::create_dir_all).map_err(io)?;
        let file = File::options().create(true).truncate(false).write(true).open(&path).map_err(io)?;
        let mut witness = Self { file, path: path.clone() };
        witness.record(end).map_err(io)?;
        Ok(witness)
    }

    /// Notes that everything below `end` is acknowledged. Sixteen bytes in one write never tear
    /// within a block.
    pub fn record(&mut self, end: u64) -> std::io::Result<()> {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&end.to_le_bytes());
        bytes[8..].copy_from_slice(&xxh3_64(&end.to_le_bytes()).to_le_bytes());
        self.file.seek(SeekFrom::Start(0))?;
        self.file.write_all(&bytes)?;
        point("witness", &self.path);
        Ok(())
    }

    pub fn sync(&self) -> std::io::Result<()> {
        self.file.sync_data()
    }
}

/// All partitions that ever acknowledged something, with their ends.
pub(super) fn read_all(log_dir: &Path) -> Result<Vec<(TopicPartition, u64)>, LogError> {
    let root = log_dir.join("acknowledged");
    let io = |e| LogError::io(log_dir, format!("reading {}", root.display()), e);
    let mut ends = Vec::new();
    let topics = match fs::read_dir(&root) {
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(ends),
        topics => topics.map_err(io)?,
    };
    for topic in topics {
        let topic = topic.map_err(io)?;
        for partition in fs::read_dir(topic.path()).map_err(io)? {
            let file = partition.map_err(io)?;
            let at = (topic.file_name().into_string().ok())
                .zip(file.file_name().to_str().and_then(|name| name.parse().ok()))
                .map(|(topic, partition)| TopicPartition { topic, partition });
            let bytes = fs::read(file.path()).map_err(io)?;
            let Some((at, end)) = at.zip(parse(&bytes)) else {
                return Err(LogError::CorruptStore {
                    dir: log_dir.to_path_buf(),
                    what: format!("{} is not a witness of acknowledged records", file.path().display()),
                });
            };
            ends.push((at, end));
        }
    }
    Ok(ends)
}

/// A power cut may leave a new file empty or zeroed; it then witnesses nothing.
fn parse(bytes: &[u8]) -> Option<u64> {
    if bytes.iter().all(|byte| *byte == 0) {
        return Some(0);
    }
    let (end, checksum) = bytes.split_at_checked(8)?;
    let matches = xxh3_64(end).to_le_bytes() == checksum;
    matches.then_some(u64::from_le_bytes(end.try_into().ok()?))
}

fn path(log_dir: &Path, at: &TopicPartition) -> PathBuf {
    log_dir.join("acknowledged").join(&at.topic).join(at.partition.to_string())
}
