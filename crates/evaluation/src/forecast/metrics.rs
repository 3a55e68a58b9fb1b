//! Scores of the protocol.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Levels scored.
pub const QUANTILES: [f64; 4] = [0.1, 0.5, 0.9, 0.95];
/// Largest horizon of each bucket; averages start at 1.
pub const BUCKETS: [usize; 3] = [1, 24, 168];

/// Quantiles [`QUANTILES`] of one hour.
pub type Quantiles = [f64; 4];

/// Scores of one series over all origins and the horizons of a bucket.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Scores {
    /// Mean absolute error over that of the value a day before, in the hours before the first
    /// origin.
    pub mase: f64,
    /// `200 |e| / (|y| + |f|)`, %.
    pub smape: f64,
    /// Weighted quantile loss: `2 mean_q Σ pinball_q / Σ|y|`.
    pub wql: f64,
    /// Its term at 0.95.
    pub pb95: f64,
    /// Share of the truth between quantiles 0.1 and 0.9.
    pub cov80: f64,
    /// Share of the truth at or below quantile 0.95.
    pub cov95: f64,
}

/// Scores by bucket (its greatest horizon).
pub type ByBucket = BTreeMap<usize, Scores>;

/// Scores forecasts, shape (origins, horizon), against their series. Negative quantiles count as
/// zero.
pub fn score(
    values: &[f64],
    first_origin: usize,
    origins: &[usize],
    forecasts: &[Vec<Quantiles>],
) -> ByBucket {
    let before: Vec<f64> = (24..first_origin).map(|t| (values[t] - values[t - 24]).abs()).collect();
    let scale = before.iter().sum::<f64>() / before.len() as f64;
    let horizon = forecasts.first().map_or(0, Vec::len);
    BUCKETS
        .into_iter()
        .filter(|bucket| *bucket <= horizon)
        .map(|bucket| {
            let pairs = origins.iter().zip(forecasts).flat_map(|(origin, forecast)| {
                (0..bucket).map(move |i| (values[origin + i], forecast[i].map(|q| q.max(0.0))))
            });
            (bucket, score_pairs(pairs, scale))
        })
        .collect()
}

fn score_pairs(pairs: impl Iterator<Item = (f64, Quantiles)>, scale: f64) -> Scores {
    let (mut n, mut error, mut smape, mut total) = (0.0, 0.0, 0.0, 0.0);
    let (mut loss, mut inside, mut below) = ([0.0; 4], 0.0, 0.0);
    for (y, f) in pairs {
        n += 1.0;
        total += y.abs();
        let e = (y - f[1]).abs();
        error += e;
        smape += if e == 0.0 { 0.0 } else { 200.0 * e / (y.abs() + f[1].abs()) };
        for (loss, (q, f)) in loss.iter_mut().zip(QUANTILES.iter().zip(f)) {
            *loss += (q * (y - f)).max((q - 1.0) * (y - f));
        }
        inside += f64::from(u8::from(f[0] <= y && y <= f[2]));
        below += f64::from(u8::from(y <= f[3]));
    }
    Scores {
        mase: error / n / scale,
        smape: smape / n,
        wql: 2.0 * loss.iter().sum::<f64>() / 4.0 / total,
        pb95: 2.0 * loss[3] / total,
        cov80: inside / n,
        cov95: below / n,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scores_are_those_computed_by_hand() {
        // |y_t - y_{t-24}| = 2 before the first origin at 26.
        let mut values = vec![10.0; 24];
        values.extend([12.0, 8.0, 20.0]);
        let scores = score(&values, 26, &[26], &[vec![[10.0, 16.0, 18.0, 24.0]]])[&1];
        assert_eq!(scores.mase, 2.0);
        assert!((scores.smape - 200.0 * 4.0 / 36.0).abs() < 1e-12);
        // Pinball: 0.1·10, 0.5·4, 0.9·2, 0.05·4 = 1, 2, 1.8, 0.2; twice their mean over 20.
        assert!((scores.wql - 2.0 * 5.0 / 4.0 / 20.0).abs() < 1e-12);
        assert!((scores.pb95 - 2.0 * 0.2 / 20.0).abs() < 1e-12);
        assert_eq!((scores.cov80, scores.cov95), (0.0, 1.0));
    }
}
