//! The committed segments of a windowed table, and how some of them are replaced.
//!
//! A segment is one file, or a few of which maintenance makes one. It also packs the hours of a day
//! that is over into one file, so that a year has hundreds of files and not thousands. To replace
//! an hour of a packed day, its windows are taken out of the pack, and the hour gets a file of its
//! own again.

use std::collections::{BTreeMap, BTreeSet};

use arrow::array::{AsArray, BooleanArray, RecordBatch};
use arrow::compute::filter_record_batch;
use arrow::datatypes::TimestampMicrosecondType;

use crate::delta::{DataFile, DeltaStore};
use crate::error::Result;
use crate::table::{PARTITION, SEGMENT};
use crate::window::Segment;

/// Committed files of one log partition of a windowed table.
pub(super) struct CommittedSegments<'a> {
    store: &'a DeltaStore,
    segment: Segment,
    by_name: BTreeMap<String, Vec<DataFile>>,
    /// Files of segments that were read, by the segment's start.
    read: BTreeMap<i64, Vec<DataFile>>,
    /// Packs that were read, by name.
    packs: BTreeMap<String, Pack>,
    removes: Vec<DataFile>,
}

struct Pack {
    rows: Vec<RecordBatch>,
    /// Starts of the segments that are replaced.
    replaced: BTreeSet<i64>,
}

impl<'a> CommittedSegments<'a> {
    pub fn new(store: &'a DeltaStore, segment: Segment, files: Vec<DataFile>) -> Self {
        let mut by_name: BTreeMap<String, Vec<DataFile>> = BTreeMap::new();
        for file in files {
            let name = file.partition_value(SEGMENT).unwrap_or_default().to_owned();
            by_name.entry(name).or_default().push(file);
        }
        Self { store, segment, by_name, read: BTreeMap::new(), packs: BTreeMap::new(), removes: Vec::new() }
    }

    /// The committed rows of a segment in those of its files that are wanted, in the table's file
    /// schema.
    pub async fn rows(
        &mut self,
        start: i64,
        is_wanted: impl Fn(&DataFile) -> bool,
    ) -> Result<Vec<RecordBatch>> {
        let mut files = self.by_name.remove(&self.segment.name(start)).unwrap_or_default();
        files.retain(&is_wanted);
        let mut rows = Vec::new();
        for file in &files {
            rows.extend(self.store.read_file(file).await?);
        }
        self.read.insert(start, files);
        let Some(name) = self.segment.pack_name(start) else { return Ok(rows) };
        if let Some(files) = self.by_name.get(&name)
            && files.iter().any(is_wanted)
            && !self.packs.contains_key(&name)
        {
            let mut packed = Vec::new();
            for file in files {
                packed.extend(self.store.read_file(file).await?);
            }
            self.packs.insert(name.clone(), Pack { rows: packed, replaced: BTreeSet::new() });
        }
        if let Some(pack) = self.packs.get(&name) {
            for batch in &pack.rows {
                let here = where_start(batch, |window| self.segment.start(window) == start)?;
                rows.extend((here.num_rows() > 0).then_some(here));
            }
        }
        Ok(rows)
    }

    /// Marks the rows of a segment that were read as replaced.
    pub fn replace(&mut self, start: i64) {
        self.removes.extend(self.read.remove(&start).unwrap_or_default());
        if let Some(pack) = self.segment.pack_name(start).and_then(|name| self.packs.get_mut(&name)) {
            pack.replaced.insert(start);
        }
    }

    /// Files that the replaced segments were in, and files with what else those held.
    pub async fn finish(mut self) -> Result<(Vec<DataFile>, Vec<DataFile>)> {
        let mut adds = Vec::new();
        for (name, pack) in self.packs {
            let is_left = |window| !pack.replaced.contains(&self.segment.start(window));
            let left =
                pack.rows.iter().map(|batch| where_start(batch, is_left)).collect::<Result<Vec<_>>>()?;
            let rows = |batches: &[RecordBatch]| batches.iter().map(RecordBatch::num_rows).sum::<usize>();
            if rows(&left) == rows(&pack.rows) {
                continue;
            }
            let files = self.by_name.remove(&name).unwrap_or_default();
            let partition = files.first().and_then(|file| file.partition_value(PARTITION)).unwrap_or("0");
            let values = vec![(PARTITION, partition.to_owned()), (SEGMENT, name)];
            adds.extend(self.store.write(values, &left).await?);
            self.removes.extend(files);
        }
        Ok((adds, self.removes))
    }
}

/// The rows of windows whose start is wanted. `window_start` is the first column.
fn where_start(rows: &RecordBatch, is_wanted: impl Fn(i64) -> bool) -> Result<RecordBatch> {
    let starts = rows.column(0).as_primitive::<TimestampMicrosecondType>().values();
    let wanted: BooleanArray = starts.iter().map(|start| Some(is_wanted(*start))).collect();
    Ok(filter_record_batch(rows, &wanted)?)
}
