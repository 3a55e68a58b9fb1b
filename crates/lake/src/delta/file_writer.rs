//! Writes data files, batch by batch.

use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use deltalake::Path;
use object_store::ObjectStoreExt;
use parquet::arrow::ArrowWriter;

use super::DeltaStore;
use super::data_files::{DataFile, PartitionValues};
use super::encoding::{FileRows, statistics, writer_properties};
use crate::error::Result;
use crate::table::TableSpec;

/// A data file that is being written, in memory.
pub struct DataFileWriter {
    schema: SchemaRef,
    partition: PartitionValues,
    prefix: &'static str,
    writer: ArrowWriter<Vec<u8>>,
}

impl std::fmt::Debug for DataFileWriter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DataFileWriter").field("partition", &self.partition).finish_non_exhaustive()
    }
}

impl DataFileWriter {
    /// A file of the table, without rows yet.
    pub fn new(spec: &TableSpec, partition: PartitionValues, rows: &FileRows) -> Result<Self> {
        Self::named(spec, partition, "", rows)
    }

    /// As [`Self::new`], with a name that begins so.
    pub fn named(
        spec: &TableSpec,
        partition: PartitionValues,
        prefix: &'static str,
        rows: &FileRows,
    ) -> Result<Self> {
        let schema = spec.file_schema();
        let properties = writer_properties(spec, rows);
        let writer = ArrowWriter::try_new(Vec::new(), Arc::clone(&schema), Some(properties))?;
        Ok(Self { schema, partition, prefix, writer })
    }

    /// Adds rows with the table's file schema.
    pub fn push(&mut self, batch: &RecordBatch) -> Result<()> {
        Ok(self.writer.write(&batch.clone().with_schema(Arc::clone(&self.schema))?)?)
    }

    /// Bytes so far, about.
    pub fn bytes(&self) -> usize {
        self.writer.bytes_written() + self.writer.in_progress_size()
    }

    /// The file, and its contents.
    pub(super) fn finish(mut self) -> Result<(DataFile, Vec<u8>)> {
        let metadata = self.writer.finish()?;
        let bytes = std::mem::take(self.writer.inner_mut());
        let folder = self.partition.iter().map(|(k, v)| format!("{k}={v}")).collect::<Vec<_>>().join("/");
        let file = DataFile {
            path: format!("{folder}/{}{}.parquet", self.prefix, uuid::Uuid::new_v4()),
            partition_values: self.partition.into_iter().map(|(k, v)| (k.to_owned(), Some(v))).collect(),
            size: bytes.len() as i64,
            stats: Some(statistics(&metadata, &self.schema)),
        };
        Ok((file, bytes))
    }
}

impl DeltaStore {
    /// Writes one data file with these partition values. It becomes part of the table only with
    /// [`Self::commit`].
    ///
    /// `batches` have the table's file schema. Returns `None` if they hold no row.
    pub async fn write(
        &self,
        partition: PartitionValues,
        batches: &[RecordBatch],
    ) -> Result<Option<DataFile>> {
        let rows = FileRows::of(&self.spec.file_schema(), batches);
        self.write_each(partition, &rows, batches.iter().cloned().map(Ok)).await
    }

    /// As [`Self::write`], of batches that are made one at a time.
    pub async fn write_each(
        &self,
        partition: PartitionValues,
        rows: &FileRows,
        batches: impl Iterator<Item = Result<RecordBatch>>,
    ) -> Result<Option<DataFile>> {
        let mut batches =
            batches.filter(|batch| batch.as_ref().map_or(true, |b| b.num_rows() > 0)).peekable();
        if batches.peek().is_none() {
            return Ok(None);
        }
        let mut file = DataFileWriter::new(&self.spec, partition, rows)?;
        for batch in batches {
            file.push(&batch?)?;
        }
        Ok(Some(self.put(file).await?))
    }

    /// Completes a file. It becomes part of the table only with [`Self::commit`].
    pub async fn put(&self, file: DataFileWriter) -> Result<DataFile> {
        let (file, bytes) = file.finish()?;
        self.table.object_store().put(&Path::from(file.path.as_str()), bytes.into()).await?;
        Ok(file)
    }
}
