//! Compaction of every kind of table, so that the number of files follows from the bytes and the
//! days of a table, not from its commits.
//!
//! Raw rows and rows of sealed keys are merged by size: small files often, large ones rarely;
//! samples by device. Windows are merged by size within their segment; a closed segment becomes one
//! file, and the hours of a day that is over become one. Rows of open keys are one file, written
//! whole.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU64;

use super::Maintenance;
use super::samples::{self, Merges};
use crate::batch::concat;
use crate::batch::sort::sorted;
use crate::delta::{DataFile, DataFileWriter, DeltaStore, FileRows, PartitionValues};
use crate::error::Result;
use crate::exec::merge;
use crate::pipeline::rollup::START;
use crate::table::{Layout, OPEN, PARTITION, SEGMENT};
use crate::window::Segment;

/// Commits add files to open segments. This many files of about one size and one segment become one
/// file, of partial aggregates with one row per key, which then waits for others of its size. So a
/// row is rewritten once per size and not with every commit.
const FILES_PER_SIZE: usize = 16;
/// Sizes below which files of rows count as small, ascending. The target itself is the last one.
const SMALL_BYTES: [u64; 4] = [64 << 10, 512 << 10, 4 << 20, 32 << 20];
/// Rows that are read at a time.
const ROWS_AT_ONCE: usize = 8 * 1024;
/// Segments and days that are compacted in one commit, at most.
const SEGMENTS_AT_ONCE: usize = 16;
/// As many closed segments or days of several files are compacted at once; fewer only after a
/// checkpoint.
const SEGMENTS_DUE: usize = 8;
/// A closed segment or day is compacted if it is smaller than one part in this many of the target:
/// it is read as a whole, and a late event rewrites it.
const CLOSED_FRACTION: u64 = 4;
/// The newest segments, and the newest days of segments of an hour, are left as they are: late
/// events often reach them.
const STILL_CHANGING: usize = 2;

/// Compacts a table's files in these log partitions. Returns whether there was something to do.
pub(super) async fn compact(
    store: &mut DeltaStore,
    partitions: &[u32],
    when: &Maintenance,
    merges: &mut Merges,
) -> Result<bool> {
    // Segments are compacted seldom: a trickle of late events would rewrite them with each commit.
    let least = if store.has_new_checkpoint() { 1 } else { SEGMENTS_DUE };
    match store.spec().layout {
        Layout::Windowed => {
            let mut worked = merge_by_size(store, partitions, when).await?;
            worked |= merge_closed(store, partitions, when, least, |segment| segment).await?;
            if has_hours(store)? {
                // The hours of a day become one file once late events are rare.
                worked |= merge_closed(store, partitions, when, least, Segment::day_of).await?;
            }
            Ok(worked)
        }
        Layout::Samples => samples::compact(store, partitions, when, merges).await,
        Layout::Raw | Layout::Keyed => merge_rows(store, partitions, when).await,
    }
}

/// The files of these log partitions.
fn owned_files(store: &DeltaStore, partitions: &[u32]) -> Result<Vec<DataFile>> {
    let owned: BTreeSet<String> = partitions.iter().map(u32::to_string).collect();
    let mut files = store.files()?;
    files.retain(|file| file.partition_value(PARTITION).is_some_and(|p| owned.contains(p)));
    Ok(files)
}

/// Replaces files of rows that are too many and too small. Their rows stay in the order of time in
/// which they came, and pass through memory a file at a time.
async fn merge_rows(store: &mut DeltaStore, partitions: &[u32], when: &Maintenance) -> Result<bool> {
    let mut files = owned_files(store, partitions)?;
    files.retain(|file| file.partition_value(OPEN) != Some("true"));
    let mut worked = false;
    for partition in partitions {
        let name = partition.to_string();
        let here = files.iter().filter(|file| file.partition_value(PARTITION) == Some(&name));
        let mut small: Vec<DataFile> = here.cloned().collect();
        let sizes: Vec<u64> = small.iter().map(|file| file.size.unsigned_abs()).collect();
        let Some(limit) = small_limit(&sizes, when) else { continue };
        small.retain(|file| file.size.unsigned_abs() < limit);
        small.sort_by_cached_key(|file| file.earliest("event_time"));
        let merged = small.len();
        let adds = append(store, &small, when.target_bytes).await?;
        store.commit_compacted(adds, small).await?;
        tracing::info!(table = store.spec().name, partition, merged, "compacted");
        worked = true;
    }
    Ok(worked)
}

/// Writes the rows of these files, which have the same partition values, one after the other into
/// files of about `target` bytes.
async fn append(store: &DeltaStore, files: &[DataFile], target: NonZeroU64) -> Result<Vec<DataFile>> {
    let (mut adds, mut open) = (Vec::new(), None);
    for file in files {
        for rows in store.rows_of(file, ROWS_AT_ONCE).await? {
            let writer = match &mut open {
                Some(writer) => writer,
                none => {
                    none.insert(DataFileWriter::new(store, values(store, file), "", &FileRows::default())?)
                }
            };
            writer.push(&rows?).await?;
            if writer.bytes() as u64 >= target.get()
                && let Some(writer) = open.take()
            {
                adds.push(writer.complete().await?);
            }
        }
    }
    if let Some(writer) = open {
        adds.push(writer.complete().await?);
    }
    Ok(adds)
}

/// The file's partition values, in the order of the table's partition columns.
fn values(store: &DeltaStore, file: &DataFile) -> PartitionValues {
    let columns = store.spec().partition_columns().iter();
    columns.map(|column| (*column, file.partition_value(column).unwrap_or_default().to_owned())).collect()
}

/// The size below which files are merged: the first class of sizes that has too many. The merged
/// file belongs to a larger class, so each row is rewritten a few times however long the table
/// grows.
fn small_limit(sizes: &[u64], when: &Maintenance) -> Option<u64> {
    let target = when.target_bytes.get();
    let limits = SMALL_BYTES.into_iter().filter(|limit| *limit < target).chain([target]);
    let mut classes = std::iter::once(0).chain(limits.clone()).zip(limits);
    let has_many = |(from, to): &(u64, u64)| {
        sizes.iter().filter(|size| (*from..*to).contains(*size)).count() > when.small_files
    };
    classes.find(has_many).map(|(_, limit)| limit)
}

async fn merge_by_size(store: &mut DeltaStore, partitions: &[u32], when: &Maintenance) -> Result<bool> {
    let target = when.target_bytes.get();
    let mut files = owned_files(store, partitions)?;
    if store.spec().partials.is_empty() {
        leave_open_windows(&mut files);
    }
    let mut alike: BTreeMap<(String, String, u32), Vec<DataFile>> = BTreeMap::new();
    for file in files.into_iter().filter(|file| file.size.unsigned_abs() < target) {
        let (partition, segment) = place(&file);
        // Each size is eight times the next smaller one.
        let size = file.size.max(1).ilog2() / 3;
        alike.entry((partition, segment, size)).or_default().push(file);
    }
    alike.retain(|_, files| files.len() >= FILES_PER_SIZE && total_bytes(files) <= target);
    let groups = alike.into_iter().map(|((partition, segment, _), files)| (partition, segment, files));
    rewrite(store, groups.collect()).await
}

/// Leaves out the files with the newest windows. The next update replaces those; merged with
/// others, it would read and write these too.
fn leave_open_windows(files: &mut Vec<DataFile>) {
    let latest = |file: &DataFile| file.time_range(START).1;
    let newest = files.iter().filter_map(latest).max();
    files.retain(|file| latest(file).is_some_and(|latest| Some(latest) < newest));
}

/// One file for each segment, or day of segments, that no longer changes, if there are at least so
/// many of several files. `whole` names what a segment is a part of.
async fn merge_closed(
    store: &mut DeltaStore,
    partitions: &[u32],
    when: &Maintenance,
    least: usize,
    whole: fn(&str) -> &str,
) -> Result<bool> {
    let mut closed: BTreeMap<(String, String), Vec<DataFile>> = BTreeMap::new();
    for file in owned_files(store, partitions)? {
        let (partition, segment) = place(&file);
        closed.entry((partition, whole(&segment).to_owned())).or_default().push(file);
    }
    let Some(changing) = changing_from(closed.keys().map(|(_, name)| name)) else { return Ok(false) };
    closed.retain(|(_, name), files| *name < changing && is_small_enough(files, when));
    if closed.len() < least {
        return Ok(false);
    }
    let groups = closed.into_iter().map(|((partition, name), files)| (partition, name, files));
    rewrite(store, groups.take(SEGMENTS_AT_ONCE).collect()).await
}

/// Whether a table is stored by hour.
fn has_hours(store: &DeltaStore) -> Result<bool> {
    Ok(store.files()?.iter().filter_map(|file| file.partition_value(SEGMENT)).any(Segment::is_hour))
}

/// The oldest of the segments that are left as they are. Names sort by time.
fn changing_from<'a>(names: impl Iterator<Item = &'a String>) -> Option<String> {
    let names: BTreeSet<&String> = names.collect();
    names.into_iter().rev().nth(STILL_CHANGING - 1).cloned()
}

fn is_small_enough(files: &[DataFile], when: &Maintenance) -> bool {
    files.len() > 1 && total_bytes(files) <= when.target_bytes.get() / CLOSED_FRACTION
}

fn total_bytes(files: &[DataFile]) -> u64 {
    files.iter().map(|file| file.size.unsigned_abs()).sum()
}

/// Log partition and segment of a file.
fn place(file: &DataFile) -> (String, String) {
    let value = |column| file.partition_value(column).unwrap_or_default().to_owned();
    (value(PARTITION), value(SEGMENT))
}

/// Replaces each group of files by one file of this log partition and segment, in one commit.
async fn rewrite(store: &mut DeltaStore, groups: Vec<(String, String, Vec<DataFile>)>) -> Result<bool> {
    let (mut adds, mut removes) = (Vec::new(), Vec::new());
    for (partition, segment, files) in groups {
        let mut rows = Vec::new();
        for file in &files {
            rows.extend(store.read_file(file).await?);
        }
        let spec = store.spec();
        let rows = match spec.partials.is_empty() {
            true => sorted(&concat(&spec.file_schema(), &rows)?, &spec.key)?,
            false => merge::merge_file_rows(spec, rows).await?,
        };
        tracing::debug!(table = spec.name, segment, files = files.len(), "merged files of a segment");
        adds.extend(store.write(vec![(PARTITION, partition), (SEGMENT, segment)], &[rows]).await?);
        removes.extend(files);
    }
    let worked = !removes.is_empty();
    if worked {
        store.commit_compacted(adds, removes).await?;
    }
    Ok(worked)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn small_files_are_merged_before_large_ones() {
        let when = Maintenance::default();
        let limit = |sizes: &[u64]| small_limit(sizes, &when);
        let mut sizes = vec![100 * MIB; 32];
        sizes.extend([10_000; 32]);
        assert_eq!(limit(&sizes), None, "not too many of any size");
        sizes.push(10_000);
        // The large ones are not touched.
        assert_eq!(limit(&sizes), Some(64 << 10));
        assert_eq!(limit(&[40 * MIB; 33]), Some(128 * MIB));
        assert_eq!(limit(&[200 * MIB; 1_000]), None);
    }

    /// A row is rewritten about once for each size a file goes through, however many commits there
    /// are.
    #[test]
    fn rewritten_bytes_grow_with_the_table_and_not_with_its_square() {
        let when = Maintenance::default();
        let (mut sizes, mut rewritten, mut most) = (Vec::<u64>::new(), 0, 0);
        let (commits, bytes) = (200_000_u64, 20_000);
        for _ in 0..commits {
            sizes.push(bytes);
            if let Some(limit) = small_limit(&sizes, &when) {
                let (merged, left): (Vec<u64>, Vec<u64>) = sizes.iter().partition(|size| **size < limit);
                let (total, target): (u64, u64) = (merged.iter().sum(), 128 * MIB);
                rewritten += total;
                sizes = left;
                sizes.extend((0..total / target).map(|_| target));
                sizes.extend((total % target > 0).then_some(total % target));
            }
            most = most.max(sizes.iter().filter(|size| **size < 128 * MIB).count());
        }
        let written = commits * bytes;
        assert!(rewritten < 12 * written, "{rewritten} of {written}");
        assert!(most <= 33 * 5, "{most} small files");
    }

    #[test]
    fn the_newest_segments_are_left_alone() {
        let names = ["2026-01-03", "2026-01-01", "2026-01-02", "2026-01-03"].map(String::from);
        assert_eq!(changing_from(names.iter()).as_deref(), Some("2026-01-02"));
        assert_eq!(changing_from(names[..1].iter()), None);
    }
}
