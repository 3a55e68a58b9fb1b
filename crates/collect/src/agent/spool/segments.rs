//! The files of the spool. A file holds records of one epoch, numbered without gaps from the one
//! that names it.

use std::collections::VecDeque;
use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use bytes::Bytes;

use super::frame::{self, Found};
use super::{Dropped, Position, SpoolError, Spooled};

/// A file that holds as much is followed by a new one. It is also what is read at once.
const SEGMENT_BYTES: u64 = 1 << 20;
const ENDING: &str = ".records";

#[derive(Debug)]
struct Segment {
    path: PathBuf,
    first: Position,
    bytes: u64,
}

#[derive(Debug)]
pub(super) struct Segments {
    dir: PathBuf,
    /// Oldest first; the last one is written to.
    files: VecDeque<Segment>,
    /// The file that is written to, and the place of the next record in it.
    active: Option<(File, Position)>,
    /// Where a record stands that is likely to be read next: its place, the first of its file, the
    /// byte.
    cursor: Option<(Position, Position, u64)>,
}

impl Segments {
    /// Opens the files of a folder; tells the end of the last one. The end of a write that was cut
    /// off is cut away.
    pub fn open(dir: &Path) -> Result<(Self, Option<Position>), SpoolError> {
        let reading = |error| SpoolError::io("reading", dir, error);
        let mut files = Vec::new();
        for entry in fs::read_dir(dir).map_err(reading)? {
            let entry = entry.map_err(reading)?;
            if let Some(first) = parse_name(&entry.file_name().to_string_lossy()) {
                let bytes = entry.metadata().map_err(reading)?.len();
                files.push(Segment { path: entry.path(), first, bytes });
            }
        }
        files.sort_by_key(|file| file.first);
        let mut segments = Self { dir: dir.into(), files: files.into(), active: None, cursor: None };
        let end = match segments.files.back_mut() {
            Some(last) => {
                let (file, end) = open_last(last).map_err(|e| SpoolError::io("opening", &last.path, e))?;
                segments.active = Some((file, end));
                Some(end)
            }
            None => None,
        };
        Ok((segments, end))
    }

    pub fn first(&self) -> Option<Position> {
        self.files.front().map(|file| file.first)
    }

    pub fn last_epoch(&self) -> Option<u64> {
        self.files.back().map(|file| file.first.epoch)
    }

    /// The place after the last record, if there is any file.
    pub fn end(&self) -> Option<Position> {
        self.active.as_ref().map(|(_, end)| *end)
    }

    pub fn bytes(&self) -> u64 {
        self.files.iter().map(|file| file.bytes).sum()
    }

    /// Writes records and returns when they are on the disk. Of those that were not written when it
    /// failed nothing is left.
    pub fn append<'a>(&mut self, records: impl Iterator<Item = &'a Spooled>) -> Result<(), SpoolError> {
        let written = self.end();
        let mut records = records.skip_while(|spooled| Some(spooled.at) < written).peekable();
        let mut frames = Vec::new();
        while let Some(first) = records.peek().map(|spooled| spooled.at) {
            let goes_on =
                self.end() == Some(first) && self.files.back().is_some_and(|f| f.bytes < SEGMENT_BYTES);
            if !goes_on {
                self.begin(first)?;
            }
            frames.clear();
            let mut end = first;
            while let Some(spooled) =
                records.next_if(|spooled| spooled.at == end && (frames.len() as u64) < SEGMENT_BYTES)
            {
                frame::put(end.seq, &spooled.record, &mut frames);
                end.seq += 1;
            }
            self.write(&frames, end)?;
        }
        Ok(())
    }

    fn begin(&mut self, first: Position) -> Result<(), SpoolError> {
        let path = self.dir.join(name(first));
        let made = File::options().create(true).truncate(true).write(true).open(&path);
        let made = made.and_then(|file| File::open(&self.dir)?.sync_all().map(|()| file));
        let file = made.map_err(|error| SpoolError::io("making", &path, error))?;
        self.files.push_back(Segment { path, first, bytes: 0 });
        self.active = Some((file, first));
        Ok(())
    }

    fn write(&mut self, frames: &[u8], end: Position) -> Result<(), SpoolError> {
        let (Some(last), Some((file, active_end))) = (self.files.back_mut(), &mut self.active) else {
            return Ok(());
        };
        let written = file.write_all(frames).and_then(|()| file.sync_data());
        if let Err(error) = written {
            let cut = file.set_len(last.bytes).and_then(|()| file.seek(SeekFrom::Start(last.bytes)));
            if let Err(error) = cut {
                tracing::error!(path = %last.path.display(), %error, "cannot be cut; its end is taken for torn");
            }
            return Err(SpoolError::io("writing", &last.path, error));
        }
        last.bytes += frames.len() as u64;
        *active_end = end;
        Ok(())
    }

    /// Records from a place on, until the end of their file; or those of the next file that has
    /// any.
    ///
    /// What cannot be read any more is skipped and told.
    pub fn read(&mut self, from: Position, max_bytes: usize, lost: &mut Vec<Dropped>) -> Vec<Spooled> {
        let before = self.files.iter().rposition(|file| file.first <= from).unwrap_or(0);
        for index in before..self.files.len() {
            let found = self.read_file(index, from, max_bytes, lost);
            if !found.is_empty() {
                return found;
            }
        }
        Vec::new()
    }

    fn read_file(
        &mut self,
        index: usize,
        from: Position,
        max_bytes: usize,
        lost: &mut Vec<Dropped>,
    ) -> Vec<Spooled> {
        let file = &self.files[index];
        let known = self.cursor.filter(|(at, first, _)| *at == from && *first == file.first);
        let (mut expected, start) = known.map_or((file.first, 0), |(at, _, byte)| (at, byte));
        let content = match read_from(&file.path, start) {
            Ok(content) => content,
            Err(error) => {
                tracing::error!("{}", SpoolError::io("reading", &file.path, error));
                return Vec::new();
            }
        };
        let (mut at, mut taken, mut records) = (0, 0, Vec::new());
        let mut damage = |count: u64, byte: usize| {
            let why = format!("{} is damaged at byte {}", file.path.display(), start + byte as u64);
            tracing::error!(count, "{why}");
            lost.push(Dropped { count, why, ..Dropped::default() });
        };
        while taken < max_bytes {
            match frame::look(&content, at) {
                Found::Record { seq, record, bytes } => {
                    let here = Position { seq, ..file.first };
                    if here >= from {
                        taken += bytes;
                        records.push(Spooled { at: here, record });
                    }
                    (at, expected) = (at + bytes, Position { seq: seq + 1, ..file.first });
                }
                Found::Damaged { bytes } => {
                    if expected >= from {
                        // What was read so far keeps its numbers, so it goes first.
                        if !records.is_empty() {
                            break;
                        }
                        damage(1, at);
                    }
                    (at, expected.seq) = (at + bytes, expected.seq + 1);
                }
                Found::End => break,
                Found::Torn => {
                    if records.is_empty() {
                        let next = self.files.get(index + 1).map(|next| next.first);
                        let after =
                            next.filter(|next| next.epoch == expected.epoch).map_or(0, |next| next.seq);
                        let count = after.saturating_sub(expected.seq).max(1);
                        if index + 1 < self.files.len() {
                            damage(count, at)
                        }
                    }
                    break;
                }
            }
        }
        self.cursor = Some((expected, file.first, start + at as u64));
        records
    }

    /// Deletes files whose records all lie before a place.
    pub fn forget_before(&mut self, position: Position) {
        while self.files.get(1).is_some_and(|next| next.first <= position) {
            if let Some(file) = self.files.pop_front() {
                remove(&file.path);
            }
        }
    }

    /// Drops the oldest file that holds nothing before `keep` and is not being written to.
    pub fn drop_oldest(&mut self, keep: Position, why: String) -> Option<Dropped> {
        let index = self.files.iter().position(|file| file.first >= keep)?;
        if index + 1 >= self.files.len() {
            return None;
        }
        let file = self.files.remove(index)?;
        let (mut dropped, mut at) = (Dropped { why, ..Dropped::default() }, 0);
        let content = read_from(&file.path, 0).unwrap_or_default();
        loop {
            match frame::look(&content, at) {
                Found::Record { record, bytes, .. } => {
                    dropped.add(&record);
                    at += bytes;
                }
                Found::Damaged { bytes } => (at, dropped.count) = (at + bytes, dropped.count + 1),
                Found::End | Found::Torn => break,
            }
        }
        remove(&file.path);
        Some(dropped)
    }
}

/// Opens a file for writing at its end, which is cut where the last write was cut off.
fn open_last(last: &mut Segment) -> std::io::Result<(File, Position)> {
    let content = read_from(&last.path, 0)?;
    let (mut at, mut end) = (0, last.first);
    loop {
        match frame::look(&content, at) {
            Found::Record { seq, bytes, .. } => (at, end.seq) = (at + bytes, seq + 1),
            Found::Damaged { bytes } => (at, end.seq) = (at + bytes, end.seq + 1),
            Found::End | Found::Torn => break,
        }
    }
    let mut file = File::options().write(true).open(&last.path)?;
    if at < content.len() {
        let bytes = content.len() - at;
        tracing::warn!(path = %last.path.display(), bytes, "the end of a write that was cut off is cut away");
        file.set_len(at as u64)?;
        file.sync_data()?;
    }
    file.seek(SeekFrom::Start(at as u64))?;
    last.bytes = at as u64;
    Ok((file, end))
}

fn read_from(path: &Path, start: u64) -> std::io::Result<Bytes> {
    let mut file = File::open(path)?;
    let length = file.metadata()?.len().saturating_sub(start);
    file.seek(SeekFrom::Start(start))?;
    let mut content = Vec::with_capacity(length as usize);
    file.take(length).read_to_end(&mut content)?;
    Ok(content.into())
}

fn remove(path: &Path) {
    if let Err(error) = fs::remove_file(path) {
        tracing::warn!(path = %path.display(), %error, "cannot be removed");
    }
}

fn name(first: Position) -> String {
    format!("{:020}-{:020}{ENDING}", first.epoch, first.seq)
}

fn parse_name(name: &str) -> Option<Position> {
    let (epoch, seq) = name.strip_suffix(ENDING)?.split_once('-')?;
    Some(Position { epoch: epoch.parse().ok()?, seq: seq.parse().ok()? })
}
