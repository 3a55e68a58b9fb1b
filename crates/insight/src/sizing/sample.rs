//! Demand as a sample of equal weights: past hours, hours of scenario paths, or quantiles of
//! forecast hours.

use super::{Prices, SizingError, error};

/// Points per forecast hour: its quantiles at (k + 1/2) / 100.
const POINTS: usize = 100;

/// Quantile forecast by hour. Costs add up over hours, so their joint distribution is not needed.
#[derive(Debug, Clone, Copy)]
pub struct Marginals<'a> {
    /// Levels, rising, inside (0, 1).
    pub levels: &'a [f64],
    /// Quantiles in GPUs, hour after hour: `hours x levels`, rising within an hour.
    pub quantiles: &'a [f64],
}

/// Sorted demand, GPUs, with prefix sums that make the cost of any commitment a look-up.
#[derive(Debug, Clone, PartialEq)]
pub struct Sample {
    sorted: Vec<f64>,
    /// `sums[k]`: sum of the k smallest.
    sums: Vec<f64>,
}

impl Sample {
    /// A sample of hours.
    ///
    /// # Errors
    /// No values, or one that is negative or not finite.
    pub fn new(mut values: Vec<f64>) -> Result<Self, SizingError> {
        error::demand("demand", &values)?;
        values.sort_unstable_by(f64::total_cmp);
        let mut sums = Vec::with_capacity(values.len() + 1);
        sums.push(0.0);
        let mut sum = 0.0;
        for value in &values {
            sum += value;
            sums.push(sum);
        }
        Ok(Self { sorted: values, sums })
    }

    /// Mixture of the hours of a forecast, with distribution function `G(R) = mean over hours of
    /// F_t(R)`. Quantiles are linear between levels; beyond the outer levels the outer slope
    /// continues, never below zero.
    ///
    /// # Errors
    /// Levels that do not rise inside (0, 1), rows that fall, are cut short, negative or not
    /// finite.
    pub fn from_forecast(forecast: Marginals<'_>) -> Result<Self, SizingError> {
        let Marginals { levels, quantiles } = forecast;
        if levels.len() < 2 || quantiles.is_empty() {
            return Err(SizingError::Empty { what: "the forecast (two levels and an hour are the least)" });
        }
        if levels.windows(2).any(|pair| pair[0] >= pair[1] || pair[0].is_nan())
            || !(levels[0] > 0.0 && levels[levels.len() - 1] < 1.0)
        {
            return Err(SizingError::Quantiles {
                hour: 0,
                problem: "levels must rise inside (0, 1): sort them",
            });
        }
        if !quantiles.len().is_multiple_of(levels.len()) {
            let problem = "the last row is cut short: give one quantile a level";
            return Err(SizingError::Quantiles { hour: quantiles.len() / levels.len(), problem });
        }
        error::demand("quantiles", quantiles)?;
        let mut values = Vec::with_capacity(quantiles.len() / levels.len() * POINTS);
        for (hour, row) in quantiles.chunks_exact(levels.len()).enumerate() {
            if row.windows(2).any(|pair| pair[0] > pair[1]) {
                return Err(SizingError::Quantiles { hour, problem: "they cross: sort them before" });
            }
            values.extend((0..POINTS).map(|k| interpolate(levels, row, (k as f64 + 0.5) / POINTS as f64)));
        }
        Self::new(values)
    }

    /// Number of values.
    pub fn len(&self) -> usize {
        self.sorted.len()
    }

    /// Never: a sample has at least one value.
    pub fn is_empty(&self) -> bool {
        self.sorted.is_empty()
    }

    /// Mean demand, GPUs.
    pub fn mean(&self) -> f64 {
        self.sums[self.sorted.len()] / self.sorted.len() as f64
    }

    /// Largest demand, GPUs.
    pub fn peak(&self) -> f64 {
        self.sorted[self.sorted.len() - 1]
    }

    /// Smallest R with `P(y > R) <= 1 - level`: the cheapest commitment at the critical ratio.
    pub fn quantile(&self, level: f64) -> f64 {
        let n = self.sorted.len() as f64;
        // `level` comes from a division of prices; without the slack 0.6 of 10 hours would be 7.
        let rank = (level * n - 1e-9 * n.max(1.0)).ceil().max(1.0) as usize;
        if level <= 1e-12 { 0.0 } else { self.sorted[rank.min(self.sorted.len()) - 1] }
    }

    /// Mean demand above `reserved_gpus`: `E(y - R)+`, GPUs.
    pub fn above(&self, reserved_gpus: f64) -> f64 {
        let n = self.sorted.len();
        let below = self.sorted.partition_point(|&value| value <= reserved_gpus);
        let over = self.sums[n] - self.sums[below] - reserved_gpus * (n - below) as f64;
        over.max(0.0) / n as f64
    }

    /// Share of the hours in which demand is above `reserved_gpus`.
    pub fn share_above(&self, reserved_gpus: f64) -> f64 {
        let below = self.sorted.partition_point(|&value| value <= reserved_gpus);
        (self.sorted.len() - below) as f64 / self.sorted.len() as f64
    }

    /// Expected cost per hour of a commitment.
    pub fn cost(&self, prices: &Prices, reserved_gpus: f64) -> f64 {
        let above = self.above(reserved_gpus);
        let busy = self.mean() - above;
        // `hour` is linear on either side of R, so its mean follows from the two means.
        prices.hour(reserved_gpus, busy.min(reserved_gpus)) + prices.elastic() * above
    }

    /// The cheapest multiple of `step` GPUs, at most `limit`; of equals the smaller. `step` is 1 or
    /// more.
    pub fn cheapest(&self, prices: &Prices, step: u32, limit: Option<u32>) -> u32 {
        let exact = self.quantile(prices.critical_ratio());
        let step_gpus = f64::from(step.max(1));
        let most = limit.unwrap_or(u32::MAX) / step.max(1);
        // The cost is convex in R, so only the two multiples around its minimum can be cheapest.
        let below = ((exact / step_gpus).floor().min(f64::from(most))) as u32;
        let above = below.saturating_add(1).min(most);
        let cost = |steps: u32| self.cost(prices, f64::from(steps) * step_gpus);
        (if cost(above) < cost(below) { above } else { below }).saturating_mul(step.max(1))
    }
}

fn interpolate(levels: &[f64], row: &[f64], level: f64) -> f64 {
    let last = levels.len() - 1;
    let right = levels.partition_point(|&known| known < level).clamp(1, last);
    let slope = (row[right] - row[right - 1]) / (levels[right] - levels[right - 1]);
    (row[right - 1] + slope * (level - levels[right - 1])).max(0.0)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_uniform_forecast_has_uniform_quantiles() {
        let sample =
            Sample::from_forecast(Marginals { levels: &[0.1, 0.5, 0.9], quantiles: &[10.0, 50.0, 90.0] })
                .unwrap();
        assert!((sample.quantile(0.4) - 40.0).abs() <= 0.5);
        assert!((sample.mean() - 50.0).abs() < 1e-9);
        // Two hours, one at 0 to 100 and one at exactly 200: G is 0.5 at 100, so the quantile at
        // 0.4 is 80.
        let two = [10.0, 50.0, 90.0, 200.0, 200.0, 200.0];
        let sample = Sample::from_forecast(Marginals { levels: &[0.1, 0.5, 0.9], quantiles: &two }).unwrap();
        assert!((sample.quantile(0.4) - 80.0).abs() <= 0.5);
    }

    #[test]
    fn crooked_forecasts_are_refused() {
        let refused = |levels: &[f64], quantiles: &[f64]| {
            Sample::from_forecast(Marginals { levels, quantiles }).is_err()
        };
        assert!(refused(&[0.1, 0.9], &[2.0, 1.0]));
        assert!(refused(&[0.9, 0.1], &[1.0, 2.0]));
        assert!(refused(&[0.1, 0.9], &[1.0, 2.0, 3.0]));
        assert!(refused(&[0.1, 0.9], &[f64::NAN, 2.0]));
        assert!(refused(&[f64::NAN, 0.9], &[1.0, 2.0]));
        assert!(refused(&[0.0, 0.9], &[1.0, 2.0]));
        assert!(refused(&[0.5], &[1.0]));
        assert!(refused(&[0.1, 0.9], &[]));
    }

    proptest! {
        #[test]
        fn no_multiple_is_cheaper(
            demand in prop::collection::vec(0.0f64..40.0, 1..30), rho in 0.01f64..1.0, lend in 0.0f64..0.9, step in 1u32..9,
        ) {
            let prices = Prices::new(rho, 1.0, lend * rho).unwrap();
            let sample = Sample::new(demand.clone()).unwrap();
            let chosen = f64::from(sample.cheapest(&prices, step, None));
            let cost = prices.total(chosen, &demand);
            for steps in 0..50 {
                let other = prices.total(f64::from(steps * step), &demand);
                prop_assert!(cost <= other + 1e-9, "{chosen} costs {cost}, {} costs {other}", steps * step);
            }
            prop_assert!((sample.cost(&prices, chosen) * demand.len() as f64 - cost).abs() < 1e-6);
        }

        #[test]
        fn a_dearer_reservation_is_never_larger(
            demand in prop::collection::vec(0.0f64..40.0, 1..30), low in 0.01f64..1.0, high in 0.01f64..1.0,
        ) {
            let sample = Sample::new(demand).unwrap();
            let (low, high) = (low.min(high), low.max(high));
            let size = |rho| sample.cheapest(&Prices::from_ratio(rho).unwrap(), 1, None);
            prop_assert!(size(low) >= size(high));
        }

        #[test]
        fn garbage_is_an_error_and_no_panic(demand in prop::collection::vec(any::<f64>(), 0..20), level in any::<f64>()) {
            if let Ok(sample) = Sample::new(demand) {
                let _kept = sample.quantile(level);
                let _kept = sample.cheapest(&Prices::from_ratio(0.6).unwrap(), 8, Some(1000));
            }
        }
    }
}
