//! Scores of published forecasts against the truth.

use serde::{Deserialize, Serialize};

use super::distribution::{Forecast, LEVELS, at_level};

/// Score of one horizon of a published forecast.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Score {
    /// Origin of the forecast, as index of the first step forecast.
    pub origin: usize,
    /// Steps ahead, from 1.
    pub step: usize,
    /// What was observed, in the series' unit.
    pub truth: f64,
    /// Median forecast.
    pub median: f64,
    /// Mean over all levels of `max(q e, (q − 1) e)`, in the series' unit.
    pub pinball: f64,
    /// Whether the truth lay between quantiles 0.1 and 0.9.
    pub inside80: bool,
    /// Whether it lay at or below quantile 0.95.
    pub below95: bool,
}

impl Score {
    /// Scores horizon `step` of `forecast`; `None` for a truth that is not finite or a forecast
    /// without horizons.
    pub fn of(forecast: &Forecast, step: usize, truth: f64) -> Option<Self> {
        if !truth.is_finite() {
            return None;
        }
        let at = |level| forecast.quantile(step, level);
        let mut pinball = 0.0;
        for level in LEVELS {
            let e = truth - at(level)?;
            pinball += (level * e).max((level - 1.0) * e);
        }
        Some(Self {
            origin: forecast.origin,
            step,
            truth,
            median: at(0.5)?,
            pinball: pinball / LEVELS.len() as f64,
            inside80: (at(0.1)?..=at(0.9)?).contains(&truth),
            below95: truth <= at(0.95)?,
        })
    }
}

/// Summary of the scores of one series and horizon bucket.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct Summary {
    /// Number of scores.
    pub count: usize,
    /// Weighted quantile loss: `2 Σ pinball / Σ |truth|`; zero where the truth is all zero.
    pub wql: f64,
    /// Mean absolute error of the median, in the series' unit.
    pub mae: f64,
    /// Share inside quantiles 0.1 to 0.9.
    pub cov80: f64,
    /// Share at or below quantile 0.95.
    pub cov95: f64,
}

impl Summary {
    /// Summarises scores.
    pub fn of(scores: &[Score]) -> Self {
        if scores.is_empty() {
            return Self::default();
        }
        let n = scores.len() as f64;
        let mean = |f: fn(&Score) -> f64| scores.iter().map(f).sum::<f64>() / n;
        let size = mean(|s| s.truth.abs());
        Self {
            count: scores.len(),
            wql: if size > 0.0 { 2.0 * mean(|s| s.pinball) / size } else { 0.0 },
            mae: mean(|s| (s.truth - s.median).abs()),
            cov80: mean(|s| f64::from(u8::from(s.inside80))),
            cov95: mean(|s| f64::from(u8::from(s.below95))),
        }
    }
}

/// Mean over the hours of the probability that demand is at most `value`: the distribution that a
/// static reservation faces. `None` without horizons.
pub fn mean_probability_below(forecast: &Forecast, value: f64) -> Option<f64> {
    let n = forecast.horizons.len();
    let sum: Option<f64> = (0..n).map(|i| forecast.probability_below(i, value)).sum();
    (n > 0).then_some(())?;
    sum.map(|s| s / n as f64)
}

/// Quantile `level` of every row, as a column.
pub fn column(forecast: &Forecast, level: f64) -> Vec<f64> {
    forecast.quantiles.iter().map(|row| at_level(row, level)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn forecast() -> Forecast {
        Forecast { origin: 7, horizons: vec![1], quantiles: vec![LEVELS.map(|l| 100.0 * l)] }
    }

    #[test]
    fn a_score_is_that_computed_by_hand() {
        let score = Score::of(&forecast(), 1, 96.0).unwrap();
        let by_hand: f64 = LEVELS
            .iter()
            .map(|l| if 96.0 >= 100.0 * l { l * (96.0 - 100.0 * l) } else { (1.0 - l) * (100.0 * l - 96.0) })
            .sum::<f64>()
            / 21.0;
        assert!((score.pinball - by_hand).abs() < 1e-9);
        assert_eq!((score.origin, score.median, score.inside80, score.below95), (7, 50.0, false, false));
        assert_eq!(Score::of(&forecast(), 1, f64::NAN), None);
        let summary = Summary::of(&[score, Score::of(&forecast(), 1, 50.0).unwrap()]);
        assert_eq!((summary.count, summary.mae, summary.cov80, summary.cov95), (2, 23.0, 0.5, 0.5));
        assert_eq!(Summary::of(&[]), Summary::default());
    }

    #[test]
    fn a_reservation_faces_the_mean_over_hours() {
        let two = Forecast {
            origin: 0,
            horizons: vec![1, 2],
            quantiles: vec![LEVELS.map(|l| 100.0 * l), LEVELS.map(|l| 1000.0 + l)],
        };
        assert!((mean_probability_below(&two, 60.0).unwrap() - 0.3).abs() < 1e-9);
        assert_eq!(column(&two, 0.5), [50.0, 1000.5]);
    }
}
