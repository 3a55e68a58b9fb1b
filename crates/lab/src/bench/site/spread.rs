//! How values that were measured many times are spread.

use serde::{Deserialize, Serialize};

/// Median, 99th percentile and maximum; all 0 if nothing was measured.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Spread {
    pub p50: f64,
    pub p99: f64,
    pub max: f64,
}

impl Spread {
    /// Percentiles by nearest rank.
    pub fn of(mut values: Vec<f64>) -> Self {
        values.sort_by(f64::total_cmp);
        let rank = |share: f64| {
            let at = (share * values.len() as f64).ceil() as usize;
            values.get(at.saturating_sub(1)).copied().unwrap_or(0.0)
        };
        Self { p50: rank(0.5), p99: rank(0.99), max: rank(1.0) }
    }
}

/// CPU and wall time of one thing, in whatever unit.
#[derive(Debug, Clone, Copy)]
pub struct Took {
    pub cpu: f64,
    pub wall: f64,
}

/// CPU and wall time of many. Only CPU time can be compared on a machine that does other work too.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Times {
    pub cpu: Spread,
    pub wall: Spread,
}

impl Times {
    pub fn of(took: &[Took]) -> Self {
        let each = |value: fn(&Took) -> f64| Spread::of(took.iter().map(value).collect());
        Self { cpu: each(|took| took.cpu), wall: each(|took| took.wall) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_of_the_nearest_rank() {
        let spread = Spread::of((1..=200).rev().map(f64::from).collect());
        assert_eq!(spread, Spread { p50: 100.0, p99: 198.0, max: 200.0 });
        assert_eq!(Spread::of(vec![3.0]), Spread { p50: 3.0, p99: 3.0, max: 3.0 });
        assert_eq!(Spread::of(Vec::new()), Spread::default());
    }
}
