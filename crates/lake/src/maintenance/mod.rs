//! Maintenance: compacts small files, applies retention, shortens Delta logs, and deletes files
//! that no version in use refers to.
//!
//! It runs between commits in the writer's own process, one table at a time, so it never races a
//! commit. A merge that takes long goes on in slices, with commits between them.

mod compaction;
mod merge_devices;
pub mod retention;
mod samples;

use std::num::NonZeroU64;

use chrono::Duration;

use crate::delta::Limits;
use crate::error::Result;
use crate::lake::Lake;
use crate::maintenance::retention::Retention;
pub use crate::maintenance::samples::Merges;

/// A log longer than this is shortened even if a joined table has yet to work off its versions. The
/// table is computed anew then.
const LONGEST_LOG: Duration = Duration::days(7);

/// When maintenance is due.
#[derive(Debug, Clone)]
pub struct Maintenance {
    /// Files of a table smaller than this are compacted …
    pub target_bytes: NonZeroU64,
    /// … when a log partition has more than this many of them.
    pub small_files: usize,
    /// How long files that were replaced stay on disk. Queries of this process keep what they read
    /// however long they take; this is for other processes.
    pub keep_replaced: Duration,
    /// How long a table's log keeps versions; longer only down to the checkpoint before, and for
    /// joined tables that have not worked them off. A process that is further behind, for example
    /// one that was suspended, reads the tables anew.
    pub keep_log: Duration,
    /// How long tables keep their rows.
    pub retention: Retention,
}

impl Default for Maintenance {
    fn default() -> Self {
        Self {
            target_bytes: NonZeroU64::new(128 << 20).expect("not zero"),
            small_files: 32,
            keep_replaced: Duration::hours(1),
            keep_log: Duration::hours(1),
            retention: Retention::default(),
        }
    }
}

/// Does what is due and publishes the result.
pub async fn run_due(lake: &mut Lake, when: &Maintenance) -> Result<()> {
    run_sliced(lake, when, &mut Merges::default()).await
}

/// As [`run_due`], but a merge of samples stops when its time slice is over, and the next call
/// resumes it.
pub async fn run_sliced(lake: &mut Lake, when: &Maintenance, merges: &mut Merges) -> Result<()> {
    let mut worked = false;
    for (store, partitions) in lake.stores_mut() {
        worked |= when.retention.apply(store, &partitions).await?;
        worked |= compaction::compact(store, &partitions, when, merges).await?;
        // One process at a time cleans up: the owner of the first partition.
        if partitions.contains(&0) {
            let rows = when.retention.of(&store.spec().name);
            let limits = Limits { replaced: when.keep_replaced, log: when.keep_log, rows };
            store.record_limits(limits).await?;
        }
    }
    // Compaction may have reached the next checkpoint.
    let needed = lake.versions_needed().await?;
    for (store, _) in lake.stores_mut() {
        let needed = needed.get(&store.spec().name).copied();
        store.clean_log(when.keep_log, LONGEST_LOG, needed).await?;
    }
    if worked {
        lake.republish().await?;
    }
    let in_use_since = lake.in_use_since();
    for (store, partitions) in lake.stores_mut() {
        let mut deleted = 0;
        if partitions.contains(&0) {
            deleted += store.sweep_if_due().await?;
        }
        let removed_before_ms = (store.now() - when.keep_replaced).timestamp_millis();
        deleted += store.delete_dead(removed_before_ms, in_use_since).await?;
        if deleted > 0 {
            tracing::debug!(table = store.spec().name, deleted, "deleted dead files");
        }
    }
    Ok(())
}
