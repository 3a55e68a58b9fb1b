//! A one-byte file that says whether the saved state is current. It works on a full disk, because
//! overwriting a byte needs no space.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use super::SpoolError;

/// How far the saved state lags behind what was sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum StateMarker {
    /// It lags by at most the chunk in flight.
    Saved,
    /// It may lag by any number of chunks.
    Behind,
    /// It may lag, and records were sent that are not on disk, so their numbers are used up.
    SentFromMemory,
}

/// The file that holds the marker.
#[derive(Debug)]
pub(super) struct MarkerFile {
    path: PathBuf,
    file: File,
    pub marker: StateMarker,
}

impl MarkerFile {
    pub fn open(dir: &Path) -> Result<Self, SpoolError> {
        let path = dir.join("note");
        let open = || {
            let mut file = File::options().create(true).truncate(false).read(true).write(true).open(&path)?;
            let mut content = Vec::new();
            file.read_to_end(&mut content)?;
            if content.is_empty() {
                file.write_all(b"0")?;
                file.sync_all()?;
            }
            let marker = match content.first() {
                None | Some(b'0') => StateMarker::Saved,
                Some(b'1') => StateMarker::Behind,
                Some(_) => StateMarker::SentFromMemory,
            };
            Ok((file, marker))
        };
        let (file, marker) = open().map_err(|error| SpoolError::io("opening", &path, error))?;
        Ok(Self { path, file, marker })
    }

    /// Writes the marker and returns once it is on disk. A failure is only logged: nothing else can
    /// be done about it.
    pub fn write(&mut self, marker: StateMarker) {
        if self.marker == marker {
            return;
        }
        let byte = match marker {
            StateMarker::Saved => b"0",
            StateMarker::Behind => b"1",
            StateMarker::SentFromMemory => b"2",
        };
        let written = self.file.seek(SeekFrom::Start(0)).and_then(|_| self.file.write_all(byte));
        match written.and_then(|()| self.file.sync_data()) {
            Ok(()) => self.marker = marker,
            Err(error) => tracing::error!(path = %self.path.display(), %error, "cannot be written"),
        }
    }
}
