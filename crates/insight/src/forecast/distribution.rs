//! A forecast as quantiles over horizons.

use serde::{Deserialize, Serialize};

/// Quantile levels of every forecast; dense, because sizing inverts the distribution.
pub const LEVELS: [f64; 21] = [
    0.01, 0.05, 0.10, 0.15, 0.20, 0.25, 0.30, 0.35, 0.40, 0.45, 0.50, 0.55, 0.60, 0.65, 0.70, 0.75, 0.80,
    0.85, 0.90, 0.95, 0.99,
];

/// Index of the median in [`LEVELS`].
pub(super) const MEDIAN: usize = 10;

/// Quantiles of demand at horizons after an origin, in the unit of the series.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Forecast {
    /// Number of known steps when it was made, which is the index of the first forecast step.
    pub origin: usize,
    /// Steps ahead, rising, from 1: horizon h is the step with index `origin + h - 1`.
    pub horizons: Vec<usize>,
    /// Quantiles, shape (horizons, [`LEVELS`]), rising with the level.
    pub quantiles: Vec<[f64; LEVELS.len()]>,
}

impl Forecast {
    /// Quantile `level` (0 to 1) at horizon `step`, linear between levels and horizons, constant
    /// beyond them. `None` for a forecast without horizons.
    pub fn quantile(&self, step: usize, level: f64) -> Option<f64> {
        let after = self.horizons.partition_point(|h| *h < step);
        let last = self.horizons.len().checked_sub(1)?;
        let right = after.min(last);
        let left = if self.horizons[right] == step { right } else { after.saturating_sub(1).min(last) };
        let (a, b) = (at_level(&self.quantiles[left], level), at_level(&self.quantiles[right], level));
        let span = self.horizons[right].saturating_sub(self.horizons[left]);
        if span == 0 {
            return Some(a);
        }
        let share = (step - self.horizons[left]) as f64 / span as f64;
        Some(a + (b - a) * share)
    }

    /// Median at horizon `step`.
    pub fn median(&self, step: usize) -> Option<f64> {
        self.quantile(step, 0.5)
    }

    /// Probability that demand at horizon index `i` is at most `value`: the inverse of the
    /// quantiles, clamped to the outermost levels.
    pub fn probability_below(&self, i: usize, value: f64) -> Option<f64> {
        let row = self.quantiles.get(i)?;
        let above = row.partition_point(|q| *q <= value);
        if above == 0 {
            return Some(0.0);
        }
        if above == row.len() {
            return Some(1.0);
        }
        let share = (value - row[above - 1]) / (row[above] - row[above - 1]);
        Some(LEVELS[above - 1] + share * (LEVELS[above] - LEVELS[above - 1]))
    }
}

/// Value of quantiles on [`LEVELS`] at any level.
pub(super) fn at_level(row: &[f64; LEVELS.len()], level: f64) -> f64 {
    let above = LEVELS.partition_point(|l| *l < level);
    if above == 0 {
        return row[0];
    }
    if above >= LEVELS.len() {
        return row[LEVELS.len() - 1];
    }
    let share = (level - LEVELS[above - 1]) / (LEVELS[above] - LEVELS[above - 1]);
    row[above - 1] + share * (row[above] - row[above - 1])
}

/// Empirical quantiles of sorted values at [`LEVELS`], linear between order statistics (type 7);
/// zeros for none.
pub(super) fn quantiles_of_sorted(sorted: &[f64]) -> [f64; LEVELS.len()] {
    let mut out = [0.0; LEVELS.len()];
    let Some(last) = sorted.len().checked_sub(1) else { return out };
    for (q, level) in out.iter_mut().zip(LEVELS) {
        let place = level * last as f64;
        let low = place as usize;
        let high = (low + 1).min(last);
        *q = sorted[low] + (place - low as f64) * (sorted[high] - sorted[low]);
    }
    out
}

/// Quantiles at [`LEVELS`] of sorted weighted values, each at the middle of its weight, linear
/// between; zeros if empty.
pub(super) fn quantiles_of_weighted(sorted: &[(f64, f64)]) -> [f64; LEVELS.len()] {
    let mut out = [0.0; LEVELS.len()];
    let total: f64 = sorted.iter().map(|(_, w)| w).sum();
    let (mut level, mut below) = (0, 0.0);
    let mut last: Option<(f64, f64)> = None;
    for (value, weight) in sorted {
        let place = (below + weight / 2.0) / total;
        while level < LEVELS.len() && LEVELS[level] <= place {
            out[level] = match last {
                Some((before, at)) if place > at => {
                    before + (value - before) * (LEVELS[level] - at) / (place - at)
                }
                _ => *value,
            };
            level += 1;
        }
        last = Some((*value, place));
        below += weight;
    }
    if let Some((value, _)) = last {
        out[level..].fill(value);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ramp(from: f64) -> [f64; LEVELS.len()] {
        LEVELS.map(|l| from + 100.0 * l)
    }

    #[test]
    fn quantiles_are_linear_between_levels_and_horizons() {
        let forecast = Forecast { origin: 0, horizons: vec![1, 5], quantiles: vec![ramp(0.0), ramp(40.0)] };
        assert_eq!(forecast.quantile(1, 0.5), Some(50.0));
        assert!((forecast.quantile(2, 0.525).unwrap() - 62.5).abs() < 1e-9);
        assert_eq!(forecast.quantile(99, 0.5), Some(90.0));
        assert!((forecast.probability_below(0, 42.0).unwrap() - 0.42).abs() < 1e-12);
        assert_eq!(forecast.probability_below(0, -1.0), Some(0.0));
        assert_eq!(forecast.probability_below(0, 1000.0), Some(1.0));
    }

    #[test]
    fn the_middle_of_five_is_the_third() {
        assert_eq!(quantiles_of_sorted(&[1.0, 2.0, 3.0, 4.0, 5.0])[MEDIAN], 3.0);
        assert_eq!(quantiles_of_sorted(&[])[MEDIAN], 0.0);
        assert_eq!(quantiles_of_sorted(&[7.0]), [7.0; LEVELS.len()]);
    }
}
