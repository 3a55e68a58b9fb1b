//! Reader of Parquet, one batch of rows at a time. Each row group has a reader of its own, so that
//! an error can name it.

use std::fs::File;

use arrow::array::{Array, ArrayRef, AsArray, RecordBatch};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Date32Type, Float64Type, Int64Type, TimeUnit, TimestampMillisecondType};
use arrow::util::display::{ArrayFormatter, FormatOptions};
use parquet::arrow::arrow_reader::{
    ArrowReaderMetadata, ArrowReaderOptions, ParquetRecordBatchReader, ParquetRecordBatchReaderBuilder,
};

use super::guarded::guarded;
use super::{Cell, Column, ColumnKind, Next, RAW_LIMIT_BYTES, Rows};
use crate::error::ImportError;

const BATCH_ROWS: usize = 4096;
const DAY_MS: i64 = 86_400_000;

pub(crate) struct ParquetRows {
    name: String,
    file: File,
    metadata: ArrowReaderMetadata,
    /// Reader of the current row group; none before the first one and between two.
    reader: Option<ParquetRecordBatchReader>,
    /// Row groups that were begun.
    groups: usize,
    columns: Vec<Column>,
    batch: Option<RecordBatch>,
    /// The batch's columns, converted to the few types of cells.
    cells: Vec<Cells>,
    at: usize,
    row: u64,
    bytes: u64,
    rows_total: u64,
}

enum Cells {
    Text(ArrayRef),
    Int(ArrayRef),
    Float(ArrayRef),
    Naive(ArrayRef),
    Instant(ArrayRef),
    Day(ArrayRef),
    Other,
}

impl ParquetRows {
    pub(crate) fn open(file: File, name: String) -> Result<Self, ImportError> {
        let failed = |what: String| ImportError::ParquetHead { file: name.clone(), what };
        let bytes = file.metadata().map_err(|error| failed(error.to_string()))?.len();
        let metadata = guarded(|| ArrowReaderMetadata::load(&file, ArrowReaderOptions::default()))
            .and_then(|loaded| loaded.map_err(|error| error.to_string()))
            .map_err(failed)?;
        let columns = metadata.schema().fields().iter().map(|field| Column {
            name: field.name().clone(),
            kind: kind(field.data_type()),
            type_name: field.data_type().to_string(),
        });
        let columns = columns.collect();
        let rows_total = u64::try_from(metadata.metadata().file_metadata().num_rows()).unwrap_or(0);
        Ok(Self {
            name,
            file,
            metadata,
            reader: None,
            groups: 0,
            columns,
            batch: None,
            cells: Vec::new(),
            at: 0,
            row: 0,
            bytes,
            rows_total,
        })
    }

    fn failed(&self, what: impl ToString) -> ImportError {
        let (file, group, row) = (self.name.clone(), self.groups, self.row);
        ImportError::Parquet { file, group, row, what: what.to_string() }
    }

    /// The next rows; `None` after the last row group.
    fn next_batch(&mut self) -> Result<Option<(RecordBatch, Vec<Cells>)>, String> {
        loop {
            if self.reader.is_none() {
                if self.groups >= self.metadata.metadata().num_row_groups() {
                    return Ok(None);
                }
                self.groups += 1;
                self.reader = Some(self.group_reader(self.groups - 1).map_err(|error| error.to_string())?);
            }
            match self.reader.as_mut().and_then(Iterator::next) {
                Some(batch) => {
                    let batch = batch.map_err(|error| error.to_string())?;
                    let cells: Result<_, _> = batch.columns().iter().map(cells).collect();
                    return Ok(Some((batch, cells.map_err(|error| error.to_string())?)));
                }
                None => self.reader = None,
            }
        }
    }

    fn group_reader(&self, group: usize) -> parquet::errors::Result<ParquetRecordBatchReader> {
        let file = self.file.try_clone()?;
        let builder = ParquetRecordBatchReaderBuilder::new_with_metadata(file, self.metadata.clone());
        builder.with_row_groups(vec![group]).with_batch_size(BATCH_ROWS).build()
    }
}

fn kind(data_type: &DataType) -> ColumnKind {
    match data_type {
        DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View => ColumnKind::Text,
        DataType::Date32 | DataType::Date64 | DataType::Timestamp(..) => ColumnKind::Time,
        other if other.is_integer() || other.is_floating() || other.is_decimal() => ColumnKind::Number,
        DataType::Dictionary(_, value) => kind(value),
        _ => ColumnKind::Other,
    }
}

/// Converts a column to one of the types of cells.
fn cells(array: &ArrayRef) -> Result<Cells, arrow::error::ArrowError> {
    let millis = DataType::Timestamp(TimeUnit::Millisecond, None);
    let value_type = match array.data_type() {
        DataType::Dictionary(_, value) => value.as_ref(),
        other => other,
    };
    Ok(match value_type {
        DataType::Timestamp(_, Some(_)) => {
            Cells::Instant(cast(&cast(array, &without_zone(value_type))?, &millis)?)
        }
        DataType::Timestamp(_, None) | DataType::Date64 => Cells::Naive(cast(array, &millis)?),
        DataType::Date32 => Cells::Day(cast(array, &DataType::Date32)?),
        other if other.is_integer() => Cells::Int(cast(array, &DataType::Int64)?),
        other if other.is_floating() || other.is_decimal() => Cells::Float(cast(array, &DataType::Float64)?),
        DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View => {
            Cells::Text(cast(array, &DataType::Utf8)?)
        }
        _ => Cells::Other,
    })
}

/// Arrow stores zoned timestamps as UTC; the zone only affects display.
fn without_zone(data_type: &DataType) -> DataType {
    match data_type {
        DataType::Timestamp(unit, _) => DataType::Timestamp(*unit, Some("UTC".into())),
        other => other.clone(),
    }
}

impl Rows for ParquetRows {
    fn columns(&self) -> &[Column] {
        &self.columns
    }

    fn next(&mut self) -> Result<Next, ImportError> {
        self.at += 1;
        while self.batch.as_ref().is_none_or(|batch| self.at >= batch.num_rows()) {
            let read = guarded(|| self.next_batch()).and_then(|read| read);
            let Some((batch, cells)) = read.map_err(|what| self.failed(what))? else {
                return Ok(Next::End);
            };
            (self.batch, self.cells) = (Some(batch), cells);
            self.at = 0;
        }
        self.row += 1;
        Ok(Next::Row)
    }

    fn cell(&self, column: usize) -> Cell<'_> {
        let at = self.at;
        match &self.cells[column] {
            Cells::Text(array) if array.is_valid(at) => Cell::Text(array.as_string::<i32>().value(at)),
            Cells::Int(array) if array.is_valid(at) => Cell::Int(array.as_primitive::<Int64Type>().value(at)),
            Cells::Float(array) if array.is_valid(at) => {
                Cell::Float(array.as_primitive::<Float64Type>().value(at))
            }
            Cells::Naive(array) if array.is_valid(at) => {
                Cell::NaiveMs(array.as_primitive::<TimestampMillisecondType>().value(at))
            }
            Cells::Instant(array) if array.is_valid(at) => {
                Cell::InstantMs(array.as_primitive::<TimestampMillisecondType>().value(at))
            }
            Cells::Day(array) if array.is_valid(at) => {
                Cell::NaiveMs(i64::from(array.as_primitive::<Date32Type>().value(at)) * DAY_MS)
            }
            _ => Cell::Null,
        }
    }

    fn line(&self) -> u64 {
        self.row
    }

    fn raw(&self) -> Vec<u8> {
        let mut raw = String::new();
        let options = FormatOptions::default();
        for (index, array) in self.batch.iter().flat_map(RecordBatch::columns).enumerate() {
            let value = ArrayFormatter::try_new(array.as_ref(), &options)
                .map_or_else(|_| String::new(), |formatter| formatter.value(self.at).to_string());
            raw.push_str(if index == 0 { "" } else { "," });
            raw.push_str(&value);
        }
        let mut raw = raw.into_bytes();
        raw.truncate(RAW_LIMIT_BYTES);
        raw
    }

    fn progress(&self) -> (u64, Option<u64>) {
        let done = u128::from(self.bytes) * u128::from(self.row) / u128::from(self.rows_total.max(1));
        (done as u64, Some(self.bytes))
    }
}
