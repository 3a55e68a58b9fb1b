//! What demand will be: quantiles per series and horizon, from the series, the job table and
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

/// Why there is no forecast.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ForecastError {
    /// Settings that make no sense.
    #[error("step must divide a day at least four times; horizon and stride must not be zero")]
    Config,
    /// A load that is no load: negative, no number, or a promise outside its range.
    #[error("load, capacity and promise must be positive numbers")]
    Load,
    /// Too little is known of the series for an honest answer.
    #[error("{known} steps known, {needed} needed")]
    TooShort {
        /// Steps observed.
        known: usize,
        /// Steps needed.
        needed: usize,
    },
}
