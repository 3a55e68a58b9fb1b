//! Rows as a Parquet file, a group of rows at a time.

use std::sync::{Mutex, PoisonError};

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use arrow::error::ArrowError;
use parquet::arrow::ArrowWriter;
use parquet::basic::{Compression, ZstdLevel};
use parquet::errors::ParquetError;
use parquet::file::properties::WriterProperties;

use super::{Bytes, plain};

/// A group of rows is written when it holds about so many bytes: all of it stays in memory until
/// then, and the places of all groups until the end.
const GROUP_BYTES: usize = 16 << 20;

/// Writes a Parquet file.
pub(super) struct ParquetEncoder {
    schema: SchemaRef,
    /// Never waited for: an answer is shared between threads, which the writer alone could not be.
    writer: Mutex<ArrowWriter<Bytes>>,
}

impl ParquetEncoder {
    /// Begins a file with these columns.
    pub fn new(schema: SchemaRef, out: Bytes) -> Result<Self, ArrowError> {
        let level = ZstdLevel::try_new(1).map_err(failed)?;
        let properties = WriterProperties::builder().set_compression(Compression::ZSTD(level)).build();
        let writer = ArrowWriter::try_new(out, schema.clone(), Some(properties)).map_err(failed)?;
        Ok(Self { schema, writer: Mutex::new(writer) })
    }

    pub fn write(&mut self, batch: &RecordBatch) -> Result<(), ArrowError> {
        let rows = plain(batch, &self.schema)?;
        let writer = self.writer.get_mut().unwrap_or_else(PoisonError::into_inner);
        writer.write(&rows).map_err(failed)?;
        match writer.memory_size() > GROUP_BYTES {
            true => writer.flush().map_err(failed),
            false => Ok(()),
        }
    }

    /// Writes the last group and the places of all.
    pub fn finish(self) -> Result<(), ArrowError> {
        let writer = self.writer.into_inner().unwrap_or_else(PoisonError::into_inner);
        writer.close().map(|_| ()).map_err(failed)
    }
}

fn failed(error: ParquetError) -> ArrowError {
    ArrowError::from(error)
}
