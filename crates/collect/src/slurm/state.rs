//! What the watcher remembers of jobs, and the file in which it finds it again.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::inventory::Inventory;
use super::record::End;

/// A job that is in the queue, runs, or whose end is not certain yet.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Job {
    /// Of the last submission told; a requeue is a new one.
    pub submit_ms: Option<i64>,
    pub eligible_ms: Option<i64>,
    /// Whether it was last seen waiting; and the last reason told of this wait.
    pub waits: bool,
    pub reason: Option<String>,
    /// Attempts that hold devices, or whose end is not certain.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub attempts: Vec<Attempt>,
    /// When the queue was first without it, and when it was last there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub missing: Option<Missing>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Missing {
    pub since_ms: i64,
    pub seen_ms: i64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Attempt {
    pub start_ms: i64,
    pub suspended: bool,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub devices: Vec<(String, Vec<u32>)>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub over: Option<Over>,
}

/// An attempt that is over while its end is not certain.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Over {
    /// When that was noticed, and when it was last seen to run.
    pub since_ms: i64,
    pub seen_ms: i64,
    /// The end as far as the queue tells it.
    pub hint: Option<End>,
    /// It still gives its devices back: the queue will say how it ended.
    pub giving_back: bool,
}

impl Over {
    pub(super) fn new(since_ms: i64, seen_ms: i64, hint: Option<End>) -> Self {
        Self { since_ms, seen_ms, hint, giving_back: false }
    }
}

/// An end that was told: of the attempt that began then, or of a wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Told {
    pub start_ms: Option<i64>,
    pub end_ms: i64,
}

/// All of it. Losing it loses no event that Slurm can still tell: the events come again and are known by their ids.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(super) struct State {
    pub jobs: BTreeMap<String, Job>,
    pub told: BTreeMap<String, Vec<Told>>,
    /// Time of the last answer of the queue that was used, and of accounting.
    pub polled_ms: Option<i64>,
    pub accounted_ms: Option<i64>,
    /// Up to when everything was told.
    pub observed_ms: Option<i64>,
    #[serde(default)]
    pub inventory: Inventory,
    /// Events that belong to this state and may not have been handed on: their schemas and encodings.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pending: Vec<(u32, String)>,
}

/// The file of a cluster's state in a folder.
#[derive(Debug, Clone)]
pub(super) struct StateFile {
    path: PathBuf,
}

impl StateFile {
    pub(super) fn new(folder: &Path, cluster: &str) -> io::Result<Self> {
        fs::create_dir_all(folder)?;
        Ok(Self { path: folder.join(format!("slurm-{cluster}.json")) })
    }

    /// What was saved last; nothing if there is none.
    ///
    /// # Errors
    /// A file that cannot be read, or not as a state: it says how to go on.
    pub(super) fn load(&self) -> io::Result<State> {
        let text = match fs::read(&self.path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(State::default()),
            Err(error) => return Err(error),
        };
        serde_json::from_slice(&text).map_err(|error| {
            let path = self.path.display();
            io::Error::other(format!(
                "{path} is damaged: {error}; move it away to begin with what Slurm still knows"
            ))
        })
    }

    /// Saves it so that after a crash either this state or the one before is there.
    pub(super) fn save(&self, state: &State) -> io::Result<()> {
        let aside = self.path.with_extension("json.new");
        let mut file = File::create(&aside)?;
        file.write_all(&serde_json::to_vec(state)?)?;
        file.sync_all()?;
        fs::rename(&aside, &self.path)?;
        self.path.parent().map_or(Ok(()), |folder| File::open(folder)?.sync_all())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_is_found_again_and_a_damaged_one_is_not_taken_for_none() {
        let folder = tempfile::tempdir().unwrap();
        let file = StateFile::new(folder.path(), "c1").unwrap();
        assert!(file.load().unwrap().jobs.is_empty());
        let mut state = State { polled_ms: Some(5), ..State::default() };
        let attempt =
            Attempt { start_ms: 7, suspended: true, devices: vec![("n1".into(), vec![0, 1])], over: None };
        state.jobs.insert("12_3".into(), Job { attempts: vec![attempt], ..Job::default() });
        file.save(&state).unwrap();
        let found = file.load().unwrap();
        assert_eq!((found.jobs, found.polled_ms), (state.jobs, Some(5)));
        fs::write(&file.path, "{\"jobs\": ").unwrap();
        assert!(file.load().unwrap_err().to_string().contains("move it away"));
    }
}
