//! Builds rows of `gpu_samples` from samples in memory: any runs of any chunks, in any order.

use std::iter::repeat_n;
use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, Int32Array, Int64Array, RecordBatch, StringViewBuilder, TimestampMicrosecondArray,
    UInt32Array, new_null_array,
};
use arrow::buffer::{NullBuffer, ScalarBuffer};
use arrow::compute::take;
use arrow::datatypes::{DataType, SchemaRef};
use arrow::error::ArrowError;

use hashbrown::HashMap;

use super::chunk::{RunRef, SampleChunk, TextId, Values};
use super::growth::growth;
use super::metrics::{Derived, derived_column, metric_index};
use crate::batch::null_integers;
use crate::table::{EVENT, KEY, OFFSET, PARTITION};

/// Rows of the runs with the columns of `schema`: those of the table, and those derived for
/// windows. Columns that are not in the schema cost nothing.
pub(crate) fn gather(
    runs: &[RunRef<'_>],
    partition: u32,
    schema: &SchemaRef,
) -> Result<RecordBatch, ArrowError> {
    let mut rows = Rows {
        runs,
        count: runs.iter().map(|picked| picked.run.ticks as usize).sum(),
        partition,
        growth: HashMap::new(),
    };
    let columns = schema.fields().iter().map(|field| rows.column(field.name())).collect::<Result<_, _>>()?;
    RecordBatch::try_new(Arc::clone(schema), columns)
}

/// The rows from which columns are built.
struct Rows<'a> {
    runs: &'a [RunRef<'a>],
    count: usize,
    partition: u32,
    /// Growth of each counter, and the time of it.
    growth: HashMap<usize, (ArrayRef, ArrayRef)>,
}

impl Rows<'_> {
    fn column(&mut self, name: &str) -> Result<ArrayRef, ArrowError> {
        let (runs, rows) = (self.runs, self.count);
        if let Some(place) = metric_index(name) {
            return Ok(values(runs, rows, place));
        }
        Ok(match name {
            "cluster" => text(runs, |p| Some(p.text(p.message().cluster)))?,
            "node" => text(runs, |p| Some(p.text(p.message().node)))?,
            "gpu_uuid" => text(runs, |p| Some(p.text(p.run.uuid)))?,
            "gpu_index" => int(runs, rows, |p| p.run.index),
            "gpu_model" => text(runs, |p| Some(p.text(p.run.model)))?,
            "mig_uuid" => text(runs, |p| p.run.mig.map(|mig| p.text(mig)))?,
            "event_time" => times(runs, rows),
            "other_metrics" => sparse_text(runs, rows, |chunk| &chunk.others),
            "processes" => sparse_text(runs, rows, |chunk| &chunk.processes),
            "missing" => missing(runs)?,
            "source" => text(runs, |p| Some(p.text(p.message().source)))?,
            "epoch" => int(runs, rows, |p| p.message().epoch),
            "seq" => int(runs, rows, |p| p.message().seq),
            PARTITION => Arc::new(Int32Array::from_value(self.partition as i32, rows)),
            OFFSET => int(runs, rows, |p| p.message().offset as i64),
            KEY => int(runs, rows, |p| p.message().id.0),
            EVENT => int(runs, rows, |p| p.message().id.1),
            _ => self.derived(name)?,
        })
    }

    fn derived(&mut self, name: &str) -> Result<ArrayRef, ArrowError> {
        let (runs, rows) = (self.runs, self.count);
        let mut grown = |place| self.growth.entry(place).or_insert_with(|| growth(runs, rows, place)).clone();
        match derived_column(name) {
            Some(Derived::Growth(place)) => Ok(grown(place).0),
            Some(Derived::GrowthTime(place)) => Ok(grown(place).1),
            Some(Derived::Unread(reason)) => Ok(unread(runs, rows, reason)),
            None => Err(ArrowError::SchemaError(format!("samples have no column {name}"))),
        }
    }
}

/// Text that repeats over runs of rows, stored once per run.
#[derive(Default)]
struct RunLengthText<'a> {
    texts: StringViewBuilder,
    last: Option<Option<&'a str>>,
    count: u32,
    /// Index of each row's text.
    of_row: Vec<u32>,
}

impl<'a> RunLengthText<'a> {
    fn push(&mut self, text: Option<&'a str>, rows: usize) {
        if self.last != Some(text) {
            self.texts.append_option(text);
            self.last = Some(text);
            self.count += 1;
        }
        self.of_row.extend(repeat_n(self.count - 1, rows));
    }

    fn finish(mut self) -> Result<ArrayRef, ArrowError> {
        let texts = self.texts.finish();
        if texts.null_count() == texts.len() {
            return Ok(new_null_array(&DataType::Utf8View, self.of_row.len()));
        }
        take(&texts, &UInt32Array::from(self.of_row), None)
    }
}

fn text<'a>(
    runs: &[RunRef<'a>],
    of: impl Fn(&RunRef<'a>) -> Option<&'a str>,
) -> Result<ArrayRef, ArrowError> {
    let mut texts = RunLengthText::default();
    runs.iter().for_each(|picked| texts.push(of(picked), picked.run.ticks as usize));
    texts.finish()
}

fn int(runs: &[RunRef<'_>], rows: usize, of: impl Fn(&RunRef<'_>) -> i64) -> ArrayRef {
    let mut values = Vec::with_capacity(rows);
    runs.iter().for_each(|picked| values.extend(repeat_n(of(picked), picked.run.ticks as usize)));
    Arc::new(Int64Array::from(values))
}

fn times(runs: &[RunRef<'_>], rows: usize) -> ArrayRef {
    let mut times = Vec::with_capacity(rows);
    for RunRef { chunk, run } in runs {
        times.extend_from_slice(&chunk.ticks[run.first_tick as usize..][..run.ticks as usize]);
    }
    Arc::new(TimestampMicrosecondArray::from(times).with_timezone("UTC"))
}

fn values(runs: &[RunRef<'_>], rows: usize, metric: usize) -> ArrayRef {
    if runs.iter().all(|picked| picked.chunk.metrics[metric].values.is_empty()) {
        return null_integers(rows);
    }
    let mut values = Vec::with_capacity(rows);
    let mut unknown = Vec::new();
    for picked in runs {
        copy(&picked.chunk.metrics[metric], picked.rows(), &mut values, &mut unknown);
    }
    let nulls = (!unknown.is_empty()).then(|| {
        let mut known = vec![true; rows];
        unknown.into_iter().for_each(|(from, to)| known[from..to].fill(false));
        NullBuffer::from(known)
    });
    Arc::new(Int64Array::new(ScalarBuffer::from(values), nulls))
}

/// Appends the values of some rows, and the positions of those that are not known. These are 0
/// under the null mask.
fn copy(
    metric: &Values,
    rows: std::ops::Range<usize>,
    into: &mut Vec<i64>,
    unknown: &mut Vec<(usize, usize)>,
) {
    let begin = into.len();
    let known = metric.values.get(rows.start..rows.end.min(metric.values.len())).unwrap_or_default();
    into.extend_from_slice(known);
    if known.len() < rows.len() {
        unknown.push((begin + known.len(), begin + rows.len()));
        into.resize(begin + rows.len(), 0);
    }
    let first = metric.unknown.partition_point(|(_, to)| *to as usize <= rows.start);
    for (from, to) in metric.unknown[first..].iter().take_while(|(from, _)| (*from as usize) < rows.end) {
        let from = (*from as usize).max(rows.start) - rows.start;
        let to = (*to as usize).min(rows.end) - rows.start;
        into[begin + from..begin + to].fill(0);
        unknown.push((begin + from, begin + to));
    }
}

/// Text that few rows have.
fn sparse_text(runs: &[RunRef<'_>], rows: usize, of: impl Fn(&SampleChunk) -> &[(u32, String)]) -> ArrayRef {
    if runs.iter().all(|picked| of(picked.chunk).is_empty()) {
        return new_null_array(&DataType::Utf8View, rows);
    }
    let mut texts = StringViewBuilder::with_capacity(rows);
    for picked in runs {
        let sparse_text = of(picked.chunk);
        let mut next = sparse_text.partition_point(|(row, _)| (*row as usize) < picked.rows().start);
        for row in picked.rows() {
            let here = sparse_text.get(next).filter(|(at, _)| *at as usize == row);
            texts.append_option(here.map(|(_, text)| text));
            next += usize::from(here.is_some());
        }
    }
    Arc::new(texts.finish())
}

/// Number of values per row that could not be read for a reason.
fn unread(runs: &[RunRef<'_>], rows: usize, reason: usize) -> ArrayRef {
    let mut counts = vec![0; rows];
    let mut begin = 0;
    for picked in runs {
        each_missing(picked, |from, to, text| {
            let count = picked.chunk.unread.get(&text).map_or(0, |by_reason| by_reason[reason]);
            counts[begin + from..begin + to].fill(count);
        });
        begin += picked.run.ticks as usize;
    }
    Arc::new(Int64Array::from(counts))
}

/// Calls `see` for each range of a run's rows in which values could not be read, with their text of
/// `missing`, in order.
fn each_missing(picked: &RunRef<'_>, mut see: impl FnMut(usize, usize, TextId)) {
    let rows = picked.rows();
    let missing = &picked.chunk.missing;
    let first = missing.partition_point(|(_, to, _)| *to as usize <= rows.start);
    for (from, to, text) in missing[first..].iter().take_while(|(from, ..)| (*from as usize) < rows.end) {
        let (from, to) = ((*from as usize).max(rows.start), (*to as usize).min(rows.end));
        see(from - rows.start, to - rows.start, *text);
    }
}

fn missing(runs: &[RunRef<'_>]) -> Result<ArrayRef, ArrowError> {
    let mut texts = RunLengthText::default();
    for picked in runs {
        let mut at = 0;
        each_missing(picked, |from, to, text| {
            texts.push(None, from - at);
            texts.push(Some(picked.text(text)), to - from);
            at = to;
        });
        texts.push(None, picked.run.ticks as usize - at);
    }
    texts.finish()
}
