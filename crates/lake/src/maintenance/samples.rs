//! Compaction of GPU samples: files are merged by device and time, not appended to each other.
//!
//! A commit every ten seconds leaves ten rows of each device in a file. Appended, a device's rows
//! would stay scattered however large the file: labels, counters and hashes would jump every ten
//! rows, and a query for one device would read everything. Merged, its rows are in one place, and
//! where one file is not enough, each holds some of the devices.
//!
//! Files go through two levels, which their names tell: of commits, merged once (`m1-`), merged
//! twice (`m2-`). So a row is rewritten twice, and some more often where devices are few.

use std::collections::{BTreeMap, HashSet};
use std::num::NonZeroU64;
use std::time::{Duration, Instant};

use arrow::array::RecordBatch;

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

/// Merges the files of these log partitions where there are enough of them, or goes on with it.
/// Returns whether files were replaced.
pub(super) async fn compact(
    store: &mut DeltaStore,
    partitions: &[u32],
    when: &Maintenance,
    merges: &mut Merges,
) -> Result<bool> {
    let mut worked = false;
    merges.unfinished.retain(|partition, _| partitions.contains(partition));
    for partition in partitions {
        let name = partition.to_string();
        let mut files = store.files()?;
        files.retain(|file| file.partition_value(PARTITION) == Some(&name));
        let until = merges.until(&files, when);
        let begun = merges.unfinished.remove(partition).filter(|merge| merge.is_of(&files));
        let merge = match begun {
            Some(merge) => merge,
            None => match due(files, when) {
                Some((files, level)) => Merge::begin(store, name, files, level).await?,
                None => continue,
            },
        };
        match merge.go_on(store, when.target_bytes, until).await? {
            Some(unfinished) => {
                merges.unfinished.insert(*partition, unfinished);
            }
            None => worked = true,
        }
    }
    Ok(worked)
}

/// Unfinished merges of the table of samples. Nothing is committed while a merge runs, and merging
/// 33 files of 10,000 GPUs takes ten seconds, so a merge pauses to let commits through.
#[derive(Debug, Default)]
pub struct Merges {
    /// How long one goes on at a time; `None` until its end.
    slice: Option<Duration>,
    /// By log partition.
    unfinished: BTreeMap<u32, Merge>,
}

impl Merges {
    /// Merges that go on for so long at a time, and longer where files come faster than that.
    pub fn sliced(slice: Duration) -> Self {
        Self { slice: Some(slice), unfinished: BTreeMap::new() }
    }

    /// When a merge has to pause; `None` if it must not.
    fn until(&self, files: &[DataFile], when: &Maintenance) -> Option<Instant> {
        let target = when.target_bytes.get();
        let commits = files.iter().filter(|file| Level::of(file, target) == Level::Commit).count();
        self.slice
            .and_then(|slice| sliced(slice, commits, when.small_files))
            .map(|slice| Instant::now() + slice)
    }
}

/// How long a merge goes on while files of so many commits wait: up to three times the slice, and
/// to its end if twice as many wait as are merged.
fn sliced(slice: Duration, commits: usize, small_files: usize) -> Option<Duration> {
    let late = u32::try_from(commits.saturating_sub(small_files)).unwrap_or(u32::MAX);
    let most = u32::try_from(small_files).unwrap_or(u32::MAX);
    (late <= most).then(|| slice + slice * 2 * late / most.max(1))
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
struct Merge {
    partition: String,
    files: Vec<DataFile>,
    level: Level,
    rows: MergedRows,
    /// What the first devices tell of the rows of others.
    known: Option<FileRows>,
    adds: Vec<DataFile>,
    /// The file that is being written.
    file: Option<DataFileWriter>,
}

impl std::fmt::Debug for Merge {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Merge").field("files", &self.files.len()).field("level", &self.level).finish()
    }
}

impl Merge {
    async fn begin(
        store: &DeltaStore,
        partition: String,
        files: Vec<DataFile>,
        level: Level,
    ) -> Result<Self> {
        let mut inputs = Vec::new();
        for file in &files {
            inputs.push(Input::new(store.rows_of(file, Input::ROWS).await?)?);
        }
        let rows = MergedRows::new(store.spec().file_schema(), inputs);
        Ok(Self { partition, files, level, rows, known: None, adds: Vec::new(), file: None })
    }

    /// Whether these are still files of the table: retention may have dropped some.
    fn is_of(&self, files: &[DataFile]) -> bool {
        let live: HashSet<&str> = files.iter().map(|file| file.path.as_str()).collect();
        self.files.iter().all(|file| live.contains(file.path.as_str()))
    }

    /// Goes on until then, or to the end, where it commits. Returns itself if it is not finished.
    async fn go_on(
        mut self,
        store: &mut DeltaStore,
        target: NonZeroU64,
        until: Option<Instant>,
    ) -> Result<Option<Self>> {
        // A device's rows come in one batch, so they are in one file, and a query for it reads one.
        while let Some(rows) = self.rows.next() {
            self.push(store, &rows?).await?;
            let is_full = |file: &mut DataFileWriter| file.bytes() as u64 >= target.get();
            if let Some(file) = self.file.take_if(is_full) {
                self.adds.push(file.complete().await?);
            }
            if until.is_some_and(|until| Instant::now() >= until) {
                return Ok(Some(self));
            }
        }
        if let Some(file) = self.file.take() {
            self.adds.push(file.complete().await?);
        }
        let (table, merged) = (store.spec().name.clone(), self.files.len());
        store.commit_compacted(self.adds, self.files).await?;
        tracing::info!(table, partition = self.partition, merged, level = ?self.level, "compacted");
        Ok(None)
    }

    async fn push(&mut self, store: &DeltaStore, rows: &RecordBatch) -> Result<()> {
        let devices = self.rows.devices();
        let known = self.known.get_or_insert_with(|| FileRows {
            short_runs: rows.num_rows() < LONG_RUN_ROWS * devices,
            ..FileRows::default()
        });
        let file = match &mut self.file {
            Some(file) => file,
            none => {
                let values = vec![(PARTITION, self.partition.clone())];
                none.insert(DataFileWriter::new(store, values, self.level.prefix(), known)?)
            }
        };
        file.push(rows).await
    }
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
    fn a_merge_goes_on_for_longer_while_commits_wait() {
        let second = Duration::from_secs(1);
        let seconds = |commits| sliced(second, commits, 32).map(|slice| slice.as_secs_f64());
        assert_eq!([0, 32, 48, 64].map(seconds), [1.0, 1.0, 2.0, 3.0].map(Some));
        assert_eq!(seconds(65), None);
        assert_eq!(sliced(Duration::ZERO, 40, 32), Some(Duration::ZERO));
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
