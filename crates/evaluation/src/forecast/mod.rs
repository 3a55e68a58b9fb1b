//! Protocol of the demand forecasts: series of public traces, origins, scores and rivals, as
//! published with the figures.

mod datasets;
mod demand;
mod metrics;
mod replay;
mod report;
mod rivals;
mod run;

pub use datasets::{CLASSES, Series, by_class, load};
pub use demand::{Claim, hourly};
pub use metrics::{BUCKETS, ByBucket, QUANTILES, Quantiles, Scores, score};
pub(crate) use replay::replay;
pub use report::SeriesFilter;
pub use rivals::{RIVALS, rival};
pub use run::{OURS, Options, Report, Times, run};

/// A trace that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// A file is missing, is no Parquet, or lacks a column.
    #[error(transparent)]
    Read(#[from] crate::ReadError),
    /// The trace lacks a series the protocol names.
    #[error("{set}: no series {name}")]
    NoSeries {
        /// Trace.
        set: &'static str,
        /// Series.
        name: String,
    },
    /// The forecaster rejected a series of the protocol.
    #[error("{name}: {why}")]
    Refused {
        /// Series.
        name: String,
        /// Reason.
        why: tidegate_insight::forecast::ForecastError,
    },
}
