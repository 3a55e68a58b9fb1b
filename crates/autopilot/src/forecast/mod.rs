//! What owners will need: one question, asked of whoever can answer it. [`Trailing`] answers from
//! the past of the series alone, [`Published`] from what the forecaster of `tidegate_insight` said
//! on the log. [`Chosen`] asks one of the first and the last, as
//! the policy says.

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

/// Whose demand for which pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Series<'a> {
    /// Whose.
    pub owner: &'a str,
    /// For which pool.
    pub pool: &'a str,
}

/// Forecasts of demand in GPUs. `None`: it does not know, and nothing is lent on it.
pub trait DemandForecast {
    /// A bound that demand stays below from now until `within_ms` from now with probability
    /// `level`, GPUs.
    fn highest_gpus(&self, of: Series<'_>, level: f64, within_ms: i64) -> Option<f64>;

    /// Quantile `level` of demand at a time drawn from now until `within_ms` from now, GPUs.
    fn typical_gpus(&self, of: Series<'_>, level: f64, within_ms: i64) -> Option<f64>;

    /// Share of the bounds told in the last weeks that demand stayed below.
    fn coverage(&self, of: Series<'_>) -> Option<f64>;

    /// Time of the newest demand it knows.
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

/// Quantile `level` of values, linear between order statistics (type 7); `None` of none. Reorders
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
