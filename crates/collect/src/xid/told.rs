//! How far the kernel's log was told, over restarts.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use tidegate_events::Event;

use crate::checkpoint::Checkpoint;
use crate::reading::Sink;

/// The last record of the kernel that was told, and events that may not be safe yet.
#[derive(Debug)]
pub(crate) struct Told {
    state: State,
    checkpoint: Checkpoint,
    keeps: bool,
}

#[derive(Debug, Serialize, Deserialize)]
struct State {
    boot: String,
    record: u64,
}

impl Told {
    /// Goes on with the file, if it is of this boot; record 0 is the kernel's greeting: nothing is
    /// missed.
    pub(crate) fn open(file: Option<PathBuf>) -> Self {
        let keeps = file.is_some();
        let (said, checkpoint) = Checkpoint::open::<State>(file).unwrap_or_else(|error| {
            tracing::warn!(%error, "cannot tell how far the kernel's log was read");
            (None, Checkpoint::default())
        });
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        let state = said
            .filter(|said| said.boot == boot.trim())
            .unwrap_or_else(|| State { boot: boot.trim().to_owned(), record: 0 });
        Self { state, checkpoint, keeps }
    }

    /// Where to go on reading; none without a file.
    pub(crate) fn after(&self) -> Option<u64> {
        self.keeps.then_some(self.state.record)
    }

    /// Tells events of all records up to a number, and what could not be told before.
    pub(crate) fn tell(&mut self, events: Vec<Event>, record: Option<u64>, sink: &dyn Sink) {
        self.state.record = self.state.record.max(record.unwrap_or(0));
        self.checkpoint.add(events);
        if let Err(error) = self.checkpoint.hand_on(&self.state, sink) {
            tracing::warn!(%error, "cannot remember how far the kernel's log was read");
        }
    }
}
