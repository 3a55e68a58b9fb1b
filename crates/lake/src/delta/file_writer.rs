//! Writes data files, batch by batch. A small file is written at its end; a large one in parts
//! while it grows, so that memory holds a row group of it, not the file.

use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use deltalake::Path;
use object_store::buffered::BufWriter;
use parquet::arrow::AsyncArrowWriter;

use super::DeltaStore;
use super::data_files::{DataFile, PartitionValues};
use super::encoding::{FileRows, statistics, writer_properties};
use crate::error::Result;

/// Size of the parts of a large file. Object stores want 5 MiB at least.
const PART_BYTES: usize = 8 << 20;

/// A data file that is being written. It becomes part of the table only with
/// [`DeltaStore::commit`].
pub struct DataFileWriter {
    schema: SchemaRef,
    path: String,
    partition: PartitionValues,
    writer: AsyncArrowWriter<BufWriter>,
}

impl std::fmt::Debug for DataFileWriter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DataFileWriter").field("path", &self.path).finish_non_exhaustive()
    }
}

impl DataFileWriter {
    /// A file of the table, without rows yet, whose name begins with `prefix`.
    pub fn new(
        store: &DeltaStore,
        partition: PartitionValues,
        prefix: &str,
        rows: &FileRows,
    ) -> Result<Self> {
        let folder = partition.iter().map(|(k, v)| format!("{k}={v}")).collect::<Vec<_>>().join("/");
        let path = format!("{folder}/{prefix}{}.parquet", uuid::Uuid::new_v4());
        let (schema, properties) = (store.spec.file_schema(), writer_properties(&store.spec, rows));
        let place = Path::from(path.as_str());
        // The parts of a row group are on disk before those of the next: memory holds two groups.
        let parts = BufWriter::with_capacity(store.table.object_store(), place, PART_BYTES);
        let parts = parts.with_max_concurrency(1);
        let writer = AsyncArrowWriter::try_new(parts, Arc::clone(&schema), Some(properties))?;
        Ok(Self { schema, path, partition, writer })
    }

    /// Adds rows with the table's file schema.
    pub async fn push(&mut self, batch: &RecordBatch) -> Result<()> {
        Ok(self.writer.write(&batch.clone().with_schema(Arc::clone(&self.schema))?).await?)
    }

    /// Bytes so far, about.
    pub fn bytes(&self) -> usize {
        self.writer.bytes_written() + self.writer.in_progress_size()
    }

    /// Writes what is left. Without this call, nothing of the file stays.
    pub async fn complete(mut self) -> Result<DataFile> {
        let metadata = self.writer.finish().await?;
        Ok(DataFile {
            path: self.path,
            partition_values: self.partition.into_iter().map(|(k, v)| (k.to_owned(), Some(v))).collect(),
            size: self.writer.bytes_written() as i64,
            stats: Some(statistics(&metadata, &self.schema)),
        })
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
        let mut file = DataFileWriter::new(self, partition, "", rows)?;
        for batch in batches {
            file.push(&batch?).await?;
        }
        Ok(Some(file.complete().await?))
    }
}
