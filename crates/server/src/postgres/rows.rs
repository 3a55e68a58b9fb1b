//! Rows and descriptions of them as Postgres' messages. Made where the query runs: the process that
//! holds the connection passes them on.

use std::io::Write;
use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::compute::cast;
use arrow::datatypes::{DataType, Field, Schema};
use arrow::error::ArrowError;
use arrow_pg::datatypes::arrow_schema_to_pg_fields;
use arrow_pg::row_encoder::RowEncoder;
use bytes::BytesMut;
use pgwire::api::Type;
use pgwire::api::portal::Format;
use pgwire::api::results::FieldInfo;
use pgwire::error::PgWireError;
use pgwire::messages::Message;
use pgwire::messages::data::{FieldDescription, NoData, ParameterDescription, RowDescription};

use super::parameters::format_of;
use crate::error::QueryError;
use crate::question::Description;

/// Writes rows of these columns.
pub(crate) struct PostgresEncoder<W> {
    fields: Arc<Vec<FieldInfo>>,
    out: W,
}

impl<W: Write> PostgresEncoder<W> {
    /// Describes the columns. 0 for text and 1 for binary: one for each column, or one or none for
    /// all.
    ///
    /// # Errors
    /// A column is of a type that Postgres does not have.
    pub fn new(schema: &Schema, formats: &[i16], mut out: W) -> Result<Self, ArrowError> {
        let format = format_of(formats, schema.fields().len());
        let format = format.map_err(|error| ArrowError::InvalidArgumentError(error.to_string()))?;
        let fields = fields(schema, &format).map_err(of_arrow)?;
        let mut described = BytesMut::new();
        row_description(&fields).encode(&mut described).map_err(of_arrow)?;
        out.write_all(&described)?;
        Ok(Self { fields: Arc::new(fields), out })
    }

    pub fn write(&mut self, batch: &RecordBatch) -> Result<(), ArrowError> {
        let mut rows = RowEncoder::new(widened(batch)?, Arc::clone(&self.fields));
        let mut message = BytesMut::new();
        while let Some(row) = rows.next_row() {
            row.and_then(|row| row.encode(&mut message)).map_err(of_arrow)?;
            self.out.write_all(&message)?;
            message.clear();
        }
        Ok(())
    }
}

/// Numbers of one byte as such of two: Postgres has none, and the encoder would write one byte of
/// the two that it has announced.
fn widened(batch: &RecordBatch) -> Result<RecordBatch, ArrowError> {
    let wide = |field: &Arc<Field>| {
        let wide = match field.data_type() {
            DataType::Int8 => DataType::Int16,
            DataType::List(item) if item.data_type() == &DataType::Int8 => {
                DataType::List(Arc::new(item.as_ref().clone().with_data_type(DataType::Int16)))
            }
            _ => return Arc::clone(field),
        };
        Arc::new(field.as_ref().clone().with_data_type(wide))
    };
    let schema = batch.schema();
    let wide = Schema::new(schema.fields().iter().map(wide).collect::<Vec<_>>());
    if wide.fields() == schema.fields() {
        return Ok(batch.clone());
    }
    let columns = batch.columns().iter().zip(wide.fields());
    let columns: Result<Vec<_>, _> = columns.map(|(column, field)| cast(column, field.data_type())).collect();
    RecordBatch::try_new(Arc::new(wide), columns?)
}

/// What a query takes and gives, as the messages `ParameterDescription` and `RowDescription`, or
/// `NoData`.
///
/// # Errors
/// A column is of a type that Postgres does not have.
pub(crate) fn described(of: &Description, types: &[u32]) -> Result<Vec<u8>, QueryError> {
    let failed = |error: PgWireError| encode_error(&error.to_string());
    let parameter = |(at, field): (usize, &Arc<Field>)| {
        let given = types.get(at).and_then(|oid| Type::from_oid(*oid)).filter(|of| *of != Type::UNKNOWN);
        given.map_or_else(|| type_of_parameter(field), Ok).map(|of| of.oid())
    };
    let parameters: Result<Vec<u32>, PgWireError> =
        of.parameters.fields().iter().enumerate().map(parameter).collect();
    let mut message = BytesMut::new();
    ParameterDescription::new(parameters.map_err(failed)?).encode(&mut message).map_err(failed)?;
    let columns = fields(&of.columns, &Format::UnifiedText).map_err(failed)?;
    match columns.is_empty() {
        true => NoData::new().encode(&mut message),
        false => row_description(&columns).encode(&mut message),
    }
    .map_err(failed)?;
    Ok(message.to_vec())
}

/// A parameter that any type fits is text.
fn type_of_parameter(field: &Arc<Field>) -> Result<Type, PgWireError> {
    let of = arrow_pg::datatypes::field_into_pg_type(field)?;
    Ok(if of == Type::UNKNOWN { Type::TEXT } else { of })
}

fn fields(schema: &Schema, format: &Format) -> Result<Vec<FieldInfo>, PgWireError> {
    arrow_schema_to_pg_fields(schema, format, None)
}

fn row_description(fields: &[FieldInfo]) -> RowDescription {
    let describe = |field: &FieldInfo| {
        let of = field.datatype();
        FieldDescription::new(
            // A name ends at the first NUL.
            field.name().replace('\0', ""),
            0,
            0,
            of.oid(),
            size(of),
            -1,
            field.format().value(),
        )
    };
    RowDescription::new(fields.iter().map(describe).collect())
}

/// Bytes of a value; -1 where they vary.
fn size(of: &Type) -> i16 {
    match *of {
        Type::BOOL | Type::CHAR => 1,
        Type::INT2 => 2,
        Type::INT4 | Type::FLOAT4 | Type::DATE | Type::OID => 4,
        Type::INT8 | Type::FLOAT8 | Type::TIMESTAMP | Type::TIMESTAMPTZ | Type::TIME => 8,
        Type::INTERVAL => 16,
        _ => -1,
    }
}

fn of_arrow(error: PgWireError) -> ArrowError {
    ArrowError::InvalidArgumentError(error.to_string())
}

fn encode_error(message: &str) -> QueryError {
    QueryError::Encode { format: "postgres".into(), message: message.into() }
}
