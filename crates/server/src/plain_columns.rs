//! Columns as readers of Arrow outside of DataFusion know them.

use std::sync::Arc;

use arrow::datatypes::{DataType, Field, Schema, SchemaRef};

/// Strings as plain strings: many readers of Arrow do not know views yet.
pub(crate) fn without_views(schema: &SchemaRef) -> SchemaRef {
    let plain = |field: &Arc<Field>| {
        let data_type = match field.data_type() {
            DataType::Utf8View => DataType::Utf8,
            DataType::BinaryView => DataType::Binary,
            other => other.clone(),
        };
        Arc::new(field.as_ref().clone().with_data_type(data_type))
    };
    Arc::new(Schema::new(schema.fields().iter().map(plain).collect::<Vec<_>>()))
}
