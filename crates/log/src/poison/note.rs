//! The note of what a reader works on: a file of fixed length that is written in place.

use std::fs::{self, File, OpenOptions};
use std::io::ErrorKind;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::Place;

/// Length of the file. A place that is longer is noted as work.
const BYTES: usize = 1_024;

/// The file, and what stands in it.
#[derive(Debug)]
pub(super) struct Note {
    path: PathBuf,
    file: Option<File>,
    last: Option<(Place, bool)>,
}

#[derive(Serialize, Deserialize)]
struct Line {
    process: u32,
    place: Place,
    /// It is tried alone.
    #[serde(default)]
    alone: bool,
}

impl Note {
    /// Opens the note of a reader. Returns it with the place that a life left which died, and
    /// whether it tried that alone.
    pub fn open(folder: &Path, reader: &str) -> (Self, Option<(Place, bool)>) {
        let path = folder.join(format!("{reader}.at"));
        let left = match fs::read(&path) {
            Ok(bytes) => died_at(&bytes),
            Err(_) => None,
        };
        let open = |path: &Path| {
            fs::create_dir_all(folder)?;
            OpenOptions::new().create(true).write(true).truncate(false).open(path)
        };
        let file = open(&path).inspect_err(|error| {
            tracing::warn!(%error, "{} cannot be written: a death leaves no trace", path.display());
        });
        (Self { path, file: file.ok(), last: None }, left)
    }

    /// Writes the place over the last one; `alone` if it is tried alone.
    pub fn write(&mut self, place: &Place, alone: bool) {
        if self.last.as_ref().is_some_and(|last| (&last.0, last.1) == (place, alone)) {
            return;
        }
        let text = |place: &Place, alone: bool| {
            serde_json::to_vec(&Line { process: std::process::id(), place: place.clone(), alone })
                .unwrap_or_default()
        };
        let mut line = text(place, alone);
        if line.len() > BYTES {
            line = text(&Place::Work, false);
        }
        line.resize(BYTES, b' ');
        if let Some(file) = &self.file
            && let Err(error) = file.write_all_at(&line, 0)
        {
            tracing::warn!(%error, "{} cannot be written: a death leaves no trace", self.path.display());
            self.file = None;
        }
        self.last = Some((place.clone(), alone));
    }

    /// What was written last.
    pub fn last(&self) -> Option<(Place, bool)> {
        self.last.clone()
    }

    pub fn remove(&mut self) {
        if let Err(error) = fs::remove_file(&self.path)
            && error.kind() != ErrorKind::NotFound
            && self.file.is_some()
        {
            tracing::warn!(%error, "{} cannot be removed", self.path.display());
        }
    }
}

/// Where the process that left this note died, and whether it tried that alone. `None` if it still
/// runs: with the log on Kafka, several processes may share a folder.
fn died_at(bytes: &[u8]) -> Option<(Place, bool)> {
    let Ok(Line { process, place, alone }) = serde_json::from_slice(bytes) else {
        return Some((Place::Work, false));
    };
    let is_alive = process != std::process::id() && Path::new(&format!("/proc/{process}")).exists();
    (!is_alive).then_some((place, alone))
}
