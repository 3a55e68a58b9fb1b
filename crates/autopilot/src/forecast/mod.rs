//! Demand forecasts. [`Trailing`] answers from a series' own past, [`Published`] from forecasts on
//! the log, [`RecordedForecast`] from a plan's record. [`SelectedForecast`] chooses between the
//! first two by policy.

mod coverage;
mod published;
mod recorded;
mod selected;
mod trailing;

use std::collections::BTreeMap;

use crate::state::{OwnerName, PoolName};

pub use coverage::Coverage;
pub use published::{Calibration, Published, SeriesName, SeriesNames};
pub(crate) use recorded::ppm;
pub use recorded::{ForecastAnswer, RecordedForecast};
pub use selected::SelectedForecast;
pub use tidegate_insight::forecast::{Drift, Reach};
pub use trailing::{Trailing, TrailingConfig};

/// Demand of an owner for a pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Series<'a> {
    /// Owner.
    pub owner: &'a str,
    /// Pool.
    pub pool: &'a str,
}

/// Forecast of demand in GPUs. `None`: unknown, so nothing is lent on it.
pub trait DemandForecast {
    /// Upper bound on demand over the next `within_ms` that holds with probability `level`, GPUs.
    fn highest_gpus(&self, of: Series<'_>, level: f64, within_ms: i64) -> Option<f64>;

    /// Quantile `level` of demand at a random time within the next `within_ms`, GPUs.
    fn typical_gpus(&self, of: Series<'_>, level: f64, within_ms: i64) -> Option<f64>;

    /// Share of the bounds issued in the last weeks that held.
    fn coverage(&self, of: Series<'_>) -> Option<f64>;

    /// Time of the newest known demand.
    fn as_of_us(&self, of: Series<'_>) -> Option<i64>;
}

/// A value for each series.
#[derive(Debug, Clone)]
struct BySeries<T>(BTreeMap<OwnerName, BTreeMap<PoolName, T>>);

impl<T> BySeries<T> {
    fn new() -> Self {
        Self(BTreeMap::new())
    }

    fn get(&self, of: Series<'_>) -> Option<&T> {
        self.0.get(of.owner)?.get(of.pool)
    }

    fn entry(&mut self, of: Series<'_>, new: impl FnOnce() -> T) -> &mut T {
        let pools = self.0.entry(of.owner.to_owned()).or_default();
        pools.entry(of.pool.to_owned()).or_insert_with(new)
    }
}

/// Quantile `level`, linear between order statistics (type 7). `None`: no values. Reorders
/// `values`.
fn quantile(values: &mut [f64], level: f64) -> Option<f64> {
    let last = values.len().checked_sub(1)?;
    let place = level.clamp(0.0, 1.0) * last as f64;
    // Not negative and at most `last`.
    let low = place as usize;
    let (_, at, above) = values.select_nth_unstable_by(low, f64::total_cmp);
    let next = above.iter().copied().min_by(f64::total_cmp).unwrap_or(*at);
    Some(*at + (place - low as f64) * (next - *at))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_linear_between_order_statistics() {
        let mut values = [40.0, 10.0, 30.0, 20.0];
        assert_eq!(quantile(&mut values, 0.5), Some(25.0));
        assert_eq!(quantile(&mut values, 0.9), Some(37.0));
        assert_eq!(quantile(&mut values, 2.0), Some(40.0));
        assert_eq!(quantile(&mut [], 0.5), None);
    }
}
