//! Confidence intervals of means over seeds.

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde::Serialize;

/// A number with its 95 % interval.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Interval {
    /// The mean.
    pub value: f64,
    /// Lower end.
    pub low: f64,
    /// Upper end.
    pub high: f64,
}

const DRAWS: usize = 1_000;

/// Mean of `values`, or its ratio to the mean of `below`, with the 95 % percentile interval of
/// 1,000 bootstrap resamples. Values and divisors are resampled in pairs (Efron and Tibshirani
/// 1993, chapter 13).
pub fn bootstrap(values: &[f64], below: Option<&[f64]>) -> Interval {
    if values.is_empty() {
        return Interval { value: f64::NAN, low: f64::NAN, high: f64::NAN };
    }
    let of = |places: &mut dyn Iterator<Item = usize>| {
        let (mut above, mut under) = (0.0, 0.0);
        for place in places {
            above += values[place];
            under += below.map_or(1.0, |b| b[place]);
        }
        above / under
    };
    // A fixed seed: an interval is a function of its numbers.
    let mut rng = ChaCha8Rng::seed_from_u64(1993);
    let mut draw = || of(&mut (0..values.len()).map(|_| rng.random_range(0..values.len())));
    let mut draws: Vec<f64> = (0..DRAWS).map(|_| draw()).collect();
    draws.sort_unstable_by(f64::total_cmp);
    Interval {
        value: of(&mut (0..values.len())),
        low: draws[DRAWS / 40],
        high: draws[DRAWS - 1 - DRAWS / 40],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interval_holds_its_mean_and_narrows_with_pairs() {
        let base: Vec<f64> = (1..=20).map(f64::from).collect();
        let twice: Vec<f64> = base.iter().map(|v| v * 2.0).collect();
        let mean = bootstrap(&twice, None);
        assert_eq!(mean.value, 21.0);
        // The standard error is 2 × 5.77 / √20 = 2.58, so the interval is about 10 wide.
        assert!((8.0..12.0).contains(&(mean.high - mean.low)), "{mean:?}");
        let ratio = bootstrap(&twice, Some(&base));
        assert_eq!((ratio.value, ratio.low, ratio.high), (2.0, 2.0, 2.0));
    }
}
