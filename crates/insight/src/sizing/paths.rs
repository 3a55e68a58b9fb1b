//! Scenario paths: demand for terms longer than any forecast, as past weeks in a new order on a
//! trend.
//!
//! A stationary block bootstrap of whole weeks keeps the shape of a week and, in blocks of some
//! weeks, how the level wanders. Growth is drawn once per path, from the trend of the weeks
//! combined with a prior. A year cannot be validated on months of data, so the result is a spread,
//! not a promise.

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde::Serialize;

use super::{SizingError, error};

const WEEK: usize = 168;
/// Mean length of a block, weeks.
const BLOCK_WEEKS: f64 = 4.0;
/// Weeks in a year of 8,766 hours.
const YEAR_WEEKS: f64 = 8766.0 / 168.0;
/// Growth is clamped to this factor a year, up or down: the trend of a short history has no bound,
/// fleets do.
const GROWTH_LIMIT: f64 = 4.0;

/// Prior on growth: the logarithm of the yearly factor, normal.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct GrowthPrior {
    /// Mean of the logarithm of the yearly factor: 0 is no growth.
    pub log_mean: f64,
    /// Its standard deviation, above 0.
    pub log_sd: f64,
}

impl Default for GrowthPrior {
    /// No growth, give or take a factor of 1.5 a year. The weight is small, so that a year of weeks
    /// outweighs it.
    fn default() -> Self {
        Self { log_mean: 0.0, log_sd: 0.4 }
    }
}

/// Distribution that growth is drawn from: the logarithm of the yearly factor.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Growth {
    /// Mean.
    pub log_mean: f64,
    /// Standard deviation.
    pub log_sd: f64,
}

/// How paths are drawn.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PathPlan {
    /// Hours of each path, 1 or more.
    pub hours: usize,
    /// Number of paths, 1 or more.
    pub paths: usize,
    /// Growth; `None` takes [`growth`] of the history under the default prior.
    pub growth: Option<Growth>,
    /// Seed: the same gives the same paths.
    pub seed: u64,
}

/// Growth in the weeks of `history`: least squares on the logarithm of weekly means. Its variance
/// is inflated for correlated neighbours, and it is combined with `prior` by precision.
///
/// # Errors
/// Demand that is negative or not finite, fewer than two whole weeks, a prior without width.
pub fn growth(history: &[f64], prior: GrowthPrior) -> Result<Growth, SizingError> {
    let weeks = weeks(history)?;
    error::parameter("the prior's mean", prior.log_mean, "finite", |_| true)?;
    error::parameter("the prior's deviation", prior.log_sd, "more than 0", |sd| sd > 0.0)?;
    // Plus one, because a week at zero has no logarithm; one GPU is little in any fleet that
    // reserves.
    let levels: Vec<f64> =
        weeks.iter().map(|week| (week.iter().sum::<f64>() / WEEK as f64 + 1.0).ln()).collect();
    let Some((slope, variance)) = trend(&levels) else {
        return Ok(Growth { log_mean: prior.log_mean, log_sd: prior.log_sd });
    };
    let (slope, variance) = (slope * YEAR_WEEKS, variance * YEAR_WEEKS * YEAR_WEEKS);
    let weight = prior.log_sd.powi(2) / (prior.log_sd.powi(2) + variance);
    let log_mean = prior.log_mean + weight * (slope - prior.log_mean);
    Ok(Growth { log_mean, log_sd: (prior.log_sd.powi(2) * (1.0 - weight)).sqrt() })
}

/// Draws paths of hourly demand that begin where `history` ends.
///
/// # Errors
/// As [`growth`]; no hours or no paths asked for; growth without a finite mean and deviation.
pub fn scenario_paths(history: &[f64], plan: PathPlan) -> Result<Vec<Vec<f64>>, SizingError> {
    let weeks = weeks(history)?;
    error::parameter("hours of a path", plan.hours as f64, "1 or more", |hours| hours >= 1.0)?;
    error::parameter("the number of paths", plan.paths as f64, "1 or more", |paths| paths >= 1.0)?;
    let growth = match plan.growth {
        Some(growth) => growth,
        None => growth_checked(history)?,
    };
    error::parameter("growth", growth.log_mean, "finite", |_| true)?;
    error::parameter("the deviation of growth", growth.log_sd, "0 or more", |sd| sd >= 0.0)?;
    let mut random = ChaCha8Rng::seed_from_u64(plan.seed);
    Ok((0..plan.paths).map(|_| path(&weeks, plan.hours, growth, &mut random)).collect())
}

fn growth_checked(history: &[f64]) -> Result<Growth, SizingError> {
    growth(history, GrowthPrior::default())
}

/// Whole weeks of history, oldest first, ending where the history ends, so that a path continues in
/// phase.
fn weeks(history: &[f64]) -> Result<Vec<&[f64]>, SizingError> {
    error::demand("history", history)?;
    if history.len() < 2 * WEEK {
        return Err(SizingError::History { hours: history.len(), needed: 2 * WEEK });
    }
    Ok(history[history.len() % WEEK..].chunks_exact(WEEK).collect())
}

fn path(weeks: &[&[f64]], hours: usize, growth: Growth, random: &mut ChaCha8Rng) -> Vec<f64> {
    let limit = GROWTH_LIMIT.ln();
    let yearly = (growth.log_mean + growth.log_sd * normal(random)).clamp(-limit, limit);
    let mut path = Vec::with_capacity(hours + WEEK);
    let mut at = random.random_range(0..weeks.len());
    while path.len() < hours {
        // Time from the drawn week to the week it stands for; the trend over it is added.
        let ahead = (path.len() / WEEK + weeks.len() - at) as f64;
        let factor = (yearly * ahead / YEAR_WEEKS).exp();
        path.extend(weeks[at].iter().map(|hour| hour * factor));
        let goes_on = random.random::<f64>() >= 1.0 / BLOCK_WEEKS;
        at = if goes_on { (at + 1) % weeks.len() } else { random.random_range(0..weeks.len()) };
    }
    path.truncate(hours);
    path
}

/// A standard normal number (Box and Muller).
fn normal(random: &mut ChaCha8Rng) -> f64 {
    let radius = (-2.0 * (1.0 - random.random::<f64>()).ln()).sqrt();
    radius * (std::f64::consts::TAU * random.random::<f64>()).cos()
}

/// Slope per step and its variance; `None` with fewer than three points. The variance is multiplied
/// by `(1 + r) / (1 - r)` for residuals whose neighbours correlate by r. Residuals of a fitted line
/// underestimate r by (2 + 4 r) / n in the mean (Marriott and Pope, Biometrika 41 (1954) 390-402),
/// which is added.
fn trend(levels: &[f64]) -> Option<(f64, f64)> {
    let n = levels.len() as f64;
    if levels.len() < 3 {
        return None;
    }
    let middle = (n - 1.0) / 2.0;
    let mean = levels.iter().sum::<f64>() / n;
    let spread: f64 = (0..levels.len()).map(|at| (at as f64 - middle).powi(2)).sum();
    let slope =
        levels.iter().enumerate().map(|(at, level)| (at as f64 - middle) * (level - mean)).sum::<f64>()
            / spread;
    let residual: Vec<f64> =
        levels.iter().enumerate().map(|(at, level)| level - mean - slope * (at as f64 - middle)).collect();
    let squares: f64 = residual.iter().map(|value| value * value).sum();
    if squares <= f64::EPSILON {
        return Some((slope, 0.0));
    }
    let neighbours: f64 = residual.windows(2).map(|pair| pair[0] * pair[1]).sum();
    let shown = neighbours / squares;
    let correlation = (shown + (2.0 + 4.0 * shown) / n).clamp(0.0, 0.9);
    Some((slope, squares / (n - 2.0) / spread * (1.0 + correlation) / (1.0 - correlation)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(hours: usize, growth: Option<Growth>) -> PathPlan {
        PathPlan { hours, paths: 3, growth, seed: 7 }
    }

    fn week_like(weeks: usize) -> Vec<f64> {
        (0..weeks * WEEK).map(|hour| 10.0 + (hour % WEEK) as f64).collect()
    }

    #[test]
    fn the_same_seed_draws_the_same() {
        let history: Vec<f64> = (0..6 * WEEK).map(|hour| (hour * hour % 97) as f64).collect();
        let one = scenario_paths(&history, plan(1000, None)).unwrap();
        assert!(one == scenario_paths(&history, plan(1000, None)).unwrap());
        assert!(one != scenario_paths(&history, PathPlan { seed: 8, ..plan(1000, None) }).unwrap());
        assert!(one.iter().all(|path| path.len() == 1000));
    }

    #[test]
    fn without_growth_a_path_is_in_phase() {
        let mut history = week_like(5);
        history.extend((0..50).map(|hour| 10.0 + f64::from(hour)));
        let still = Growth { log_mean: 0.0, log_sd: 0.0 };
        for path in scenario_paths(&history, plan(400, Some(still))).unwrap() {
            for (hour, value) in path.iter().enumerate() {
                assert_eq!(*value, 10.0 + ((hour + 50) % WEEK) as f64);
            }
        }
    }

    #[test]
    fn growth_shows_in_level_and_in_its_trend() {
        let doubling: Vec<f64> =
            (0..52 * WEEK).map(|hour| 1000.0 * 2f64.powf(hour as f64 / 8766.0)).collect();
        let found = growth(&doubling, GrowthPrior::default()).unwrap();
        assert!((found.log_mean.exp() - 2.0).abs() < 0.02, "{found:?}");
        let paths = scenario_paths(&doubling, plan(8766, Some(found))).unwrap();
        let last = paths[0][8765];
        assert!((last / 4000.0 - 1.0).abs() < 0.1, "{last}");
        // Two weeks say nothing about a year.
        let unknown = growth(&doubling[..2 * WEEK], GrowthPrior::default()).unwrap();
        assert_eq!((unknown.log_mean, unknown.log_sd), (0.0, 0.4));
    }

    #[test]
    fn short_or_broken_history_is_refused() {
        assert!(matches!(
            scenario_paths(&[1.0; 300], plan(10, None)),
            Err(SizingError::History { needed: 336, .. })
        ));
        assert!(scenario_paths(&[f64::NAN; 400], plan(10, None)).is_err());
        assert!(scenario_paths(&[1.0; 400], plan(0, None)).is_err());
        assert!(scenario_paths(&[1.0; 400], PathPlan { paths: 0, ..plan(1, None) }).is_err());
        assert!(scenario_paths(&[0.0; 400], plan(10, None)).unwrap()[0].iter().all(|gpus| *gpus == 0.0));
    }
}
