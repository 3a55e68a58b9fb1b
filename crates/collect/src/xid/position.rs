//! Saved position in the kernel log, over restarts.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use tidegate_events::Event;

use crate::checkpoint::Checkpoint;
use crate::reading::Sink;

/// Number of the last record emitted, and events that may not be safe yet.
#[derive(Debug)]
pub(crate) struct LogPosition {
    state: State,
    checkpoint: Checkpoint,
    has_file: bool,
}

#[derive(Debug, Serialize, Deserialize)]
struct State {
    boot: String,
    record: u64,
}

impl LogPosition {
    /// Continues with the file if it is of this boot. Otherwise it starts at record 0, the first of
    /// the boot, so nothing is missed.
    pub(crate) fn open(file: Option<PathBuf>) -> Self {
        let has_file = file.is_some();
        let (saved, checkpoint) = Checkpoint::open::<State>(file).unwrap_or_else(|error| {
            tracing::warn!(%error, "the saved position in the kernel log cannot be read");
            (None, Checkpoint::default())
        });
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        let state = saved
            .filter(|saved| saved.boot == boot.trim())
            .unwrap_or_else(|| State { boot: boot.trim().to_owned(), record: 0 });
        Self { state, checkpoint, has_file }
    }

    /// Record to read after; `None` without a file.
    pub(crate) fn after(&self) -> Option<u64> {
        self.has_file.then_some(self.state.record)
    }

    /// Emits the events of all records up to a number, and any that failed before.
    pub(crate) fn emit(&mut self, events: Vec<Event>, record: Option<u64>, sink: &dyn Sink) {
        self.state.record = self.state.record.max(record.unwrap_or(0));
        self.checkpoint.add(events);
        if let Err(error) = self.checkpoint.save_and_emit(&self.state, sink) {
            tracing::warn!(%error, "the position in the kernel log cannot be saved");
        }
    }
}
