//! Compaction of GPU samples: files are merged by device and time, not appended to each other.
//!
//! A commit every ten seconds leaves ten rows of each device in a file. Appended, a device's rows
//! would stay scattered however large the file: labels, counters and hashes would jump every ten
//! rows, and a query for one device would read everything. Merged, its rows are in one place, and
//! where one file is not enough, each holds some of the devices.
//!
//! Files go through two levels, which their names tell: of commits, merged once (`m1-`), merged
//! twice (`m2-`). So a row is rewritten twice, and some more often where devices are few.

use std::num::NonZeroU64;

use super::Maintenance;
use super::merge_devices::{Input, MergedRows};
use crate::delta::{DataFile, DataFileWriter, DeltaStore, FileRows};
use crate::error::Result;
use crate::state::LONG_RUN_ROWS;
use crate::table::PARTITION;

/// Files merged once that become files merged twice.
const MERGED_ONCE: usize = 8;
/// A file merged twice counts as small below one part in this many of the target.
const SMALL_FRACTION: u64 = 8;
/// Most files that are merged at a time, which bounds the memory of it.
const MOST_AT_ONCE: usize = 64;

/// How often the rows of a file were merged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Level {
    Commit,
    Once,
    Twice,
}

impl Level {
    const PREFIXES: [(Self, &'static str); 2] = [(Self::Once, "m1-"), (Self::Twice, "m2-")];

    fn of(file: &DataFile, target: u64) -> Self {
        let name = file.path.rsplit('/').next().unwrap_or_default();
        let named = Self::PREFIXES.iter().find(|(_, prefix)| name.starts_with(prefix));
        match named {
            Some((level, _)) => *level,
            // Earlier versions appended files to each other, up to the target.
            None if file.size.unsigned_abs() >= target / 2 => Self::Twice,
            None => Self::Commit,
        }
    }

    fn prefix(self) -> &'static str {
        Self::PREFIXES.iter().find(|(level, _)| *level == self).map_or("", |(_, prefix)| prefix)
    }
}

/// Merges the files of these log partitions where there are enough of them. Returns whether there
/// was something to do.
pub(super) async fn compact(store: &mut DeltaStore, partitions: &[u32], when: &Maintenance) -> Result<bool> {
    let mut worked = false;
    for partition in partitions {
        let name = partition.to_string();
        let mut files = store.files()?;
        files.retain(|file| file.partition_value(PARTITION) == Some(&name));
        let Some((files, level)) = due(files, when) else { continue };
        let merged = files.len();
        merge(store, &name, files, level, when.target_bytes).await?;
        tracing::info!(table = store.spec().name, partition, merged, ?level, "compacted");
        worked = true;
    }
    Ok(worked)
}

/// The files to merge, and the level of the result.
fn due(files: Vec<DataFile>, when: &Maintenance) -> Option<(Vec<DataFile>, Level)> {
    let target = when.target_bytes.get();
    let (mut commits, mut once, mut small) = (Vec::new(), Vec::new(), Vec::new());
    for file in files {
        match Level::of(&file, target) {
            Level::Commit => commits.push(file),
            Level::Once => once.push(file),
            Level::Twice if file.size.unsigned_abs() < target / SMALL_FRACTION => small.push(file),
            Level::Twice => {}
        }
    }
    let (mut due, level) = if commits.len() > when.small_files {
        (commits, Level::Once)
    } else if once.len() >= MERGED_ONCE {
        (once, Level::Twice)
    } else if small.len() > when.small_files {
        (small, Level::Twice)
    } else {
        return None;
    };
    // Neighbours in time, so that files of a level do not overlap.
    due.sort_by_cached_key(|file| file.earliest("event_time"));
    due.truncate(MOST_AT_ONCE);
    Some((due, level))
}

/// Replaces files by files of a level. Each holds the rows of some devices, sorted by device and
/// time.
async fn merge(
    store: &mut DeltaStore,
    partition: &str,
    files: Vec<DataFile>,
    level: Level,
    target: NonZeroU64,
) -> Result<()> {
    let mut inputs = Vec::new();
    for file in &files {
        inputs.push(Input::new(store.rows_of(file, Input::ROWS).await?)?);
    }
    let mut merged = MergedRows::new(store.spec().file_schema(), inputs);
    let (mut adds, mut file) = (Vec::new(), None);
    let mut known = None;
    // A device's rows come in one batch, so they are in one file, and a query for it reads one.
    while let Some(rows) = merged.next() {
        let rows = rows?;
        // The first devices tell how many rows others have.
        let known = known.get_or_insert_with(|| FileRows {
            short_runs: rows.num_rows() < LONG_RUN_ROWS * merged.devices(),
            ..FileRows::default()
        });
        let writer = match &mut file {
            Some(writer) => writer,
            none => {
                let values = vec![(PARTITION, partition.to_owned())];
                none.insert(DataFileWriter::named(store.spec(), values, level.prefix(), known)?)
            }
        };
        writer.push(&rows)?;
        if writer.bytes() as u64 >= target.get()
            && let Some(writer) = file.take()
        {
            adds.push(store.put(writer).await?);
        }
    }
    if let Some(writer) = file {
        adds.push(store.put(writer).await?);
    }
    store.commit_compacted(adds, files).await
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    fn file(name: &str, size: i64, at_s: i64) -> DataFile {
        let at = chrono::DateTime::from_timestamp(at_s, 0).unwrap().to_rfc3339();
        DataFile {
            path: format!("_partition=0/{name}.parquet"),
            partition_values: HashMap::new(),
            size,
            stats: Some(format!("{{\"minValues\":{{\"event_time\":\"{at}\"}}}}")),
        }
    }

    #[test]
    fn files_are_merged_twice_and_small_ones_again() {
        let when = Maintenance::default();
        let merged = |files: Vec<DataFile>| due(files, &when).map(|(files, level)| (files.len(), level));
        let commits = |count| (0..count).map(|at| file("0a-b", 1_000, at)).collect::<Vec<_>>();
        assert_eq!(merged(commits(32)), None);
        assert_eq!(merged(commits(33)), Some((33, Level::Once)));
        assert_eq!(merged(commits(1_000)), Some((MOST_AT_ONCE, Level::Once)));
        let once = |count| (0..count).map(|at| file("m1-0a", 1 << 30, at)).collect::<Vec<_>>();
        assert_eq!(merged(once(7)), None);
        assert_eq!(merged(once(8)), Some((8, Level::Twice)));
        let twice = |size| (0..33).map(|at| file("m2-0a", size, at)).collect::<Vec<_>>();
        assert_eq!(merged(twice(1 << 20)), Some((33, Level::Twice)));
        assert_eq!(merged(twice(64 << 20)), None, "large enough");
        let appended = (0..40).map(|at| file("0a-b", 100 << 20, at)).collect::<Vec<_>>();
        assert_eq!(merged(appended), None, "files of earlier versions");
        let (files, _) = due((0..100).rev().map(|at| file("0a-b", 1, at)).collect(), &when).unwrap();
        assert!(files.iter().all(|file| file.earliest("event_time") < Some(64_000_000)), "the oldest first");
    }
}
