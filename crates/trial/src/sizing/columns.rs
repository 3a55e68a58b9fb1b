//! Columns of a Parquet file as plain vectors.

use std::{fs::File, path::Path};

use arrow::{
    array::{ArrayRef, AsArray, RecordBatch},
    compute::cast,
    datatypes::{DataType, Float64Type},
};
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;

use super::SizingTrialError;

/// A file read whole; columns are taken out by name.
pub(super) struct Columns {
    path: String,
    batches: Vec<RecordBatch>,
}

impl Columns {
    /// Reads `folder/name.parquet`.
    pub(super) fn read(folder: &Path, name: &str) -> Result<Self, SizingTrialError> {
        let path = folder.join(format!("{name}.parquet"));
        let shown = path.display().to_string();
        let fail = |why: String| SizingTrialError::Read { path: shown.clone(), why };
        let file = File::open(&path).map_err(|error| fail(error.to_string()))?;
        let reader = ParquetRecordBatchReaderBuilder::try_new(file)
            .and_then(|builder| builder.build())
            .map_err(|error| fail(error.to_string()))?;
        let batches = reader.collect::<Result<Vec<_>, _>>().map_err(|error| fail(error.to_string()))?;
        Ok(Self { path: shown, batches })
    }

    /// A column as numbers; null is NaN.
    pub(super) fn numbers(&self, name: &str) -> Result<Vec<f64>, SizingTrialError> {
        let arrays = self.cast(name, &DataType::Float64)?;
        let values = |array: &ArrayRef| array.as_primitive::<Float64Type>().iter().collect::<Vec<_>>();
        Ok(arrays.iter().flat_map(values).map(|value| value.unwrap_or(f64::NAN)).collect())
    }

    /// A column of text; null is the empty text.
    pub(super) fn texts(&self, name: &str) -> Result<Vec<String>, SizingTrialError> {
        let mut texts = Vec::new();
        for array in self.cast(name, &DataType::Utf8)? {
            texts.extend(array.as_string::<i32>().iter().map(|text| text.unwrap_or_default().to_owned()));
        }
        Ok(texts)
    }

    fn cast(&self, name: &str, to: &DataType) -> Result<Vec<ArrayRef>, SizingTrialError> {
        let column = |batch: &RecordBatch| {
            let column = batch.column_by_name(name).ok_or_else(|| self.fail(name, &"no such column"))?;
            cast(column, to).map_err(|error| self.fail(name, &error))
        };
        self.batches.iter().map(column).collect()
    }

    fn fail(&self, column: &str, why: &dyn std::fmt::Display) -> SizingTrialError {
        SizingTrialError::Read { path: self.path.clone(), why: format!("column {column}: {why}") }
    }
}
