//! Columns of a Parquet file as plain vectors.

use std::fs::File;
use std::path::Path;

use arrow::array::{ArrayRef, AsArray, RecordBatch};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Float64Type, Int64Type, TimeUnit};
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;

const ROWS_AT_ONCE: usize = 65_536;

/// A file that is missing, is no Parquet, or lacks a column.
#[derive(Debug, thiserror::Error)]
#[error("{path}: {why}: give the folder of the public traces, files named as in it")]
pub struct ReadError {
    path: String,
    why: String,
}

/// A file read into memory, with columns by name.
pub(crate) struct Columns {
    path: String,
    batches: Vec<RecordBatch>,
}

impl Columns {
    /// Reads `folder/name.parquet`.
    pub(crate) fn read(folder: &Path, name: &str) -> Result<Self, ReadError> {
        let path = folder.join(format!("{name}.parquet"));
        let shown = path.display().to_string();
        let fail = |why: String| ReadError { path: shown.clone(), why };
        let file = File::open(&path).map_err(|error| fail(error.to_string()))?;
        let reader = ParquetRecordBatchReaderBuilder::try_new(file)
            .and_then(|builder| builder.with_batch_size(ROWS_AT_ONCE).build())
            .map_err(|error| fail(error.to_string()))?;
        let batches = reader.collect::<Result<Vec<_>, _>>().map_err(|error| fail(error.to_string()))?;
        Ok(Self { path: shown, batches })
    }

    /// A numeric column; null is NaN.
    pub(crate) fn numbers(&self, name: &str) -> Result<Vec<f64>, ReadError> {
        let arrays = self.cast(name, &DataType::Float64)?;
        let values = arrays.iter().flat_map(|array| array.as_primitive::<Float64Type>().iter());
        Ok(values.map(|value| value.unwrap_or(f64::NAN)).collect())
    }

    /// A timestamp column as seconds since 1970; a null is an error.
    pub(crate) fn seconds(&self, name: &str) -> Result<Vec<f64>, ReadError> {
        let second = |micros: Option<i64>| micros.map(|us| us as f64 / 1e6);
        let seconds: Option<Vec<f64>> = self.micros(name)?.into_iter().map(second).collect();
        seconds.ok_or_else(|| self.fail(name, &"null"))
    }

    /// A timestamp column as µs since 1970.
    pub(crate) fn micros(&self, name: &str) -> Result<Vec<Option<i64>>, ReadError> {
        let mut all = Vec::new();
        for array in self.cast(name, &DataType::Timestamp(TimeUnit::Microsecond, None))? {
            let micros = cast(&array, &DataType::Int64).map_err(|error| self.fail(name, &error))?;
            all.extend(micros.as_primitive::<Int64Type>());
        }
        Ok(all)
    }

    /// A text column; a null is the empty string.
    pub(crate) fn texts(&self, name: &str) -> Result<Vec<String>, ReadError> {
        let arrays = self.cast(name, &DataType::Utf8)?;
        let texts = arrays.iter().flat_map(|array| array.as_string::<i32>().iter());
        Ok(texts.map(|text| text.unwrap_or_default().to_owned()).collect())
    }

    fn cast(&self, name: &str, to: &DataType) -> Result<Vec<ArrayRef>, ReadError> {
        let column = |batch: &RecordBatch| {
            let column = batch.column_by_name(name).ok_or_else(|| self.fail(name, &"no such column"))?;
            cast(column, to).map_err(|error| self.fail(name, &error))
        };
        self.batches.iter().map(column).collect()
    }

    fn fail(&self, column: &str, why: &dyn std::fmt::Display) -> ReadError {
        ReadError { path: self.path.clone(), why: format!("column {column}: {why}") }
    }
}
