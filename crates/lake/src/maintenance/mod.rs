//! Maintenance: compacts small files, applies retention, and deletes files that no version refers
//! to.
//!
//! It runs between commits in the writer's own process, one table at a time, so it never races a
//! commit.

mod merge_devices;
mod merge_segments;
pub mod retention;
mod samples;

use std::collections::BTreeMap;
use std::num::NonZeroU64;

use chrono::Duration;

use crate::delta::{Change, DataFile, DeltaStore};
use crate::error::Result;
use crate::exec::merge;
use crate::lake::Lake;
use crate::maintenance::retention::Retention;
use crate::table::{Layout, OPEN, PARTITION, SEGMENT};

/// When maintenance is due.
#[derive(Debug, Clone)]
pub struct Maintenance {
    /// Files of a table smaller than this are compacted …
    pub target_bytes: NonZeroU64,
    /// … when a log partition has more than this many of them.
    pub small_files: usize,
    /// Files that no version younger than this refers to are deleted.
    pub keep_versions: Duration,
    /// How long a table's log keeps versions; longer only down to the checkpoint before. A process
    /// that is further behind, for example one that was suspended, reads the tables anew.
    pub keep_log: Duration,
    /// Commits to a windowed table, which leave old segments behind, between two vacuums.
    pub commits_to_vacuum: i64,
    /// How long tables keep their rows.
    pub retention: Retention,
}

impl Default for Maintenance {
    fn default() -> Self {
        Self {
            target_bytes: NonZeroU64::new(128 << 20).expect("not zero"),
            small_files: 32,
            keep_versions: Duration::hours(24),
            keep_log: Duration::hours(6),
            commits_to_vacuum: 64,
            retention: Retention::default(),
        }
    }
}

/// Does what is due and publishes the result.
pub async fn run_due(lake: &mut Lake, when: &Maintenance) -> Result<()> {
    let mut worked = false;
    for (store, partitions) in lake.stores_mut() {
        store.clean_log(when.keep_log).await?;
        worked |= when.retention.apply(store, &partitions).await?;
        if !store.spec().partials.is_empty() {
            worked |= merge_partials(store, &partitions, when).await?;
            continue;
        }
        let layout = store.spec().layout;
        if layout == Layout::Samples {
            let compacted = samples::compact(store, &partitions, when).await?;
            if compacted && partitions.contains(&0) {
                store.vacuum(when.keep_versions).await?;
            }
            worked |= compacted;
            continue;
        }
        if layout == Layout::Windowed {
            worked |= merge_segments::merge_closed(store, &partitions).await?;
            // Each commit rewrites segments and leaves the old files behind.
            if partitions.contains(&0) && store.commits_since_vacuum() >= when.commits_to_vacuum {
                store.vacuum(when.keep_versions).await?;
            }
            continue;
        }
        let mut files = store.files()?;
        let owned: Vec<String> = partitions.iter().map(u32::to_string).collect();
        files.retain(|f| f.partition_value(PARTITION).is_some_and(|p| owned.iter().any(|owned| owned == p)));
        let enough = when.target_bytes.get() as i64;
        let small = |f: &&crate::delta::DataFile| f.size < enough && f.partition_value(OPEN) != Some("true");
        let has_many = |partition: &u32| {
            let name = partition.to_string();
            let here = files.iter().filter(small).filter(|f| f.partition_value(PARTITION) == Some(&name));
            here.count() > when.small_files
        };
        let due: Vec<u32> = partitions.iter().copied().filter(has_many).collect();
        if !due.is_empty() {
            let merged = store.compact(&due, when.target_bytes).await?;
            // One process at a time cleans up: the owner of the first partition.
            let deleted = match partitions.contains(&0) {
                true => store.vacuum(when.keep_versions).await?,
                false => 0,
            };
            tracing::info!(table = store.spec().name, merged, deleted, "compacted");
            worked = true;
        }
    }
    if worked {
        lake.republish().await?;
    }
    Ok(())
}

/// Every commit adds a file of partial aggregates. This many files of about one size and one
/// segment become one file with one row per key, which then waits for others of its size. So a
/// partial aggregate is rewritten once per size and not with every commit.
const FILES_PER_SIZE: usize = 16;

async fn merge_partials(store: &mut DeltaStore, partitions: &[u32], when: &Maintenance) -> Result<bool> {
    let mut alike: BTreeMap<(String, String, u32), Vec<DataFile>> = BTreeMap::new();
    for file in store.files()?.into_iter().filter(|file| file.size < when.target_bytes.get() as i64) {
        let value = |column| file.partition_value(column).unwrap_or_default().to_owned();
        let (partition, segment) = (value(PARTITION), value(SEGMENT));
        if partitions.iter().any(|owned| owned.to_string() == partition) {
            // Each size is eight times the next smaller one.
            let size = file.size.max(1).ilog2() / 3;
            alike.entry((partition, segment, size)).or_default().push(file);
        }
    }
    alike.retain(|_, files| files.len() >= FILES_PER_SIZE);
    let worked = !alike.is_empty();
    for ((partition, segment, _), files) in alike {
        let mut rows = Vec::new();
        for file in &files {
            rows.extend(store.read_file(file).await?);
        }
        let rows = merge::merge_file_rows(store.spec(), rows).await?;
        let adds = store.write(vec![(PARTITION, partition), (SEGMENT, segment)], &[rows]).await?;
        tracing::debug!(table = store.spec().name, files = files.len(), "merged partial aggregates");
        store
            .commit(Change { adds: adds.into_iter().collect(), removes: files, ..Change::default() })
            .await?;
    }
    if worked && partitions.contains(&0) {
        store.vacuum(when.keep_versions).await?;
    }
    Ok(worked)
}
