//! Keeps what the disk holds at each instant at which a crash would leave something new behind.
//!
//! kill -9 takes a process and leaves the page cache, so a copy of the folder at that instant is
//! what a process that died there would find, exactly; nothing is dropped, closed or flushed on the
//! way. Tables' files never change once they have their name, so they are linked; the log's are
//! copied.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{ErrorKind, Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, Once, PoisonError};

use tidegate_log::fault;

use crate::victim;

/// A folder at an instant.
#[derive(Debug)]
pub struct Shot {
    pub number: usize,
    /// What was done last.
    pub done: String,
    /// To which table, if to one.
    pub table: String,
    /// The part of the story that was on.
    pub act: usize,
    lake: PathBuf,
    log: PathBuf,
}

impl Shot {
    /// Lays the folder out anew, to go on from there.
    pub fn lay_out(&self, data: &Path) {
        link_all(&self.lake, data);
        copy_all(&self.log, &data.join("log"));
    }

    /// As [`Self::lay_out`], where the log had written only a part of what the shot after `before`
    /// has more than it.
    pub fn lay_out_torn(&self, before: &Self, data: &Path, share: f64) {
        self.lay_out(data);
        tear(&before.log, &data.join("log"), share);
    }

    pub fn is_of_the_log(&self) -> bool {
        ["append", "note"].contains(&self.done.as_str())
    }
}

/// What is being watched.
struct Camera {
    data: PathBuf,
    album: PathBuf,
    act: usize,
    shots: Vec<Shot>,
    /// Copy of the log as of its last change.
    log: PathBuf,
    seen: usize,
    is_closed: bool,
}

static CAMERA: Mutex<Option<Camera>> = Mutex::new(None);

fn camera() -> std::sync::MutexGuard<'static, Option<Camera>> {
    CAMERA.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Instants are heard of from now on, once for the whole process.
pub fn watch() {
    static WATCH: Once = Once::new();
    WATCH.call_once(|| {
        fault::watch(Box::new(|done, place| {
            if let Some(camera) = &mut *camera() {
                camera.see(done, place);
            }
            victim::see(done, place);
        }));
    });
}

/// From now on instants of this folder are kept in an album.
pub fn begin(data: &Path, album: &Path) {
    watch();
    fs::create_dir_all(data).unwrap();
    let (data, album) = (data.canonicalize().unwrap(), album.to_path_buf());
    let (log, shots) = (PathBuf::new(), Vec::new());
    let mut new = Camera { data, album, act: 0, shots, log, seen: 0, is_closed: false };
    new.copy_log();
    *camera() = Some(new);
}

/// What follows is of this part of the story.
pub fn act(number: usize) {
    if let Some(camera) = &mut *camera() {
        camera.act = number;
    }
}

/// While it is closed nothing is kept: what is done then no process does.
pub fn close(is_closed: bool) {
    if let Some(camera) = &mut *camera() {
        camera.is_closed = is_closed;
    }
}

/// All that was kept.
pub fn end() -> Vec<Shot> {
    camera().take().unwrap().shots
}

impl Camera {
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
        self.shots.push(Shot { number, done, table, act: self.act, lake, log: self.log.clone() });
    }

    fn copy_log(&mut self) {
        self.log = self.album.join(format!("log-{:05}", self.seen));
        copy_all(&self.data.join("log"), &self.log);
    }
}

/// What a file of the lake is, and in a commit, what for.
pub fn describe(done: &str, place: &Path) -> String {
    let name = place.file_name().and_then(OsStr::to_str).unwrap_or_default();
    let kind = match name {
        name if name.contains(".checkpoint") => "checkpoint",
        name if name.starts_with("_last_checkpoint") => "checkpoint hint",
        name if name.contains(".json") => match fs::read_to_string(place).unwrap_or_default() {
            text if text.contains("tidegate-owner/") => "claim",
            text if text.contains("tidegate-kept/") => "retention",
            text if text.contains(r#""operation":"OPTIMIZE""#) => "compaction",
            text if text.contains(r#""operation":"VACUUM"#) => "vacuum",
            text if text.contains(r#""operation":"CREATE TABLE""#) => "table",
            _ => "commit",
        },
        name if name.contains(".parquet") => "rows",
        other => other,
    };
    format!("{done}: {kind}")
}

/// Links all files but those of the log. What is deleted while one looks is gone.
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

/// Copies a folder, if there is one; of the log's preallocated journals only what is written.
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

/// Where a file holds data, between its holes.
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

/// Takes back the last part of what files below `now` hold otherwise than those below `before`: a
/// write that did not get done.
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
