//! Snapshots of a folder at every instant at which a crash would leave a new state behind.
//!
//! `kill -9` ends a process and leaves the page cache. So a copy of the folder at that instant is
//! exactly what the next process would find: nothing is dropped, closed or flushed on the way.
//! Files of tables never change once they have their name, so they are hard-linked. Files of the
//! log are copied.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{ErrorKind, Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, Once, PoisonError};

use tidegate_log::fault;

use crate::victim;

/// Snapshot of the folder.
#[derive(Debug)]
pub struct Snapshot {
    pub number: usize,
    /// The last step before the snapshot.
    pub done: String,
    /// The table that the step concerns, if it is one.
    pub table: String,
    /// The part of the story that was being played.
    pub act: usize,
    lake: PathBuf,
    log: PathBuf,
}

impl Snapshot {
    /// Restores the folder, to continue from there.
    pub fn lay_out(&self, data: &Path) {
        link_all(&self.lake, data);
        copy_all(&self.log, &data.join("log"));
    }

    /// As [`Self::lay_out`], where the log had written only a share of what changed since the
    /// snapshot `before`.
    pub fn lay_out_torn(&self, before: &Self, data: &Path, share: f64) {
        self.lay_out(data);
        tear(&before.log, &data.join("log"), share);
    }

    pub fn is_of_the_log(&self) -> bool {
        ["append", "note"].contains(&self.done.as_str())
    }
}

/// What is being recorded.
struct Recorder {
    data: PathBuf,
    album: PathBuf,
    act: usize,
    all_snapshots: Vec<Snapshot>,
    /// Copy of the log as of its last change.
    log: PathBuf,
    seen: usize,
    is_closed: bool,
}

static CAMERA: Mutex<Option<Recorder>> = Mutex::new(None);

fn snapshots() -> std::sync::MutexGuard<'static, Option<Recorder>> {
    CAMERA.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Registers for fault points, once for the whole process.
pub fn watch() {
    static WATCH: Once = Once::new();
    WATCH.call_once(|| {
        fault::watch(Box::new(|done, place| {
            if let Some(snapshots) = &mut *snapshots() {
                snapshots.see(done, place);
            }
            victim::see(done, place);
        }));
    });
}

/// Records the instants of this folder in an album from now on.
pub fn begin(data: &Path, album: &Path) {
    watch();
    fs::create_dir_all(data).unwrap();
    let (data, album) = (data.canonicalize().unwrap(), album.to_path_buf());
    let (log, all_snapshots) = (PathBuf::new(), Vec::new());
    let mut new = Recorder { data, album, act: 0, all_snapshots, log, seen: 0, is_closed: false };
    new.copy_log();
    *snapshots() = Some(new);
}

/// What follows belongs to this part of the story.
pub fn act(number: usize) {
    if let Some(snapshots) = &mut *snapshots() {
        snapshots.act = number;
    }
}

/// Pauses recording: what is done meanwhile is not done by a process under test.
pub fn close(is_closed: bool) {
    if let Some(snapshots) = &mut *snapshots() {
        snapshots.is_closed = is_closed;
    }
}

/// Stops recording and returns all snapshots.
pub fn end() -> Vec<Snapshot> {
    snapshots().take().unwrap().all_snapshots
}

impl Recorder {
    fn see(&mut self, done: &'static str, place: &Path) {
        let Ok(inside) = place.strip_prefix(&self.data) else { return };
        if self.is_closed {
            return;
        }
        let number = self.seen;
        self.seen += 1;
        let of_log = inside.starts_with("log");
        if of_log {
            self.copy_log();
        }
        let lake = self.album.join(format!("{number:05}"));
        link_all(&self.data, &lake);
        let done = if of_log { done.to_owned() } else { describe(done, place) };
        let table = inside.strip_prefix("lake").ok().and_then(|path| path.iter().next());
        let table = table.and_then(OsStr::to_str).unwrap_or_default().to_owned();
        self.all_snapshots.push(Snapshot { number, done, table, act: self.act, lake, log: self.log.clone() });
    }

    fn copy_log(&mut self) {
        self.log = self.album.join(format!("log-{:05}", self.seen));
        copy_all(&self.data.join("log"), &self.log);
    }
}

/// Describes a step by the file of the lake it concerns, and a commit by its purpose.
pub fn describe(done: &str, place: &Path) -> String {
    let name = place.file_name().and_then(OsStr::to_str).unwrap_or_default();
    let kind = match name {
        name if name.contains(".checkpoint") => "checkpoint",
        name if name.starts_with("_last_checkpoint") => "checkpoint hint",
        name if name.contains(".json") => match fs::read_to_string(place).unwrap_or_default() {
            text if text.contains("tidegate-owner/") => "claim",
            text if text.contains("tidegate-kept/") => "retention",
            text if text.contains(r#""operation":"OPTIMIZE""#) => "compaction",
            text if text.contains(r#""operation":"CREATE TABLE""#) => "table",
            _ => "commit",
        },
        name if name.contains(".parquet") => "rows",
        other => other,
    };
    format!("{done}: {kind}")
}

/// Links all files but those of the log. Files that are deleted meanwhile are skipped.
fn link_all(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in from.read_dir().unwrap() {
        let entry = entry.unwrap();
        let (path, there) = (entry.path(), to.join(entry.file_name()));
        if !entry.file_type().unwrap().is_dir() {
            match fs::hard_link(&path, &there) {
                Err(e) if e.kind() == ErrorKind::NotFound => {}
                linked => linked.unwrap(),
            }
        } else if entry.file_name() != "log" {
            link_all(&path, &there);
        }
    }
}

/// Copies a folder if it exists; of the log's preallocated journals only what was written.
fn copy_all(from: &Path, to: &Path) {
    let Ok(entries) = from.read_dir() else { return };
    fs::create_dir_all(to).unwrap();
    for entry in entries {
        let entry = entry.unwrap();
        let (path, there) = (entry.path(), to.join(entry.file_name()));
        if entry.file_type().unwrap().is_dir() {
            copy_all(&path, &there);
        } else if let Ok(file) = File::open(&path) {
            copy_data(file, &there);
        }
    }
}

fn copy_data(mut from: File, to: &Path) {
    let mut copy = File::create(to).unwrap();
    for (begin, end) in stretches(&from) {
        from.seek(std::io::SeekFrom::Start(begin)).unwrap();
        copy.seek(std::io::SeekFrom::Start(begin)).unwrap();
        std::io::copy(&mut Read::by_ref(&mut from).take(end - begin), &mut copy).unwrap();
    }
    copy.set_len(from.metadata().unwrap().len()).unwrap();
}

/// Ranges of a file that hold data, between its holes.
fn stretches(file: &File) -> Vec<(u64, u64)> {
    use rustix::fs::{SeekFrom, seek};
    let mut found = Vec::new();
    let mut at = 0;
    while let Ok(begin) = seek(file, SeekFrom::Data(at)) {
        at = seek(file, SeekFrom::Hole(begin)).unwrap();
        found.push((begin, at));
    }
    found
}

/// Reverts the last part of what files below `now` changed since `before`: a write that was cut
/// short.
fn tear(before: &Path, now: &Path, share: f64) {
    let Ok(entries) = now.read_dir() else { return };
    for entry in entries {
        let entry = entry.unwrap();
        let (path, old) = (entry.path(), before.join(entry.file_name()));
        if entry.file_type().unwrap().is_dir() {
            tear(&old, &path, share);
            continue;
        }
        let (Ok(was), mut is) = (fs::read(&old), fs::read(&path).unwrap()) else { continue };
        if was == is || was.len() != is.len() {
            continue;
        }
        let differs = |place: &usize| was[*place] != is[*place];
        let (first, last) = ((0..is.len()).find(differs).unwrap(), (0..is.len()).rfind(differs).unwrap());
        let torn = first + ((last + 1 - first) as f64 * share) as usize;
        is[torn..].copy_from_slice(&was[torn..]);
        let mut file = File::create(&path).unwrap();
        file.write_all(&is).unwrap();
    }
}
