//! A note in the data folder of the memory that the signals take: `tidegate status` shows it while
//! another process runs.

use std::fs;
use std::path::Path;

use chrono::DateTime;
use indicatif::{BinaryBytes, HumanCount};
use serde::{Deserialize, Serialize};
use tidegate_server::SignalsMemory;

const FILE: &str = "signals-memory.json";

/// What memory the signals took.
#[derive(Debug, Serialize, Deserialize)]
pub struct SignalsNote {
    /// When, ms since the epoch.
    pub at_ms: i64,
    #[serde(flatten)]
    pub memory: SignalsMemory,
}

impl SignalsNote {
    /// Writes the note in `data`. What cannot be written is not shown, and stops nothing.
    pub fn write(data: &Path, memory: SignalsMemory, at_ms: i64) {
        let unfinished = data.join(FILE).with_extension("unfinished");
        let text = serde_json::to_vec_pretty(&Self { at_ms, memory }).unwrap_or_default();
        let written = fs::write(&unfinished, text).and_then(|()| fs::rename(&unfinished, data.join(FILE)));
        if let Err(error) = written {
            tracing::debug!(%error, "{FILE} cannot be written");
        }
    }

    /// The note in `data`; `None` if there is no readable one.
    pub fn read(data: &Path) -> Option<Self> {
        serde_json::from_slice(&fs::read(data.join(FILE)).ok()?).ok()
    }

    pub fn print(&self) {
        let Self { at_ms, memory } = self;
        let at = DateTime::from_timestamp_millis(*at_ms);
        say!(
            "signals  {} of {} of memory ({} for waiting events) at {} UTC",
            BinaryBytes(memory.held_bytes),
            BinaryBytes(memory.limit_bytes),
            BinaryBytes(memory.waiting_bytes),
            at.map_or_else(|| "?".into(), |at| at.format("%F %T").to_string())
        );
        if let Some(line) = over_limit(memory) {
            say!("signals  {line}");
        }
    }
}

/// What was done over the limit since the signals were opened; `None` if nothing.
pub fn over_limit(memory: &SignalsMemory) -> Option<String> {
    let SignalsMemory { limit_bytes, evicted_jobs, evicted_nodes, refused, early, .. } = memory;
    (evicted_jobs + evicted_nodes + refused + early > 0).then(|| {
        format!(
            "over {limit_bytes} bytes of memory: {} jobs and {} nodes forgotten, {} events left out, {} applied before their turn; \
             --signals-memory sets the limit",
            HumanCount(*evicted_jobs),
            HumanCount(*evicted_nodes),
            HumanCount(*refused),
            HumanCount(*early)
        )
    })
}
