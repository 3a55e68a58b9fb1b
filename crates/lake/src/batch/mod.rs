//! Small operations on record batches that several modules share.

pub mod sort;

use std::sync::{Arc, LazyLock};

use arrow::array::{Array, ArrayRef, AsArray, RecordBatch, new_null_array};
use arrow::compute::{cast, concat_batches};
use arrow::datatypes::{DataType, SchemaRef};
use arrow::error::ArrowError;

/// Returns a batch with exactly the columns of `schema`: picked by name, cast where the type
/// differs, NULL where the column is missing.
pub fn conform(batch: &RecordBatch, schema: &SchemaRef) -> Result<RecordBatch, ArrowError> {
    let columns = schema
        .fields()
        .iter()
        .map(|field| match batch.column_by_name(field.name()) {
            Some(column) if column.data_type() == field.data_type() => Ok(Arc::clone(column)),
            Some(column) => cast(column, field.data_type()),
            None => Ok(new_null_array(field.data_type(), batch.num_rows())),
        })
        .collect::<Result<Vec<ArrayRef>, _>>()?;
    RecordBatch::try_new(Arc::clone(schema), columns)
}

/// Concatenates batches, each brought to `schema` first.
pub fn concat(schema: &SchemaRef, batches: &[RecordBatch]) -> Result<RecordBatch, ArrowError> {
    let conformed = batches.iter().map(|b| conform(b, schema)).collect::<Result<Vec<_>, _>>()?;
    concat_batches(schema, &conformed)
}

/// Rows of [`NULL_INTEGERS`].
const SHARED_NULLS: usize = 16 * 1024;

static NULL_INTEGERS: LazyLock<ArrayRef> = LazyLock::new(|| new_null_array(&DataType::Int64, SHARED_NULLS));

/// A column of integers of which none is known. Batches of samples have dozens, for metrics that
/// nobody collects, so short ones share their memory.
pub fn null_integers(rows: usize) -> ArrayRef {
    match rows <= SHARED_NULLS {
        true => NULL_INTEGERS.slice(0, rows),
        false => new_null_array(&DataType::Int64, rows),
    }
}

/// Copies the rows into buffers of their own. A slice or a filtered text view otherwise keeps the
/// whole original in memory.
pub fn compact(batch: &RecordBatch) -> Result<RecordBatch, ArrowError> {
    let columns = batch.columns().iter().map(|column| match column.as_string_view_opt() {
        Some(view) => Arc::new(view.gc()) as ArrayRef,
        None => Arc::clone(column),
    });
    RecordBatch::try_new(batch.schema(), columns.collect())
}
