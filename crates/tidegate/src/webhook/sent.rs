//! Findings that were sent, in a file of the data folder, so that a restart does not repeat them.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

const FILE: &str = "webhook-sent.json";
/// Findings that are remembered, the newest ones. Some hundreds of bytes each.
const KEPT: usize = 20_000;

/// Sent findings by their id, with the time of sending, seconds since the epoch.
#[derive(Debug)]
pub(super) struct SentFindings {
    file: PathBuf,
    at_s: BTreeMap<String, u64>,
}

impl SentFindings {
    /// What the folder remembers; nothing if its file is not there or not readable.
    pub fn read(data: &Path) -> Self {
        let file = data.join(FILE);
        let at_s = match fs::read(&file) {
            Ok(bytes) => serde_json::from_slice(&bytes).unwrap_or_else(|error| {
                tracing::warn!("{FILE} cannot be read, so current findings are sent again: {error}");
                BTreeMap::new()
            }),
            Err(_) => BTreeMap::new(),
        };
        Self { file, at_s }
    }

    pub fn has(&self, id: &str) -> bool {
        self.at_s.contains_key(id)
    }

    /// Remembers these, in this process in any case.
    pub fn add(&mut self, ids: impl Iterator<Item = String>) {
        let now_s = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        self.at_s.extend(ids.map(|id| (id, now_s)));
        if self.at_s.len() > KEPT {
            let mut times: Vec<u64> = self.at_s.values().copied().collect();
            times.sort_unstable();
            let oldest_kept = times[times.len() - KEPT];
            self.at_s.retain(|_, at_s| *at_s >= oldest_kept);
        }
        let unfinished = self.file.with_extension("unfinished");
        let text = serde_json::to_vec(&self.at_s).unwrap_or_default();
        let written = fs::write(&unfinished, text).and_then(|()| fs::rename(&unfinished, &self.file));
        if let Err(error) = written {
            tracing::warn!("{FILE} cannot be written, so a restart repeats findings: {error}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{FILE, SentFindings};

    #[test]
    fn it_outlives_a_restart_and_a_damaged_file() {
        let folder = tempfile::tempdir().unwrap();
        let mut sent = SentFindings::read(folder.path());
        assert!(!sent.has("a"));
        sent.add(["a".to_owned()].into_iter());
        assert!(SentFindings::read(folder.path()).has("a"));
        std::fs::write(folder.path().join(FILE), "{").unwrap();
        let mut sent = SentFindings::read(folder.path());
        assert!(!sent.has("a"));
        sent.add(["b".to_owned()].into_iter());
        assert!(SentFindings::read(folder.path()).has("b"));
    }
}
