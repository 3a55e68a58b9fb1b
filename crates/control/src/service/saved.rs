//! Snapshots of the autopilot: the folded journal and what was read of nodes and jobs, with the
//! offsets at which both stand.
//!
//! What a process knows beside the journal (measurements under way, repeated refusals) is no part
//! of it: a start from a snapshot and one from the beginning of the journal know the same.

use std::path::Path;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use tidegate_autopilot::executor::ExecutorState;
use tidegate_facts::Facts;
use tidegate_log::snapshot::{Position, SnapshotStore, hold_log};
use tidegate_log::{EventLog, LogError};

use crate::journal::Chains;

/// Version of the state's layout. Raise it with any change of what is saved that older programs, or
/// this one in older snapshots, would read otherwise; the fixture in `tests/fixtures` shows it.
const VERSION: u32 = 3;
/// How often the state is saved.
const SAVE_EVERY: Duration = Duration::from_secs(600);

/// The saved state.
#[derive(Debug, Default, Deserialize)]
pub(super) struct Saved {
    pub executor: ExecutorState,
    pub read: Facts,
    /// Where the proofs of the journal's entries stand.
    #[serde(default)]
    pub chains: Chains,
    /// Where both stand; empty if nothing was restored.
    #[serde(skip)]
    pub positions: Vec<Position>,
}

/// The same, borrowed.
#[derive(Serialize)]
struct SavedRef<'a> {
    executor: &'a ExecutorState,
    read: &'a Facts,
    #[serde(skip_serializing_if = "is_unproven")]
    chains: &'a Chains,
}

fn is_unproven(chains: &&Chains) -> bool {
    **chains == Chains::default()
}

/// The snapshots of one cluster's autopilot.
#[derive(Debug)]
pub(super) struct Snapshots {
    store: SnapshotStore,
    group: String,
    saved: Instant,
}

impl Snapshots {
    /// Snapshots in a data folder. `group` says on the log how far they reach.
    pub fn in_data(data: &Path, cluster: &str, group: &str) -> Self {
        let store = SnapshotStore::new(&data.join("snapshots"), "autopilot", cluster, VERSION);
        Self { store, group: group.to_owned(), saved: Instant::now() }
    }

    /// The newest good state; without one, the state before the first entry.
    ///
    /// # Errors
    /// The log cannot be reached.
    pub fn restore(&mut self, log: &dyn EventLog) -> Result<Saved, LogError> {
        let found = self.store.restore(log, |bytes| {
            let saved: Saved =
                serde_json::from_slice(bytes).map_err(|e| format!("its state is not readable: {e}"))?;
            match saved.executor.has_bounded_lease() {
                true => Ok(saved),
                false => Err("it holds a lease that nobody takes".to_owned()),
            }
        })?;
        let restored = found.restored;
        Ok(restored.map_or_else(Saved::default, |it| Saved { positions: it.positions, ..it.state }))
    }

    /// Says where reading begins, so that the log keeps what lies after it.
    ///
    /// # Errors
    /// The log cannot be reached.
    pub fn begin(&mut self, log: &dyn EventLog, positions: Vec<Position>) -> Result<(), LogError> {
        hold_log(log, &self.group, &positions)?;
        self.store.begin(positions);
        Ok(())
    }

    /// Whether it is time to save.
    pub fn is_due(&self) -> bool {
        self.saved.elapsed() >= SAVE_EVERY
    }

    /// Saves the state, durable on return. A state that cannot be saved is logged and stops
    /// nothing.
    pub fn save(
        &mut self,
        log: &dyn EventLog,
        (executor, read, chains): (&ExecutorState, &Facts, &Chains),
        positions: Vec<Position>,
        now_ms: i64,
    ) {
        self.saved = Instant::now();
        let saved = (|| {
            let state =
                serde_json::to_vec(&SavedRef { executor, read, chains }).map_err(|e| e.to_string())?;
            let before = self.store.save(positions, &state, now_ms).map_err(|e| e.to_string())?;
            hold_log(log, &self.group, &before).map_err(|e| e.to_string())
        })();
        if let Err(why) = saved {
            tracing::warn!(
                "the state of the autopilot cannot be saved: {why}; a start reads more of the journal"
            );
        }
    }
}

#[cfg(test)]
mod tests;
