//! The spool: records on the node's disk until the log has them.
//!
//! A spool is a folder of segments, files of frames named by their first record. Records are
//! numbered without gaps within an epoch, which is one life of the spool on one boot of one
//! machine. A record is deleted with its segment, once the log has acknowledged all of it, or when
//! the spool exceeds its limit. The limit drops the oldest segments first, except those that may
//! already have been sent: the number that a record was appended under must always stay known.
//!
//! While the disk is full, a few MiB of records wait in memory and are sent from there.

mod frame;
mod marker;
mod segments;
mod state;

use std::collections::VecDeque;
use std::fs::{self, File, TryLockError};
use std::io::Write;
use std::path::{Path, PathBuf};

use tidegate_log::{Record, TopicPartition};

use super::losses::Dropped;
use marker::{MarkerFile, StateMarker};
use segments::Segments;
pub use state::{Position, boot_id};
use state::{SpoolIdentity, State, partition_key};

/// Bound on the bytes of one chunk.
pub const CHUNK_BYTES: usize = 1 << 20;
/// Bound on the bytes kept in memory while the disk is full.
const MEMORY_BYTES: usize = 3 << 20;

/// Folder and limits of a spool.
#[derive(Debug, Clone)]
pub struct SpoolOptions {
    /// The folder.
    pub dir: PathBuf,
    /// Bytes on disk beyond which the oldest records are dropped.
    pub limit_bytes: u64,
    /// Begin a new epoch even if another collector reports under this name, and send what is
    /// spooled under it.
    pub take_over: bool,
}

/// Failure to open or write a spool.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages describe the variants")]
#[non_exhaustive]
pub enum SpoolError {
    #[error("the spool {} is in use by {holder}; stop it, or give this one a spool of its own with --spool", .dir.display())]
    InUse { dir: PathBuf, holder: String },
    #[error("the spool {} is of {found}, not of {wanted}; name another --spool, or the name it was begun with", .dir.display())]
    OtherOwner { dir: PathBuf, found: String, wanted: String },
    #[error("{} is of a newer tidegate; use that one", .path.display())]
    NewerFormat { path: PathBuf },
    #[error("{what} {} failed: {source}{}", .path.display(), advice(.source))]
    Io { what: &'static str, path: PathBuf, source: std::io::Error },
}

impl SpoolError {
    fn io(what: &'static str, path: &Path, source: std::io::Error) -> Self {
        Self::Io { what, path: path.into(), source }
    }
}

fn advice(error: &std::io::Error) -> &'static str {
    use std::io::ErrorKind::{PermissionDenied, QuotaExceeded, ReadOnlyFilesystem, StorageFull};
    match error.kind() {
        PermissionDenied => "; name a folder that this user may write to with --spool",
        StorageFull | QuotaExceeded => "; free some space, or name another folder with --spool",
        ReadOnlyFilesystem => "; name a folder on another file system with --spool",
        _ => "",
    }
}

/// A record and its position.
#[derive(Debug, Clone, PartialEq)]
pub struct Spooled {
    /// Its position in the spool.
    pub at: Position,
    /// The record.
    pub record: Record,
}

/// An open spool; no other process has it open.
#[derive(Debug)]
pub struct Spool {
    dir: PathBuf,
    limit_bytes: u64,
    state: State,
    segments: Segments,
    /// Sequence number of the next record.
    next_seq: u64,
    /// Records that are not on disk: pushed since the last sync, or since the disk became full.
    memory: VecDeque<Spooled>,
    memory_bytes: usize,
    /// Whether records in memory may be sent from there.
    disk_failed: bool,
    /// Records before this position may have been sent and are never dropped.
    in_flight_end: Position,
    marker: MarkerFile,
    dropped: Vec<Dropped>,
    lock: File,
}

impl Spool {
    /// Opens the spool of `source` in `cluster`, or makes one.
    ///
    /// # Errors
    /// [`SpoolError`] if another process has it open, it belongs to another collector, or the disk
    /// fails.
    pub fn open(
        options: &SpoolOptions,
        source: &str,
        cluster: &str,
        now_ms: i64,
    ) -> Result<Self, SpoolError> {
        let (dir, now) = (options.dir.clone(), u64::try_from(now_ms).unwrap_or(0));
        fs::create_dir_all(&dir).map_err(|e| SpoolError::io("creating the folder", &dir, e))?;
        let lock = lock(&dir)?;
        let place = SpoolIdentity::from_lock(&lock).map_err(|e| SpoolError::io("looking at", &dir, e))?;
        let (mut segments, found) = Segments::open(&dir)?;
        let marker = MarkerFile::open(&dir)?;
        let stored = State::read(&dir)?;
        let is_unknown = stored.is_none() && found.is_some();
        let mut state = stored.clone().unwrap_or_else(|| State::new(source, cluster, place.clone(), now));
        if (state.source.as_str(), state.cluster.as_str()) != (source, cluster) {
            let name = |source: &str, cluster: &str| format!("{source} in cluster {cluster}");
            let (found, wanted) = (name(&state.source, &state.cluster), name(source, cluster));
            return Err(SpoolError::OtherOwner { dir, found, wanted });
        }
        if is_unknown {
            let first = segments.first().unwrap_or_default();
            (state.position, state.epoch) = (first, segments.last_epoch().unwrap_or(0));
        }
        if is_unknown || marker.marker == StateMarker::SentFromMemory || options.take_over {
            state.renumber(now);
        } else if state.place != place {
            state.begin_epoch(now);
        }
        state.place = place;
        let in_epoch = |at: &Position| at.epoch == state.epoch;
        let on_disk = found.filter(in_epoch).map_or(0, |end| end.seq);
        let delivered = Some(state.position).filter(in_epoch).map_or(0, |at| at.seq);
        if stored.as_ref() != Some(&state) {
            state.write(&dir)?;
        }
        segments.delete_before(state.position);
        let mut spool = Self {
            dir,
            limit_bytes: options.limit_bytes,
            next_seq: on_disk.max(delivered),
            in_flight_end: state.position,
            state,
            segments,
            memory: VecDeque::new(),
            memory_bytes: 0,
            disk_failed: false,
            marker,
            dropped: Vec::new(),
            lock,
        };
        // The previous process may have sent the first chunk, or anything at all if it could not
        // save its progress.
        let was_behind = spool.marker.marker == StateMarker::Behind;
        spool.save();
        spool.chunk();
        if was_behind {
            spool.in_flight_end = spool.next();
        }
        Ok(spool)
    }

    /// Position of the next record.
    pub fn next(&self) -> Position {
        Position { epoch: self.state.epoch, seq: self.next_seq }
    }

    /// Adds a record at [`Spool::next`]. It is on disk after [`Spool::sync`].
    pub fn push(&mut self, record: Record) {
        let at = self.next();
        self.next_seq += 1;
        self.memory_bytes += bytes(&record);
        self.memory.push_back(Spooled { at, record });
    }

    /// Writes pushed records and returns once they are on disk. Records that the disk refuses stay
    /// in memory and are retried with the next sync; if they exceed the memory bound, the oldest
    /// are dropped.
    ///
    /// # Errors
    /// [`SpoolError`] if the disk refused some of them.
    pub fn sync(&mut self) -> Result<(), SpoolError> {
        let waiting = self.memory.iter().filter(|spooled| spooled.at >= self.state.position);
        let written = self.segments.append(waiting);
        // A failed sync may still have written some of them.
        let end = self.segments.end().unwrap_or_default();
        while self.memory.front().is_some_and(|spooled| written.is_ok() || spooled.at < end) {
            self.drop_first_in_memory();
        }
        self.disk_failed = written.is_err();
        self.drop_from_memory();
        self.drop_from_disk();
        written
    }

    /// The first records that the log may lack, all of one epoch.
    pub fn chunk(&mut self) -> Vec<Spooled> {
        let before = self.dropped.len();
        let mut chunk = self.segments.read(self.state.position, CHUNK_BYTES, &mut self.dropped);
        if self.dropped.len() > before {
            // Lost records shift the numbering, so later appends start a new epoch.
            self.state.position =
                chunk.first().map(|first| first.at).or(self.segments.end()).unwrap_or_default();
            self.state.renumber(self.state.epoch);
            self.next_seq = 0;
            self.save();
        }
        if chunk.is_empty() && self.disk_failed {
            let (mut taken, from) = (0, self.state.position);
            let waiting = self.memory.iter().skip_while(|spooled| spooled.at < from);
            let fits = waiting.take_while(|spooled| {
                taken += bytes(&spooled.record);
                taken <= CHUNK_BYTES || taken == bytes(&spooled.record)
            });
            chunk = fits.cloned().collect();
            let epoch = chunk.first().map(|first| first.at.epoch);
            chunk.retain(|spooled| Some(spooled.at.epoch) == epoch);
            if !chunk.is_empty() {
                self.marker.write(StateMarker::SentFromMemory);
            }
        }
        if let Some(last) = chunk.last() {
            self.in_flight_end = Position { seq: last.at.seq + 1, ..last.at };
        }
        chunk
    }

    /// Epoch under which records of `epoch` are appended.
    pub fn append_epoch(&self, epoch: u64) -> u64 {
        self.state.append_epoch(epoch)
    }

    /// The next append's sequence number in a partition, under an epoch.
    pub fn next_append(&self, append_epoch: u64, at: &TopicPartition) -> u64 {
        match self.state.appending == append_epoch {
            true => self.state.next.get(&partition_key(at)).copied().unwrap_or(0),
            false => 0,
        }
    }

    /// Records that the log has everything before `until`, appended under `append_epoch`. `next`
    /// holds the next sequence numbers.
    pub fn delivered(&mut self, until: Position, append_epoch: u64, next: &[(TopicPartition, u64)]) {
        self.set_next(append_epoch, next);
        self.state.position = until;
        while self.memory.front().is_some_and(|spooled| self.disk_failed && spooled.at < until) {
            self.drop_first_in_memory();
        }
        if self.save() {
            self.segments.delete_before(until);
        }
    }

    /// Adopts the log's sequence numbers where they differ from ours.
    pub fn set_next(&mut self, append_epoch: u64, next: &[(TopicPartition, u64)]) {
        if self.state.appending != append_epoch {
            self.state.appending = append_epoch;
            self.state.next.clear();
        }
        self.state.next.extend(next.iter().map(|(at, next)| (partition_key(at), *next)));
    }

    /// Remembers another collector's epoch, so that a takeover goes beyond it.
    pub fn refused_for(&mut self, epoch: u64) {
        self.state.refused_for = self.state.refused_for.max(epoch);
        self.save();
    }

    /// Fingerprint of this machine, boot and folder.
    pub fn instance(&self) -> String {
        self.state.place.fingerprint()
    }

    /// Losses since the last call.
    pub fn take_dropped(&mut self) -> Vec<Dropped> {
        std::mem::take(&mut self.dropped)
    }

    /// Bytes on disk.
    pub fn bytes(&self) -> u64 {
        self.segments.bytes()
    }

    /// Unlocks the spool for another process.
    pub fn release(&self) {
        if let Err(error) = self.lock.unlock() {
            tracing::warn!(dir = %self.dir.display(), %error, "cannot be unlocked");
        }
    }

    /// Whether the log has every pushed record.
    pub fn is_drained(&self) -> bool {
        let last = self.memory.back().map(|spooled| spooled.at);
        self.segments.end().is_none_or(|end| end <= self.state.position)
            && last.is_none_or(|last| last < self.state.position)
    }

    /// Saves the state. If the disk refuses, the marker says that the saved state is behind.
    fn save(&mut self) -> bool {
        match self.state.write(&self.dir) {
            Ok(()) => {
                self.marker.write(StateMarker::Saved);
                true
            }
            Err(error) => {
                tracing::warn!("{error}");
                self.marker.write(self.marker.marker.max(StateMarker::Behind));
                false
            }
        }
    }

    fn drop_first_in_memory(&mut self) {
        let forgotten = self.memory.pop_front();
        self.memory_bytes -= forgotten.map_or(0, |spooled| bytes(&spooled.record));
    }

    fn drop_from_memory(&mut self) {
        let mut dropped = Dropped::default();
        while self.memory_bytes > MEMORY_BYTES {
            let sent = self.memory.iter().take_while(|spooled| spooled.at < self.in_flight_end).count();
            let Some(oldest) = self.memory.remove(sent) else { break };
            self.memory_bytes -= bytes(&oldest.record);
            dropped.add(&oldest.record);
        }
        if dropped.count > 0 {
            dropped.why = format!("the disk of the spool {} takes no more", self.dir.display());
            self.dropped.push(dropped);
        }
    }

    fn drop_from_disk(&mut self) {
        while self.segments.bytes() > self.limit_bytes {
            let why =
                format!("the spool {} holds its limit of {} bytes", self.dir.display(), self.limit_bytes);
            let Some(dropped) = self.segments.drop_oldest(self.in_flight_end, why) else { break };
            self.dropped.push(dropped);
        }
    }
}

fn bytes(record: &Record) -> usize {
    record.key.len() + record.payload.len() + 64
}

/// Locks the folder for this process.
fn lock(dir: &Path) -> Result<File, SpoolError> {
    let path = dir.join("LOCK");
    let opened = File::options().create(true).truncate(false).read(true).write(true).open(&path);
    let mut file = opened.map_err(|e| SpoolError::io("opening", &path, e))?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            let holder = fs::read_to_string(&path).unwrap_or_default();
            let holder = if holder.trim().is_empty() { "another process" } else { holder.trim() };
            return Err(SpoolError::InUse { dir: dir.into(), holder: holder.into() });
        }
        Err(TryLockError::Error(error)) => return Err(SpoolError::io("locking", &path, error)),
    }
    // Names the holder for the error of a second process. A full disk is no reason to fail.
    let named = file.set_len(0).and_then(|()| writeln!(file, "process {}", std::process::id()));
    if let Err(error) = named {
        tracing::warn!(path = %path.display(), %error, "cannot write who holds the spool");
    }
    Ok(file)
}

#[cfg(test)]
mod tests;
