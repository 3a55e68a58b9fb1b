//! State snapshots: what a reader of the log made of it, with the offsets at which that stands.
//!
//! A reader that keeps state in memory saves it from time to time. Its next start restores the
//! newest good snapshot and reads the log from there, instead of from its beginning. A snapshot is
//! a cache: one that is damaged, foreign or of another version is skipped with a warning, and the
//! one before it, or the log itself, takes its place. Two are kept.
//!
//! A snapshot names, for each partition, the last record before its offset and that record's hash.
//! So it fits only the log that it was made from, or a copy of it offset for offset.

mod file;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::Xxh3;

use crate::tail::Cursor;
use crate::{EventLog, LogError, StoredRecord, TopicPartition};

/// Largest state of a snapshot, bytes before compression.
pub const MAX_STATE_BYTES: usize = 512 << 20;
/// How many snapshots are kept.
const KEPT: usize = 2;
/// How many files a start looks at, newest first.
const LOOKED_AT: usize = 16;
/// End of the name of a snapshot.
const SUFFIX: &str = ".snapshot";
/// End of the name of a file that is being written.
const UNFINISHED: &str = ".unfinished";
/// An unfinished file that is older was left by a process that died.
const ABANDONED: Duration = Duration::from_secs(3600);

/// Where a reader stands in one partition.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Position {
    /// Topic.
    pub topic: String,
    /// Partition.
    pub partition: u32,
    /// Offset of the next record to read.
    pub next: u64,
    /// Offset and hash of the last record read; `None` if there was none.
    pub last: Option<(u64, u64)>,
}

impl Position {
    /// The position of a cursor.
    ///
    /// # Errors
    /// The log cannot be reached.
    pub fn of(cursor: &Cursor, log: &dyn EventLog) -> Result<Self, LogError> {
        let TopicPartition { topic, partition } = cursor.at.clone();
        let last = match cursor.last {
            Some(offset) => hash_at(log, &cursor.at, offset)?.map(|hash| (offset, hash)),
            None => None,
        };
        Ok(Self { topic, partition, next: cursor.next, last })
    }

    /// The partition.
    pub fn at(&self) -> TopicPartition {
        TopicPartition { topic: self.topic.clone(), partition: self.partition }
    }

    /// A cursor that goes on here.
    pub fn cursor(&self) -> Cursor {
        Cursor { at: self.at(), next: self.next, end: self.next, last: self.last.map(|(offset, _)| offset) }
    }

    /// Why the log cannot be the one that this position is of; `None` if it can.
    fn misfit(&self, log: &dyn EventLog) -> Result<Option<String>, LogError> {
        let Self { topic, partition, next, last } = self;
        let place = format!("{topic}/{partition}");
        let extent = match log.extent(&self.at()) {
            Err(LogError::UnknownTopic(_) | LogError::UnknownPartition { .. }) => {
                return Ok(Some(format!("the log has no {place}")));
            }
            extent => extent?,
        };
        if *next > extent.end {
            return Ok(Some(format!("it stands at offset {next} of {place}, which ends at {}", extent.end)));
        }
        if *next < extent.start {
            let start = extent.start;
            return Ok(Some(format!(
                "it stands at offset {next} of {place}, and the log dropped what lies before {start}"
            )));
        }
        let Some((offset, hash)) = last.filter(|(offset, _)| *offset >= extent.start) else {
            return Ok(None);
        };
        let same = hash_at(log, &self.at(), offset)? == Some(hash);
        Ok((!same)
            .then(|| format!("record {offset} of {place} is another one: it was made from another log")))
    }
}

/// A state that was restored from a snapshot.
#[derive(Debug)]
pub struct Restored<T> {
    /// The state.
    pub state: T,
    /// When it was saved, ms since the epoch.
    pub saved_ms: i64,
    /// The positions that it stands at.
    pub positions: Vec<Position>,
}

/// Result of looking for a snapshot.
#[derive(Debug)]
pub struct Found<T> {
    /// The newest good snapshot.
    pub restored: Option<Restored<T>>,
    /// Newer ones that were skipped: file and reason.
    pub skipped: Vec<(PathBuf, String)>,
}

/// The snapshots of one reader, in a folder of their own.
#[derive(Debug)]
pub struct SnapshotStore {
    folder: PathBuf,
    kind: &'static str,
    subject: String,
    version: u32,
    /// Files that no start can use.
    unusable: BTreeSet<PathBuf>,
    /// Positions of the newest snapshot; before the first one, where reading began.
    newest: Option<Vec<Position>>,
}

impl SnapshotStore {
    /// Snapshots below `folder`. `kind` says what the state is and `subject` of what, e.g. which
    /// cluster. `version` is that of the state's layout: snapshots of another version are skipped.
    pub fn new(folder: &Path, kind: &'static str, subject: &str, version: u32) -> Self {
        let name = match subject {
            "" => kind.to_owned(),
            subject => format!("{kind}-{}", file_name(subject)),
        };
        let (folder, subject) = (folder.join(name), subject.to_owned());
        Self { folder, kind, subject, version, unusable: BTreeSet::new(), newest: None }
    }

    /// The folder of these snapshots.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Restores the newest good snapshot that fits the log. `decode` makes the state of its bytes,
    /// or says what is wrong with them. What is skipped is logged as a warning.
    ///
    /// # Errors
    /// The log cannot be reached. What is wrong with the files is no error.
    pub fn restore<T>(
        &mut self,
        log: &dyn EventLog,
        mut decode: impl FnMut(&[u8]) -> Result<T, String>,
    ) -> Result<Found<T>, LogError> {
        let mut skipped = Vec::new();
        let files = self.numbered().unwrap_or_else(|error| {
            let folder = self.folder.display();
            tracing::warn!(%folder, %error, "the folder of snapshots cannot be read");
            Vec::new()
        });
        for (_, path) in files.into_iter().rev().take(LOOKED_AT) {
            match self.open(&path, log, &mut decode)? {
                Ok(restored) => {
                    self.newest = Some(restored.positions.clone());
                    return Ok(Found { restored: Some(restored), skipped });
                }
                Err(why) => {
                    tracing::warn!(
                        file = %path.display(),
                        "a snapshot is skipped: {why}; the one before it is used, or the log from its beginning"
                    );
                    self.unusable.insert(path.clone());
                    skipped.push((path, why));
                }
            }
        }
        Ok(Found { restored: None, skipped })
    }

    fn open<T>(
        &self,
        path: &Path,
        log: &dyn EventLog,
        decode: &mut impl FnMut(&[u8]) -> Result<T, String>,
    ) -> Result<Result<Restored<T>, String>, LogError> {
        let (header, state) = match file::read(path) {
            Ok(read) => read,
            Err(why) => return Ok(Err(why)),
        };
        let file::Header { kind, subject, version, saved_ms, positions, .. } = header;
        if (kind.as_str(), subject.as_str()) != (self.kind, self.subject.as_str()) {
            return Ok(Err(format!("it is of {kind} {subject:?}, not of {} {:?}", self.kind, self.subject)));
        }
        if version != self.version {
            let age = if version > self.version { "a newer" } else { "an older" };
            return Ok(Err(format!(
                "its layout is version {version}, of {age} program; this one reads version {}",
                self.version
            )));
        }
        for position in &positions {
            if let Some(why) = position.misfit(log)? {
                return Ok(Err(why));
            }
        }
        Ok(decode(&state).map(|state| Restored { state, saved_ms, positions }))
    }

    /// Says where a reader without a snapshot begins, so that the log keeps what lies after it.
    pub fn begin(&mut self, positions: Vec<Position>) {
        self.newest = Some(positions);
    }

    /// Saves a state, durable on return, and deletes all but the two newest good snapshots.
    ///
    /// Returns the positions of the snapshot before: the log must keep what lies after them, in
    /// case this one is damaged.
    ///
    /// # Errors
    /// The file cannot be written, or the state is larger than [`MAX_STATE_BYTES`]. The snapshots
    /// before are as they were.
    pub fn save(
        &mut self,
        positions: Vec<Position>,
        state: &[u8],
        saved_ms: i64,
    ) -> Result<Vec<Position>, LogError> {
        let io = |what: &str, source| {
            LogError::io(&self.folder, format!("{what} a snapshot in {}", self.folder.display()), source)
        };
        fs::create_dir_all(&self.folder).map_err(|e| io("making the folder of", e))?;
        let last = self.numbered().map_err(|e| io("listing before", e))?.last().map_or(0, |(at, _)| *at);
        let number = last.saturating_add(1);
        let path = self.folder.join(format!("{number:020}{SUFFIX}"));
        let header = file::Header {
            kind: self.kind.to_owned(),
            subject: self.subject.clone(),
            version: self.version,
            saved_ms,
            state_bytes: state.len() as u64,
            positions,
        };
        let aside = self.folder.join(format!("{number:020}.{}{UNFINISHED}", std::process::id()));
        file::write(&path, &aside, &header, state).map_err(|e| io("writing", e))?;
        self.prune();
        let before = self.newest.replace(header.positions.clone());
        Ok(before.unwrap_or(header.positions))
    }

    /// Deletes what is not needed any more. A file that cannot be deleted is left for next time.
    fn prune(&mut self) {
        let files = self.numbered().unwrap_or_default();
        let good = files.iter().rev().filter(|(_, path)| !self.unusable.contains(path)).take(KEPT);
        let kept: BTreeSet<PathBuf> = good.map(|(_, path)| path.clone()).collect();
        for (_, path) in files {
            if !kept.contains(&path) && fs::remove_file(&path).is_ok() {
                self.unusable.remove(&path);
            }
        }
        for path in entries(&self.folder).unwrap_or_default() {
            let is_left = path.to_str().is_some_and(|name| name.ends_with(UNFINISHED));
            let written = fs::metadata(&path).and_then(|meta| meta.modified());
            let age = written.ok().and_then(|at| SystemTime::now().duration_since(at).ok());
            if is_left && age.is_some_and(|age| age > ABANDONED) && fs::remove_file(&path).is_err() {
                tracing::warn!(file = %path.display(), "an unfinished snapshot cannot be deleted");
            }
        }
    }

    fn numbered(&self) -> std::io::Result<Vec<(u64, PathBuf)>> {
        numbered(&self.folder)
    }
}

/// Snapshots of a folder by number, oldest first.
fn numbered(folder: &Path) -> std::io::Result<Vec<(u64, PathBuf)>> {
    let numbered = |path: PathBuf| {
        let number = path.file_name()?.to_str()?.strip_suffix(SUFFIX)?.parse().ok()?;
        Some((number, path))
    };
    let mut files: Vec<(u64, PathBuf)> = entries(folder)?.into_iter().filter_map(numbered).collect();
    files.sort_unstable();
    Ok(files)
}

fn entries(folder: &Path) -> std::io::Result<Vec<PathBuf>> {
    match fs::read_dir(folder) {
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(Vec::new()),
        Err(e) => Err(e),
        Ok(entries) => entries.map(|entry| entry.map(|entry| entry.path())).collect(),
    }
}

/// A snapshot as its file names itself, without its state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stored {
    /// What the state is, and of what: `signals`, or `autopilot` of a cluster.
    pub reader: String,
    /// When it was saved, ms since the epoch.
    pub saved_ms: i64,
    /// Bytes of the file.
    pub bytes: u64,
    /// Where it stands.
    pub positions: Vec<Position>,
}

/// The snapshots below a folder that can be read, oldest first for each reader. Needs no log.
///
/// # Errors
/// The folder cannot be read.
pub fn stored(folder: &Path) -> std::io::Result<Vec<Stored>> {
    let mut found = Vec::new();
    let readers = match fs::read_dir(folder) {
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(found),
        readers => readers?,
    };
    let mut folders: Vec<PathBuf> =
        readers.map(|entry| entry.map(|entry| entry.path())).collect::<std::io::Result<_>>()?;
    folders.sort_unstable();
    for folder in folders.into_iter().filter(|path| path.is_dir()) {
        for (_, path) in numbered(&folder)? {
            let Ok((file::Header { kind, subject, saved_ms, positions, .. }, _)) = file::read(&path) else {
                continue;
            };
            let reader = if subject.is_empty() { kind } else { format!("{kind} of {subject}") };
            let bytes = fs::metadata(&path).map_or(0, |meta| meta.len());
            found.push(Stored { reader, saved_ms, bytes, positions });
        }
    }
    Ok(found)
}

/// Says on the log how far a reader has come, as a consumer group, so that retention keeps what
/// lies after it. It is said anew each time: Kafka forgets offsets after a week.
///
/// # Errors
/// The log cannot be reached.
pub fn hold_log(log: &dyn EventLog, group: &str, positions: &[Position]) -> Result<(), LogError> {
    for position in positions {
        log.commit_offset(group, &position.at(), position.next)?;
    }
    Ok(())
}

/// Hash of the record at an offset; `None` if the log has no record there.
fn hash_at(log: &dyn EventLog, at: &TopicPartition, offset: u64) -> Result<Option<u64>, LogError> {
    let read = match log.read(at, offset, 1) {
        Err(LogError::OffsetOutOfRange { .. }) => return Ok(None),
        read => read?,
    };
    Ok(read.first().filter(|stored| stored.offset == offset).map(hash))
}

fn hash(stored: &StoredRecord) -> u64 {
    let mut hash = Xxh3::new();
    hash.update(&(stored.record.key.len() as u64).to_le_bytes());
    hash.update(&stored.record.key);
    hash.update(&stored.record.schema.to_le_bytes());
    hash.update(&stored.record.event_time_ms.to_le_bytes());
    hash.update(&stored.record.payload);
    hash.digest()
}

/// A subject as part of a file's name: as it is where that is plain, else with a hash.
fn file_name(subject: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_".contains(c);
    if subject.len() <= 64 && subject.chars().all(plain) {
        return subject.to_owned();
    }
    let kept: String = subject.chars().filter(|c| plain(*c)).take(32).collect();
    format!("{kept}.{:016x}", xxhash_rust::xxh3::xxh3_64(subject.as_bytes()))
}

/// Latest positions by partition.
pub fn by_partition(positions: &[Position]) -> BTreeMap<TopicPartition, Position> {
    positions.iter().map(|position| (position.at(), position.clone())).collect()
}
