//! One row per window and tuple of texts, with sums, counts, minima and maxima.
//!
//! Rows are collected as they come, as the number of their window, the number of their tuple and
//! their values. They are sorted and merged on these numbers: when there are many, and at the end.

use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, BooleanArray, Int64Array, StringViewArray, TimestampMicrosecondArray,
};
use arrow::buffer::NullBuffer;
use arrow::datatypes::{Int64Type, TimestampMicrosecondType};
use arrow::error::ArrowError;
use hashbrown::HashMap;

use super::aggregate::{Function, Input};
use super::tuples::Tuples;

/// Rows are merged when there are so many, and again when there are twice as many as were left.
const MERGED_ROWS: usize = 1 << 20;

/// The groups of rows seen so far.
#[derive(Debug)]
pub(super) struct WindowSums {
    tuples: Tuples,
    /// Number of each window by its start, µs.
    windows: HashMap<i64, u32>,
    /// Of each row its window, and below it its tuple.
    groups: Vec<u64>,
    columns: Vec<Column>,
    merge_at: usize,
}

#[derive(Debug)]
struct Column {
    function: Function,
    /// By row.
    values: Vec<i64>,
    /// Whether the value is known, by row; empty as long as all are.
    known: Vec<bool>,
}

impl WindowSums {
    /// Without rows. Of the key, `width` columns are text. Values are integers.
    pub fn new(width: usize, functions: impl Iterator<Item = Function>) -> Self {
        let column = |function| Column { function, values: Vec::new(), known: Vec::new() };
        Self {
            tuples: Tuples::new(width),
            windows: HashMap::new(),
            groups: Vec::new(),
            columns: functions.map(column).collect(),
            merge_at: MERGED_ROWS,
        }
    }

    /// Adds rows: starts of their windows, none of them NULL, the texts of their keys, and their
    /// values. Counts are not supported.
    pub fn push(
        &mut self,
        windows: &TimestampMicrosecondArray,
        texts: &[&StringViewArray],
        values: &[Input],
    ) {
        let numbers = self.tuples.numbers(texts, windows.len());
        for (start, tuple) in windows.values().iter().zip(numbers) {
            let next = self.windows.len() as u32;
            let window = *self.windows.entry(*start).or_insert(next);
            self.groups.push(u64::from(window) << u32::BITS | u64::from(tuple));
        }
        for (column, values) in self.columns.iter_mut().zip(values) {
            column.push(values, windows.len());
        }
        if self.groups.len() >= self.merge_at {
            self.merge(&(0..self.windows.len() as u32).collect::<Vec<_>>(), None);
            self.merge_at = MERGED_ROWS.max(2 * self.groups.len());
        }
    }

    /// Starts of windows, columns of texts, and columns of values: one row per group, sorted by
    /// window and texts with NULL first.
    pub fn finish(mut self) -> Result<(ArrayRef, Vec<ArrayRef>, Vec<ArrayRef>), ArrowError> {
        let mut starts: Vec<(i64, u32)> =
            self.windows.iter().map(|(start, number)| (*start, *number)).collect();
        starts.sort_unstable();
        let mut window_ranks = vec![0; starts.len()];
        for ((_, number), rank) in starts.iter().zip(0..) {
            window_ranks[*number as usize] = rank;
        }
        let tuple_ranks = self.tuples.ranks();
        self.merge(&window_ranks, Some(&tuple_ranks));
        let start = |group: &u64| starts[window_ranks[(group >> u32::BITS) as usize] as usize].0;
        let windows = TimestampMicrosecondArray::from_iter_values(self.groups.iter().map(start));
        let tuples: Vec<u32> = self.groups.iter().map(|group| *group as u32).collect();
        let values = self.columns.into_iter().map(Column::finish).collect();
        Ok((Arc::new(windows.with_timezone("UTC")), self.tuples.columns(&tuples)?, values))
    }

    /// Merges rows of one group. Afterwards they are sorted by the ranks of their windows and of
    /// their tuples, or of those by their numbers.
    fn merge(&mut self, windows: &[u32], tuples: Option<&[u32]>) {
        let rank = |group: u64| {
            let (window, tuple) = ((group >> u32::BITS) as usize, group as u32);
            let tuple = tuples.map_or(tuple, |ranks| ranks[tuple as usize]);
            u64::from(windows[window]) << u32::BITS | u64::from(tuple)
        };
        let mut order: Vec<(u64, u32)> = self.groups.iter().map(|group| rank(*group)).zip(0..).collect();
        order.sort_unstable();
        let runs: Vec<&[(u64, u32)]> = order.chunk_by(|a, b| a.0 == b.0).collect();
        for column in &mut self.columns {
            column.merge(&runs);
        }
        self.groups = runs.iter().map(|run| self.groups[run[0].1 as usize]).collect();
    }

    /// Bytes held, about.
    pub fn bytes(&self) -> usize {
        let columns: usize =
            self.columns.iter().map(|column| 8 * column.values.capacity() + column.known.capacity()).sum();
        // Merging holds the order of all rows, and then the merged ones beside them.
        let merging = self.groups.len() * 3 * size_of::<u64>();
        self.tuples.bytes() + 8 * self.groups.capacity() + 16 * self.windows.capacity() + columns + merging
    }
}

impl Column {
    fn push(&mut self, input: &Input, rows: usize) {
        let (values, mask) = match input {
            Input::Nothing => (None, None),
            Input::Values(values, mask) => (Some(values), mask.as_ref()),
        };
        let known = values.map(|values| known(values, mask));
        let all_known =
            known.as_ref().is_some_and(|known| known.as_ref().is_none_or(|known| known.null_count() == 0));
        if !all_known || !self.known.is_empty() {
            self.known.resize(self.values.len(), true);
            match known.flatten() {
                Some(known) => self.known.extend(known.iter()),
                None => self.known.resize(self.values.len() + rows, all_known),
            }
        }
        match values {
            None => self.values.resize(self.values.len() + rows, self.function.start()),
            Some(values) => self.values.extend_from_slice(values.as_primitive::<Int64Type>().values()),
        }
    }

    fn merge(&mut self, runs: &[&[(u64, u32)]]) {
        let values = std::mem::take(&mut self.values);
        let known = std::mem::take(&mut self.known);
        let is_known = |row: &u32| known.is_empty() || known[*row as usize];
        for run in runs {
            let rows = run.iter().map(|(_, row)| row).filter(|row| is_known(row));
            let total = rows.fold(self.function.start(), |total, row| {
                self.function.combine(total, values[*row as usize])
            });
            self.values.push(total);
        }
        if !known.is_empty() {
            self.known = runs.iter().map(|run| run.iter().any(|(_, row)| is_known(row))).collect();
        }
    }

    fn finish(self) -> ArrayRef {
        let nulls = (!self.known.is_empty()).then(|| NullBuffer::from(self.known));
        Arc::new(Int64Array::new(self.values.into(), nulls.filter(|nulls| nulls.null_count() > 0)))
    }
}

/// Which values count: those that are known and in the mask. `None` for all.
fn known(values: &ArrayRef, mask: Option<&BooleanArray>) -> Option<NullBuffer> {
    let masked = mask.map(|mask| match mask.nulls() {
        Some(nulls) => NullBuffer::new(mask.values() & nulls.inner()),
        None => NullBuffer::new(mask.values().clone()),
    });
    NullBuffer::union(values.logical_nulls().as_ref(), masked.as_ref())
}

/// The starts of windows, if none is NULL.
pub(super) fn starts(array: &ArrayRef) -> Option<&TimestampMicrosecondArray> {
    array.as_primitive_opt::<TimestampMicrosecondType>().filter(|starts| starts.null_count() == 0)
}
