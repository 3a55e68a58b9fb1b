//! Why the lake refused or failed.

use datafusion::error::DataFusionError;

/// Errors of reading, computing and committing lake tables.
#[derive(Debug, thiserror::Error)]
pub enum LakeError {
    #[error("table {table} at {place}")]
    Delta { table: String, place: String, source: Box<deltalake::DeltaTableError> },
    #[error("query failed")]
    Query(#[from] DataFusionError),
    #[error("arrow computation failed")]
    Arrow(#[from] arrow::error::ArrowError),
    #[error("write Parquet file")]
    Parquet(#[from] parquet::errors::ParquetError),
    #[error("object store")]
    Store(#[from] deltalake::ObjectStoreError),
    #[error("event log")]
    Log(#[from] tidegate_log::LogError),
    #[error("pipeline {file}: {message}")]
    Pipeline { file: String, message: String },
    #[error(
        "another process wrote to table {table}{} since this one read it; nothing of this commit is in the table, start again to go on from what is",
        .partition.map_or_else(String::new, |partition| format!(" for log partition {partition}"))
    )]
    Fenced { table: String, partition: Option<u32> },
    #[error("{0}")]
    Io(String, #[source] std::io::Error),
    #[error("{0}")]
    Refused(String),
}

pub type Result<T, E = LakeError> = std::result::Result<T, E>;
