//! Reference forecasts of the protocol that need no library.

use super::metrics::{QUANTILES, Quantiles};

/// Hours of history that a reference sees.
const HISTORY: usize = 1008;
/// Standard normal at [`QUANTILES`].
const NORMAL: Quantiles = [-1.281_551_565_544_600_4, 0.0, 1.281_551_565_544_600_4, 1.644_853_626_951_472_2];

/// Names of the references; relative scores are based on the first.
pub const RIVALS: [&str; 4] = ["SNaive24", "SNaive168", "Naive", "last week"];

/// Forecast of the reference `name` after `past`, shape (horizon).
pub fn rival(name: &str, past: &[f64], horizon: usize) -> Vec<Quantiles> {
    let past = &past[past.len().saturating_sub(HISTORY)..];
    match name {
        "SNaive24" => seasonal(past, horizon, 24),
        "SNaive168" => seasonal(past, horizon, 168),
        "Naive" => naive(past, horizon),
        _ => last_week(past, horizon),
    }
}

fn seasonal(past: &[f64], horizon: usize, season: usize) -> Vec<Quantiles> {
    let changes: Vec<f64> = past.windows(season + 1).map(|w| w[season] - w[0]).collect();
    let sd = deviation(&changes);
    (0..horizon)
        .map(|i| {
            let point = past[past.len() - season + i % season];
            let sd = sd * ((i / season + 1) as f64).sqrt();
            NORMAL.map(|z| point + z * sd)
        })
        .collect()
}

fn naive(past: &[f64], horizon: usize) -> Vec<Quantiles> {
    let changes: Vec<f64> = past.windows(2).map(|w| w[1] - w[0]).collect();
    let (sd, last) = (deviation(&changes), past[past.len() - 1]);
    (1..=horizon).map(|h| NORMAL.map(|z| last + z * sd * (h as f64).sqrt())).collect()
}

fn last_week(past: &[f64], horizon: usize) -> Vec<Quantiles> {
    let mut week = past[past.len().saturating_sub(168)..].to_vec();
    week.sort_unstable_by(f64::total_cmp);
    let row = QUANTILES.map(|level| {
        let place = level * (week.len() - 1) as f64;
        let low = place as usize;
        let high = (low + 1).min(week.len() - 1);
        week[low] + (place - low as f64) * (week[high] - week[low])
    });
    vec![row; horizon]
}

fn deviation(values: &[f64]) -> f64 {
    let n = values.len() as f64;
    let mean = values.iter().sum::<f64>() / n;
    (values.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / n).sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_daily_pattern_repeats_without_spread() {
        let past: Vec<f64> = (0..240).map(|t| f64::from(t % 24)).collect();
        let out = rival("SNaive24", &past, 30);
        assert_eq!(out[25], [1.0; 4]);
        assert_eq!(rival("Naive", &past, 2)[1][1], 23.0);
        assert_eq!(rival("last week", &past, 1)[0][1], 11.5);
    }
}
