//! Data files of a table: listing, writing and reading.

use std::collections::HashMap;
use std::sync::Arc;

use arrow::array::{AsArray, BooleanArray, RecordBatch};
use arrow::compute::filter_record_batch;
use arrow::datatypes::Int64Type;
use datafusion::catalog::TableProvider;
use deltalake::Path;
use deltalake::kernel::{Add, Remove};
use hashbrown::HashSet;
use object_store::{GetResultPayload, ObjectStoreExt};
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::{ParquetRecordBatchReader, ParquetRecordBatchReaderBuilder, RowSelection};
use parquet::file::reader::ChunkReader;

use super::DeltaStore;
use crate::batch::conform;
use crate::error::Result;
use crate::table::KEY;

/// Delta partition values of a file, in the order of the table's partition columns.
pub type PartitionValues = Vec<(&'static str, String)>;

/// A data file of a table: path, partition values and statistics.
#[derive(Debug, Clone)]
pub struct DataFile {
    /// Path below the table's folder.
    pub path: String,
    /// Value of each Delta partition column.
    pub partition_values: HashMap<String, Option<String>>,
    /// Size in bytes.
    pub size: i64,
    /// Statistics in Delta's JSON form: `numRecords`, `minValues`, `maxValues`.
    pub stats: Option<String>,
}

impl DataFile {
    /// Value of a partition column.
    pub fn partition_value(&self, column: &str) -> Option<&str> {
        self.partition_values.get(column)?.as_deref()
    }

    /// Number of rows, if the statistics have it.
    pub fn rows(&self) -> Option<u64> {
        self.parsed_stats()?.get("numRecords")?.as_u64()
    }

    /// Largest value of a time column, as RFC 3339 text.
    pub fn latest(&self, column: &str) -> Option<String> {
        Some(self.parsed_stats()?.get("maxValues")?.get(column)?.as_str()?.to_owned())
    }

    /// Smallest value of a time column, µs.
    pub fn earliest(&self, column: &str) -> Option<i64> {
        self.time_range(column).0
    }

    /// Smallest and largest value of a time column, µs; `None` where the statistics lack it.
    pub fn time_range(&self, column: &str) -> (Option<i64>, Option<i64>) {
        let Some(stats) = self.parsed_stats() else { return (None, None) };
        let bound = |name: &str| {
            let text = stats.get(name)?.get(column)?.as_str()?;
            Some(chrono::DateTime::parse_from_rfc3339(text).ok()?.timestamp_micros())
        };
        (bound("minValues"), bound("maxValues"))
    }

    /// Largest value of an integer column, if the statistics have it.
    pub fn largest(&self, column: &str) -> Option<i64> {
        self.parsed_stats()?.get("maxValues")?.get(column)?.as_i64()
    }

    fn parsed_stats(&self) -> Option<serde_json::Value> {
        serde_json::from_str(self.stats.as_deref()?).ok()
    }
}

/// What is read of a data file.
enum Part<'a> {
    All,
    Columns(&'a [&'a str]),
    Rows(RowSelection),
}

impl DeltaStore {
    /// The files of the current version.
    pub fn files(&self) -> Result<Vec<DataFile>> {
        let snapshot = self.table.snapshot().map_err(|e| self.error(e))?;
        let log = snapshot.log_data();
        let files = log.iter().map(|file| DataFile {
            path: file.path().into_owned(),
            partition_values: file.partition_values_map(),
            size: file.size(),
            stats: file.stats(),
        });
        Ok(files.collect())
    }

    /// The rows of a data file in order, in batches of `rows` rows with the table's file schema. A
    /// file on a local disk is read as its rows are asked for.
    pub async fn rows_of(
        &self,
        file: &DataFile,
        rows: usize,
    ) -> Result<impl Iterator<Item = Result<RecordBatch>> + Send + use<>> {
        let schema = self.spec.file_schema();
        let reader = self.reader(file, Part::All, rows).await?;
        Ok(reader.map(move |batch| Ok(conform(&batch?, &schema)?)))
    }

    /// Like [`Self::rows_of`], but skips rows. `wanted` says for each row of the file, in order,
    /// whether to return it; it must have no nulls. Skipped rows take no memory.
    pub async fn wanted_rows_of(
        &self,
        file: &DataFile,
        wanted: &[BooleanArray],
        rows: usize,
    ) -> Result<impl Iterator<Item = Result<RecordBatch>> + Send + use<>> {
        let schema = self.spec.file_schema();
        let reader = self.reader(file, Part::Rows(RowSelection::from_filters(wanted)), rows).await?;
        Ok(reader.map(move |batch| Ok(conform(&batch?, &schema)?)))
    }

    /// A part of a data file, in batches of `rows` rows.
    async fn reader(&self, file: &DataFile, part: Part<'_>, rows: usize) -> Result<ParquetRecordBatchReader> {
        fn open<T: ChunkReader + 'static>(
            input: T,
            part: Part<'_>,
            rows: usize,
        ) -> Result<ParquetRecordBatchReader> {
            let builder = ParquetRecordBatchReaderBuilder::try_new(input)?.with_batch_size(rows);
            let builder = match part {
                Part::All => builder,
                Part::Rows(wanted) => builder.with_row_selection(wanted),
                Part::Columns(names) => {
                    let wanted = ProjectionMask::columns(builder.parquet_schema(), names.iter().copied());
                    builder.with_projection(wanted)
                }
            };
            Ok(builder.build()?)
        }
        let got = self.table.object_store().get(&Path::from(file.path.as_str())).await?;
        match got.payload {
            GetResultPayload::File(file, _) => open(file, part, rows),
            GetResultPayload::Stream(_) => open(got.bytes().await?, part, rows),
        }
    }

    /// Reads a whole data file, with the table's file schema.
    pub async fn read_file(&self, file: &DataFile) -> Result<Vec<RecordBatch>> {
        let bytes = self.table.object_store().get(&Path::from(file.path.as_str())).await?.bytes().await?;
        let reader = ParquetRecordBatchReaderBuilder::try_new(bytes)?.with_batch_size(64 * 1024).build()?;
        let schema = self.spec.file_schema();
        reader.map(|batch| Ok(conform(&batch?, &schema)?)).collect()
    }

    /// Reads some columns of a data file, in the table's order.
    pub async fn read_columns(&self, file: &DataFile, columns: &[&str]) -> Result<Vec<RecordBatch>> {
        Ok(self.reader(file, Part::Columns(columns), 8 * 1024).await?.collect::<Result<_, _>>()?)
    }

    /// The rows of a data file without those of `keys`; `None` if it holds none of them.
    pub async fn without_keys(
        &self,
        file: &DataFile,
        keys: &HashSet<i64>,
    ) -> Result<Option<Vec<RecordBatch>>> {
        let bytes = self.table.object_store().get(&Path::from(file.path.as_str())).await?.bytes().await?;
        let builder = ParquetRecordBatchReaderBuilder::try_new(bytes)?;
        let only_key = ProjectionMask::columns(builder.parquet_schema(), [KEY]);
        let mut holds = false;
        for batch in builder.with_projection(only_key).build()? {
            holds |=
                batch?.column(0).as_primitive::<Int64Type>().iter().flatten().any(|key| keys.contains(&key));
        }
        if !holds {
            return Ok(None);
        }
        let keep = |batch: &RecordBatch| -> Result<RecordBatch> {
            let column =
                batch.column_by_name(KEY).expect("keyed tables have keys").as_primitive::<Int64Type>();
            let keep: BooleanArray =
                column.iter().map(|key| Some(key.is_none_or(|key| !keys.contains(&key)))).collect();
            Ok(filter_record_batch(batch, &keep)?)
        };
        Ok(Some(self.read_file(file).await?.iter().map(keep).collect::<Result<_>>()?))
    }

    /// The committed rows as a DataFusion table, with all bookkeeping columns.
    pub async fn provider(&self) -> Result<Arc<dyn TableProvider>> {
        let snapshot = self.table.snapshot().map_err(|e| self.error(e))?.snapshot().clone();
        Ok(self.table.table_provider().with_eager_snapshot(snapshot).await?)
    }
}

pub(super) fn remove_action(file: DataFile, now_ms: i64) -> Remove {
    Remove {
        path: file.path,
        data_change: true,
        deletion_timestamp: Some(now_ms),
        extended_file_metadata: Some(true),
        partition_values: Some(file.partition_values),
        size: Some(file.size),
        tags: None,
        deletion_vector: None,
        base_row_id: None,
        default_row_commit_version: None,
    }
}

pub(super) fn add_action(file: DataFile, now_ms: i64) -> Add {
    Add {
        path: file.path,
        partition_values: file.partition_values,
        size: file.size,
        modification_time: now_ms,
        data_change: true,
        stats: file.stats,
        tags: None,
        deletion_vector: None,
        base_row_id: None,
        default_row_commit_version: None,
        clustering_provider: None,
    }
}
