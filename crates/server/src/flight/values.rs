//! Values of parameters and descriptions of queries, as Flight has them. Both are read and made
//! where the query runs.

use std::sync::Arc;

use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use arrow::error::ArrowError;
use arrow::ipc::reader::StreamReader;
use arrow::ipc::writer::StreamWriter;
use datafusion::common::{ParamValues, ScalarValue};

use crate::error::QueryError;
use crate::plain_columns::without_views;
use crate::question::Description;

/// Values for parameters of these types: a stream of one row.
///
/// # Errors
/// It is none, or a value is none of its parameter's type.
pub(crate) fn values(stream: &[u8], types: &[Option<DataType>]) -> Result<ParamValues, QueryError> {
    let wrong = |error: ArrowError| QueryError::Invalid(format!("values of parameters: {error}"));
    let mut rows = StreamReader::try_new(stream, None).map_err(wrong)?;
    let row = rows.next().transpose().map_err(wrong)?;
    let is_more = rows.next().transpose().map_err(wrong)?.is_some();
    let row = row.filter(|row| row.num_rows() == 1 && !is_more).ok_or_else(|| {
        QueryError::Invalid("values of parameters come as one row; ask once for each".into())
    })?;
    if row.num_columns() != types.len() {
        let (wanted, given) = (types.len(), row.num_columns());
        return Err(QueryError::Invalid(format!("it has {wanted} parameters, and {given} values were sent")));
    }
    let value = |(column, of): (&arrow::array::ArrayRef, &Option<DataType>)| {
        let value = ScalarValue::try_from_array(column, 0)?;
        of.as_ref().map_or(Ok(value.clone()), |of| value.cast_to(of))
    };
    let values: Result<Vec<ScalarValue>, _> = row.columns().iter().zip(types).map(value).collect();
    let values = values.map_err(|error| QueryError::from_engine(&error, std::iter::empty()))?;
    Ok(ParamValues::from(values))
}

/// Schemas of parameters and columns, as two streams without rows.
///
/// # Errors
/// A schema cannot be written.
pub(crate) fn described(of: &Description) -> Result<Vec<u8>, QueryError> {
    let schemas = [with_text_for_any(&of.parameters), without_views(&of.columns)];
    let mut streams = Vec::new();
    for schema in schemas {
        let stream = StreamWriter::try_new(Vec::new(), &schema).and_then(StreamWriter::into_inner);
        streams.extend(stream.map_err(|error| QueryError::Internal(error.to_string()))?);
    }
    Ok(streams)
}

/// A parameter that any type fits is text.
fn with_text_for_any(parameters: &SchemaRef) -> SchemaRef {
    let fields = parameters.fields().iter().map(|field| match field.data_type() {
        DataType::Null => Arc::new(Field::new(field.name(), DataType::Utf8, true)),
        _ => Arc::clone(field),
    });
    without_views(&Arc::new(Schema::new(fields.collect::<Vec<_>>())))
}
