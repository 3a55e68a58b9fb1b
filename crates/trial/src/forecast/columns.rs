//! Columns of a Parquet file as plain vectors.

use std::{fs::File, path::Path};

use arrow::{
    array::{AsArray, RecordBatch},
    compute::cast,
    datatypes::{DataType, Float64Type, Int64Type, TimeUnit},
};
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;

use super::TraceError;

/// A file read whole; columns are taken out by name.
pub(super) struct Columns {
    path: String,
    batches: Vec<RecordBatch>,
}

impl Columns {
    /// Reads `folder/name.parquet`.
    ///
    /// # Errors
    /// [`TraceError`] with the path, if the file is missing or is no Parquet file.
    pub(super) fn read(folder: &Path, name: &str) -> Result<Self, TraceError> {
        let path = folder.join(format!("{name}.parquet"));
        let shown = path.display().to_string();
        let fail = |why: String| TraceError::Read { path: shown.clone(), why };
        let file = File::open(&path).map_err(|e| fail(e.to_string()))?;
        let reader = ParquetRecordBatchReaderBuilder::try_new(file)
            .and_then(|builder| builder.with_batch_size(65_536).build())
            .map_err(|e| fail(e.to_string()))?;
        let batches = reader.collect::<Result<Vec<_>, _>>().map_err(|e| fail(e.to_string()))?;
        Ok(Self { path: shown, batches })
    }

    /// A numeric column as `f64`; null is NaN.
    pub(super) fn floats(&self, name: &str) -> Result<Vec<f64>, TraceError> {
        let mut out = Vec::new();
        for array in self.cast(name, &DataType::Float64)? {
            out.extend(array.as_primitive::<Float64Type>().iter().map(|v| v.unwrap_or(f64::NAN)));
        }
        Ok(out)
    }

    /// A timestamp column as seconds since 1970; null is an error of the file.
    pub(super) fn seconds(&self, name: &str) -> Result<Vec<f64>, TraceError> {
        let mut out = Vec::new();
        for array in self.cast(name, &DataType::Timestamp(TimeUnit::Microsecond, None))? {
            let micros = cast(&array, &DataType::Int64).map_err(|e| self.fail(name, &e))?;
            for value in micros.as_primitive::<Int64Type>() {
                let value = value.ok_or_else(|| self.fail(name, &"null"))?;
                out.push(value as f64 / 1e6);
            }
        }
        Ok(out)
    }

    /// A text column; null is the empty text.
    pub(super) fn texts(&self, name: &str) -> Result<Vec<String>, TraceError> {
        let mut out = Vec::new();
        for array in self.cast(name, &DataType::Utf8)? {
            out.extend(array.as_string::<i32>().iter().map(|v| v.unwrap_or_default().to_owned()));
        }
        Ok(out)
    }

    fn cast(&self, name: &str, to: &DataType) -> Result<Vec<arrow::array::ArrayRef>, TraceError> {
        self.batches
            .iter()
            .map(|batch| {
                let column = batch.column_by_name(name).ok_or_else(|| self.fail(name, &"no such column"))?;
                cast(column, to).map_err(|e| self.fail(name, &e))
            })
            .collect()
    }

    fn fail(&self, column: &str, why: &dyn std::fmt::Display) -> TraceError {
        TraceError::Read { path: self.path.clone(), why: format!("column {column}: {why}") }
    }
}
