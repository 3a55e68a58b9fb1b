//! Protocols of sizing and advice: regret of commitments, and errors of scaling curves beyond the
//! fitted sizes.

mod forecasts;
mod profiles;
mod regret;
mod scaling;

pub use forecasts::demand_cases;
pub use profiles::{Profile, profiles};
pub use regret::{Case, OutsideExpert, Policy, RegretRow, RegretTable, TERMS, regret_table};
pub use scaling::{ScalingRow, scaling_errors};

/// An evaluation that cannot run.
#[derive(Debug, thiserror::Error)]
pub enum SizingEvaluationError {
    /// A file is missing, is no Parquet, or lacks a column.
    #[error(transparent)]
    Read(#[from] crate::ReadError),
    /// A series ends before its last decision's term.
    #[error("{name} has {hours} hours, its decisions need {needed}: give the whole trace")]
    Short {
        /// Series.
        name: String,
        /// Its hours.
        hours: usize,
        /// Hours needed.
        needed: usize,
    },
    /// The series cannot be read.
    #[error(transparent)]
    Trace(#[from] crate::forecast::TraceError),
    /// The forecaster rejected a series.
    #[error("the forecaster refused a series")]
    Forecast(#[from] tidegate_insight::forecast::ForecastError),
    /// Sizing rejected its input.
    #[error("sizing refused a series")]
    Sizing(#[from] tidegate_insight::sizing::SizingError),
    /// Advice rejected its input.
    #[error("advice refused a profile")]
    Advice(#[from] tidegate_insight::advice::AdviceError),
}
