//! Columns of a Parquet file as plain lists.

use std::fs::File;
use std::path::Path;

use arrow::array::{Array, AsArray, RecordBatch};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Float64Type};
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;

use super::ReadError;

/// A file's batches.
pub(super) struct Columns {
    path: String,
    batches: Vec<RecordBatch>,
}

impl Columns {
    pub(super) fn read(path: &Path) -> Result<Self, ReadError> {
        let name = path.display().to_string();
        let file = File::open(path).map_err(|source| ReadError::Open { path: name.clone(), source })?;
        let reader = ParquetRecordBatchReaderBuilder::try_new(file)
            .and_then(|builder| builder.build())
            .map_err(|source| ReadError::Read { path: name.clone(), source })?;
        let batches = reader
            .collect::<Result<_, _>>()
            .map_err(|source| ReadError::Decode { path: name.clone(), source })?;
        Ok(Self { path: name, batches })
    }

    /// Every number of a column; NaN where it is null.
    pub(super) fn numbers(&self, column: &'static str) -> Result<Vec<f64>, ReadError> {
        self.gather(column, &DataType::Float64, |array| {
            let values = array.as_primitive::<Float64Type>();
            (0..values.len())
                .map(|row| if values.is_null(row) { f64::NAN } else { values.value(row) })
                .collect()
        })
    }

    /// Every text of a column; empty where it is null.
    pub(super) fn texts(&self, column: &'static str) -> Result<Vec<String>, ReadError> {
        self.gather(column, &DataType::Utf8, |array| {
            array.as_string::<i32>().iter().map(|text| text.unwrap_or_default().to_owned()).collect()
        })
    }

    fn gather<T>(
        &self,
        column: &'static str,
        wanted: &DataType,
        list: impl Fn(&dyn Array) -> Vec<T>,
    ) -> Result<Vec<T>, ReadError> {
        let mut all = Vec::new();
        for batch in &self.batches {
            let missing = || ReadError::Column { path: self.path.clone(), column };
            let array = batch.column_by_name(column).ok_or_else(missing)?;
            let array = cast(array, wanted).map_err(|_| missing())?;
            all.extend(list(array.as_ref()));
        }
        Ok(all)
    }
}
