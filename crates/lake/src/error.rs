//! Errors of the lake.

use datafusion::error::DataFusionError;

/// Errors of reading, computing and committing lake tables.
#[derive(Debug, thiserror::Error)]
pub enum LakeError {
    /// A Delta table could not be read or written.
    #[error("table {table} at {place}")]
    Delta {
        /// Name of the table.
        table: String,
        /// URL of the table.
        place: String,
        /// What failed.
        source: Box<deltalake::DeltaTableError>,
    },
    /// A query failed.
    #[error("query failed")]
    Query(#[from] DataFusionError),
    /// A computation on record batches failed.
    #[error("arrow computation failed")]
    Arrow(#[from] arrow::error::ArrowError),
    /// A data file could not be written or read.
    #[error("write Parquet file")]
    Parquet(#[from] parquet::errors::ParquetError),
    /// The object store failed.
    #[error("object store")]
    Store(#[from] deltalake::ObjectStoreError),
    /// The event log failed.
    #[error("event log")]
    Log(#[from] tidegate_log::LogError),
    /// A pipeline file breaks a rule.
    #[error("pipeline {file}: {message}")]
    Pipeline {
        /// Path of the file, with the line where one is known.
        file: String,
        /// What is wrong, and what to write instead.
        message: String,
    },
    /// Another process committed to what this one relies on. Nothing was committed.
    #[error(
        "another process wrote to table {table}{} after this one read it; nothing was committed, restart to continue from the committed state",
        .partition.map_or_else(String::new, |partition| format!(" for log partition {partition}"))
    )]
    Fenced {
        /// Name of the table.
        table: String,
        /// Log partition that was claimed by another process, if it is one.
        partition: Option<u32>,
    },
    /// A file could not be read or written: what was tried, and why it failed.
    #[error("{0}")]
    Io(String, #[source] std::io::Error),
    /// The request is refused, for the reason given.
    #[error("{0}")]
    Refused(String),
}

/// Result of the lake's functions.
pub type Result<T, E = LakeError> = std::result::Result<T, E>;
