//! Checks on real traces: a folder with the files of the public data, read as they are.
//!
//! `bytedance_straggler_ops.parquet`: operations of three training jobs (ByteDance-Seed/StragglerAnalysis, Apache-2.0).
//! `alibaba_pai_minibatch_time.parquet`: mini-batch times of two jobs (cluster-trace-gpu-v2020).

mod bytedance;
mod columns;
mod pai;

pub use bytedance::{Traced, bytedance};
pub use pai::{Watched, pai};

use thiserror::Error;

/// Why a trace could not be read.
#[derive(Debug, Error)]
pub enum ReadError {
    /// The file cannot be opened.
    #[error("cannot open {path}")]
    Open {
        /// Which.
        path: String,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// It is not Parquet, or damaged.
    #[error("cannot read {path}")]
    Read {
        /// Which.
        path: String,
        /// Why.
        #[source]
        source: parquet::errors::ParquetError,
    },
    /// A batch cannot be decoded.
    #[error("cannot decode {path}")]
    Decode {
        /// Which.
        path: String,
        /// Why.
        #[source]
        source: arrow::error::ArrowError,
    },
    /// A column is missing or of another type.
    #[error("no column {column} of the type wanted in {path}")]
    Column {
        /// Which file.
        path: String,
        /// Which column.
        column: &'static str,
    },
}

#[cfg(test)]
mod tests;
