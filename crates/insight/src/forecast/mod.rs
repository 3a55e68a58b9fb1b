//! Demand forecasts: quantiles per series and horizon, from the series itself, the job table and
//! clients.

mod coverage;
mod distribution;
mod forecaster;
mod history;
mod jobs;
mod ridge;
mod score;
mod serving;
mod survival;
mod trailing;

pub use coverage::{BoundCheck, Coverage, CoverageMonitor, Drift, Reach};
pub use distribution::{Forecast, LEVELS};
pub use forecaster::{Config, Forecaster};
pub use jobs::{JobEvent, JobTable, SIZE_CLASSES, size_class};
pub use score::{Score, Summary, column, mean_probability_below};
pub use serving::{Clients, erlang_c, gpus_by_capacity, servers_for};

/// Reason why there is no forecast.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ForecastError {
    /// Invalid settings.
    #[error("step must divide a day at least four times; horizon and stride must not be zero")]
    Config,
    /// Invalid load: negative, not a number, or a promise out of range.
    #[error("load, capacity and promise must be positive numbers")]
    Load,
    /// Too few steps are known.
    #[error("{known} steps known, {needed} needed")]
    TooShort {
        /// Steps observed.
        known: usize,
        /// Steps needed.
        needed: usize,
    },
}
