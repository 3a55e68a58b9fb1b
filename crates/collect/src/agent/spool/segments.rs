//! Segment files of the spool. Each holds records of one epoch, numbered without gaps from the one
//! in its name.

use std::collections::VecDeque;
use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use bytes::Bytes;

use super::frame::{self, Found};
use super::{Position, SpoolError, Spooled};
use crate::agent::losses::Dropped;

/// A segment of this size is followed by a new one. It also bounds a single read.
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
    /// Oldest first; the last one is open for writing.
    files: VecDeque<Segment>,
    /// The open segment, and the position of its next record.
    active: Option<(File, Position)>,
    /// Offset of the record likely to be read next: its position, the first position of its file,
    /// the byte.
    cursor: Option<(Position, Position, u64)>,
}

impl Segments {
    /// Opens the segments of a folder and returns the end of the last one. A torn tail is cut off.
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

    /// Position after the last record, if there is any segment.
    pub fn end(&self) -> Option<Position> {
        self.active.as_ref().map(|(_, end)| *end)
    }

    pub fn bytes(&self) -> u64 {
        self.files.iter().map(|file| file.bytes).sum()
    }

    /// Writes records and returns once they are on disk. After a failure nothing of the failed
    /// write remains.
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
                frame::encode(end.seq, &spooled.record, &mut frames);
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

    /// Reads records from a position to the end of their file, or those of the next file that has
    /// any. Unreadable records are skipped and added to `lost`.
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
            match frame::read_at(&content, at) {
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
                        // Records before the damage keep their numbers, so they go first.
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

    /// Deletes segments whose records all lie before a position.
    pub fn delete_before(&mut self, position: Position) {
        while self.files.get(1).is_some_and(|next| next.first <= position) {
            if let Some(file) = self.files.pop_front() {
                remove(&file.path);
            }
        }
    }

    /// Drops the oldest segment that holds nothing before `keep` and is not open for writing.
    pub fn drop_oldest(&mut self, keep: Position, why: String) -> Option<Dropped> {
        let index = self.files.iter().position(|file| file.first >= keep)?;
        if index + 1 >= self.files.len() {
            return None;
        }
        let file = self.files.remove(index)?;
        let (mut dropped, mut at) = (Dropped { why, ..Dropped::default() }, 0);
        let content = read_from(&file.path, 0).unwrap_or_default();
        loop {
            match frame::read_at(&content, at) {
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

/// Opens a segment for appending, without its torn tail.
fn open_last(last: &mut Segment) -> std::io::Result<(File, Position)> {
    let content = read_from(&last.path, 0)?;
    let (mut at, mut end) = (0, last.first);
    loop {
        match frame::read_at(&content, at) {
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
