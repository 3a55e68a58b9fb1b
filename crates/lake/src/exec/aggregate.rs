//! Aggregates rows into one row per key, for partial aggregates.
//!
//! Samples come in runs: ten rows of one device and one minute after another. So keys are compared
//! once per run and hashed once per run, and a run's values are added up before they reach the
//! row of their key. Values are integers only, as the rules of pipelines demand.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, BooleanArray, Int64Array, UInt32Array};
use arrow::buffer::{NullBuffer, ScalarBuffer};
use arrow::compute::{cast, take};
use arrow::datatypes::{DataType, Int64Type, TimeUnit, TimestampMicrosecondType};
use arrow::error::ArrowError;
use arrow::row::{RowConverter, SortField};
use hashbrown::{DefaultHashBuilder, HashTable};
use std::hash::BuildHasher;

/// What becomes of the values of one key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Function {
    /// Their sum, wrapping; NULL if all are NULL.
    Sum,
    /// How many are not NULL.
    Count,
    /// The least; NULL if all are NULL.
    Min,
    /// The greatest; NULL if all are NULL.
    Max,
}

/// The rows of one batch that a column counts: all, those of a mask, or none.
#[derive(Debug)]
pub(crate) enum Input {
    /// Values, and which rows to take of those that are not NULL.
    Values(ArrayRef, Option<BooleanArray>),
    /// No row has a value.
    Nothing,
}

/// Whether values of the type can be aggregated here.
pub(crate) fn is_supported(function: Function, data_type: &DataType) -> bool {
    match function {
        Function::Count => true,
        Function::Sum => *data_type == DataType::Int64,
        Function::Min | Function::Max => matches!(
            data_type,
            DataType::Int64 | DataType::Int32 | DataType::Timestamp(TimeUnit::Microsecond, _)
        ),
    }
}

/// One row per key.
pub(crate) struct Aggregator {
    converter: RowConverter,
    hasher: DefaultHashBuilder,
    table: HashTable<u32>,
    /// Keys in row format, one after the other, and where each one ends.
    keys: Vec<u8>,
    ends: Vec<usize>,
    columns: Vec<Column>,
}

#[derive(Debug)]
struct Column {
    function: Function,
    data_type: DataType,
    /// By number of the key. Columns grow when they first see a value.
    values: Vec<i64>,
    known: Vec<bool>,
}

impl Aggregator {
    /// Without rows yet. The key's columns are in the order in which the result is sorted. Types of
    /// columns are those of the result.
    pub(crate) fn new(
        keys: &[DataType],
        columns: impl Iterator<Item = (Function, DataType)>,
    ) -> Result<Self, ArrowError> {
        let fields = keys.iter().map(|data_type| SortField::new(data_type.clone())).collect();
        let column =
            |(function, data_type)| Column { function, data_type, values: Vec::new(), known: Vec::new() };
        Ok(Self {
            converter: RowConverter::new(fields)?,
            hasher: DefaultHashBuilder::default(),
            table: HashTable::new(),
            keys: Vec::new(),
            ends: Vec::new(),
            columns: columns.map(column).collect(),
        })
    }

    /// Adds rows: their keys, and what each column sees of them.
    pub(crate) fn push(&mut self, keys: &[ArrayRef], inputs: &[Input]) -> Result<(), ArrowError> {
        let rows = keys.first().map_or(0, |key| key.len());
        if rows == 0 {
            return Ok(());
        }
        let starts = run_starts(keys, rows);
        let groups = self.groups(keys, &starts, rows)?;
        let count = self.ends.len();
        for (column, input) in self.columns.iter_mut().zip(inputs) {
            match input {
                Input::Nothing => {}
                Input::Values(values, mask) => {
                    column.values.resize(count, column.function.start());
                    column.known.resize(count, false);
                    column.add(values, mask.as_ref(), &starts, &groups, rows)?;
                }
            }
        }
        Ok(())
    }

    /// Number of each run's key.
    fn groups(&mut self, keys: &[ArrayRef], starts: &[u32], rows: usize) -> Result<Vec<u32>, ArrowError> {
        let converted = match starts.len() == rows {
            true => self.converter.convert_columns(keys)?,
            false => {
                let starts = UInt32Array::from(starts.to_vec());
                let firsts =
                    keys.iter().map(|key| take(key, &starts, None)).collect::<Result<Vec<_>, _>>()?;
                self.converter.convert_columns(&firsts)?
            }
        };
        let mut groups = Vec::with_capacity(starts.len());
        let (hasher, keys, ends) = (&self.hasher, &mut self.keys, &mut self.ends);
        for row in converted.iter() {
            let row = row.data();
            let is_same = |number: &u32| key_of(keys, ends, *number) == row;
            let hash = hasher.hash_one(row);
            let number = match self.table.find(hash, is_same) {
                Some(number) => *number,
                None => {
                    let number = ends.len() as u32;
                    keys.extend_from_slice(row);
                    ends.push(keys.len());
                    let rehash = |number: &u32| hasher.hash_one(key_of(keys, ends, *number));
                    self.table.insert_unique(hash, number, rehash);
                    number
                }
            };
            groups.push(number);
        }
        Ok(groups)
    }

    /// The columns of the key, then all others; one row per key, sorted by key with NULL first.
    pub(crate) fn finish(self) -> Result<(Vec<ArrayRef>, Vec<ArrayRef>), ArrowError> {
        let key = |number: u32| key_of(&self.keys, &self.ends, number);
        let mut order: Vec<u32> = (0..self.ends.len() as u32).collect();
        order.sort_unstable_by_key(|number| key(*number));
        let parser = self.converter.parser();
        let keys = self.converter.convert_rows(order.iter().map(|number| parser.parse(key(*number))))?;
        let columns = self.columns.into_iter().map(|column| column.finish(&order));
        Ok((keys, columns.collect::<Result<_, _>>()?))
    }
}

fn key_of<'a>(keys: &'a [u8], ends: &[usize], number: u32) -> &'a [u8] {
    let number = number as usize;
    let begin = number.checked_sub(1).map_or(0, |before| ends[before]);
    &keys[begin..ends[number]]
}

/// The first row of each run of equal keys. Equal keys may be in two runs where comparing them
/// would cost more than it saves.
fn run_starts(keys: &[ArrayRef], rows: usize) -> Vec<u32> {
    let mut differs = vec![false; rows];
    differs[0] = true;
    for key in keys {
        match key.data_type() {
            DataType::Utf8View => mark(key.as_string_view().views(), &mut differs),
            DataType::Int64 => mark(key.as_primitive::<Int64Type>().values(), &mut differs),
            DataType::Timestamp(TimeUnit::Microsecond, _) => {
                mark(key.as_primitive::<TimestampMicrosecondType>().values(), &mut differs);
            }
            _ => differs.fill(true),
        }
        if let Some(nulls) = key.nulls().filter(|nulls| (1..rows).contains(&nulls.null_count())) {
            for (row, differs) in differs.iter_mut().enumerate().skip(1) {
                *differs |= nulls.is_valid(row) != nulls.is_valid(row - 1);
            }
        }
    }
    (0..).zip(differs).filter(|(_, differs)| *differs).map(|(row, _)| row).collect()
}

fn mark<T: PartialEq>(values: &[T], differs: &mut [bool]) {
    for (pair, differs) in values.windows(2).zip(&mut differs[1..]) {
        *differs |= pair[0] != pair[1];
    }
}

impl Function {
    /// Its value of no rows.
    pub(super) fn start(self) -> i64 {
        match self {
            Self::Sum | Self::Count => 0,
            Self::Min => i64::MAX,
            Self::Max => i64::MIN,
        }
    }

    pub(super) fn combine(self, a: i64, b: i64) -> i64 {
        match self {
            Self::Sum | Self::Count => a.wrapping_add(b),
            Self::Min => a.min(b),
            Self::Max => a.max(b),
        }
    }
}

impl Column {
    fn add(
        &mut self,
        values: &ArrayRef,
        mask: Option<&BooleanArray>,
        starts: &[u32],
        groups: &[u32],
        rows: usize,
    ) -> Result<(), ArrowError> {
        let masked = mask.map(|mask| match mask.nulls() {
            Some(nulls) => mask.values() & nulls.inner(),
            None => mask.values().clone(),
        });
        let counted =
            NullBuffer::union(values.logical_nulls().as_ref(), masked.map(NullBuffer::new).as_ref());
        let counted = counted.filter(|counted| counted.null_count() > 0);
        if counted.as_ref().is_some_and(|counted| counted.null_count() == rows) {
            return Ok(());
        }
        let ends = starts[1..].iter().copied().chain([rows as u32]);
        let runs = starts.iter().copied().zip(ends).map(|(from, to)| from as usize..to as usize);
        if self.function == Function::Count {
            for (run, group) in runs.zip(groups) {
                let count = counted
                    .as_ref()
                    .map_or(run.len(), |known| run.len() - known.slice(run.start, run.len()).null_count());
                self.values[*group as usize] += count as i64;
            }
            return Ok(());
        }
        let values = integers(values)?;
        let values = values.values();
        match self.function {
            Function::Sum => self.fold::<SUM>(values, counted.as_ref(), runs, groups),
            Function::Min => self.fold::<MIN>(values, counted.as_ref(), runs, groups),
            _ => self.fold::<MAX>(values, counted.as_ref(), runs, groups),
        }
        Ok(())
    }

    fn fold<const FUNCTION: u8>(
        &mut self,
        values: &[i64],
        counted: Option<&NullBuffer>,
        runs: impl Iterator<Item = std::ops::Range<usize>>,
        groups: &[u32],
    ) {
        let function = match FUNCTION {
            SUM => Function::Sum,
            MIN => Function::Min,
            _ => Function::Max,
        };
        for (run, group) in runs.zip(groups) {
            let (mut total, mut any) = (function.start(), counted.is_none());
            match counted {
                None => values[run].iter().for_each(|value| total = function.combine(total, *value)),
                Some(counted) => {
                    for row in run.filter(|row| counted.is_valid(*row)) {
                        (total, any) = (function.combine(total, values[row]), true);
                    }
                }
            }
            let group = *group as usize;
            self.values[group] = function.combine(self.values[group], total);
            self.known[group] |= any;
        }
    }

    fn finish(mut self, order: &[u32]) -> Result<ArrayRef, ArrowError> {
        self.values.resize(order.len(), self.function.start());
        self.known.resize(order.len(), false);
        let values: ScalarBuffer<i64> = order.iter().map(|number| self.values[*number as usize]).collect();
        let nulls = (self.function != Function::Count)
            .then(|| NullBuffer::from_iter(order.iter().map(|number| self.known[*number as usize])))
            .filter(|nulls| nulls.null_count() > 0);
        let values: ArrayRef = Arc::new(Int64Array::new(values, nulls));
        match self.data_type == DataType::Int64 {
            true => Ok(values),
            // Values under a NULL may not fit.
            false => cast(&values, &self.data_type),
        }
    }
}

const SUM: u8 = 0;
const MIN: u8 = 1;
const MAX: u8 = 2;

fn integers(values: &ArrayRef) -> Result<Int64Array, ArrowError> {
    match values.data_type() {
        DataType::Int64 => Ok(values.as_primitive::<Int64Type>().clone()),
        DataType::Timestamp(TimeUnit::Microsecond, _) => {
            Ok(values.as_primitive::<TimestampMicrosecondType>().reinterpret_cast())
        }
        _ => Ok(cast(values, &DataType::Int64)?.as_primitive::<Int64Type>().clone()),
    }
}
