//! A byte on the disk that says whether the state beside it is true, for when the disk takes no
//! more.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use super::SpoolError;

/// How the state on the disk stands to what was sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Note {
    /// It is behind by the chunk that is being sent, at most.
    Saved,
    /// It may be behind by any number of chunks.
    Behind,
    /// The same, and records were sent that are not on the disk: their numbers are used up.
    SentFromMemory,
}

/// The file that holds the note. Writing a byte in its place needs no space.
#[derive(Debug)]
pub(super) struct NoteFile {
    path: PathBuf,
    file: File,
    pub note: Note,
}

impl NoteFile {
    pub fn open(dir: &Path) -> Result<Self, SpoolError> {
        let path = dir.join("note");
        let open = || {
            let mut file = File::options().create(true).truncate(false).read(true).write(true).open(&path)?;
            let mut said = Vec::new();
            file.read_to_end(&mut said)?;
            if said.is_empty() {
                file.write_all(b"0")?;
                file.sync_all()?;
            }
            let note = match said.first() {
                None | Some(b'0') => Note::Saved,
                Some(b'1') => Note::Behind,
                Some(_) => Note::SentFromMemory,
            };
            Ok((file, note))
        };
        let (file, note) = open().map_err(|error| SpoolError::io("opening", &path, error))?;
        Ok(Self { path, file, note })
    }

    /// Returns when it is on the disk. A disk that takes not even this is told; nothing else can be
    /// done about it.
    pub fn write(&mut self, note: Note) {
        if self.note == note {
            return;
        }
        let byte = match note {
            Note::Saved => b"0",
            Note::Behind => b"1",
            Note::SentFromMemory => b"2",
        };
        let written = self.file.seek(SeekFrom::Start(0)).and_then(|_| self.file.write_all(byte));
        match written.and_then(|()| self.file.sync_data()) {
            Ok(()) => self.note = note,
            Err(error) => tracing::error!(path = %self.path.display(), %error, "cannot be written"),
        }
    }
}
