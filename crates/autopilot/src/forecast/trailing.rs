//! Trailing forecast: quantiles of a series' own past.
//!
//! It uses no model and is hard to beat a week ahead. Within a day it adds to current demand the
//! quantile of past rises from the same time of day.

use tidegate_units::Millis;

use super::{BySeries, Coverage, DemandForecast, Series, quantile};

/// Settings of [`Trailing`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TrailingConfig {
    /// Length of a step, ms; divides a day.
    pub step_ms: i64,
    /// Days of history.
    pub days: i64,
    /// Past rises are taken from this many minutes around the time of day.
    pub around_minutes: i64,
    /// Level of the bounds whose coverage is tracked.
    pub checked_level: f64,
    /// Horizon of those bounds, ms.
    pub checked_ms: i64,
}

impl Default for TrailingConfig {
    /// Ten minutes and four weeks; coverage at 90 % over 75 minutes, which the shipped policy uses
    /// for lending.
    fn default() -> Self {
        let minute = 60_000;
        Self {
            step_ms: 10 * minute,
            days: 28,
            around_minutes: 60,
            checked_level: 0.9,
            checked_ms: 75 * minute,
        }
    }
}

const DAY_MS: i64 = 86_400_000;
/// Days of past rises at the same time of day before they suffice alone.
const DAYS_ENOUGH: usize = 3;
/// Fewest origins at any time of day before a bound is issued.
const ENOUGH: usize = 36;

/// Margin added per broken bound, as a share of the last day's range of demand. Bounds overlap, so
/// one rise breaks several; half or twice as much makes little difference.
const LEARNING: f64 = 0.008;

/// One series: the highest demand of each step.
#[derive(Debug, Clone, Default)]
struct Past {
    /// Step of `values[0]`.
    first: i64,
    /// `None`: no value.
    values: Vec<Option<f64>>,
    newest_us: i64,
    coverage: Coverage,
    /// GPUs added to every bound, from recent misses.
    margin: f64,
}

/// Forecasts by trailing quantiles.
#[derive(Debug, Clone)]
pub struct Trailing {
    config: TrailingConfig,
    series: BySeries<Past>,
}

impl Trailing {
    /// Knows nothing yet. A step that does not divide the day is replaced by ten minutes.
    pub fn new(config: TrailingConfig) -> Self {
        let fits = config.step_ms > 0 && DAY_MS % config.step_ms == 0;
        let step_ms = if fits { config.step_ms } else { TrailingConfig::default().step_ms };
        Self { config: TrailingConfig { step_ms, ..config }, series: BySeries::new() }
    }

    /// Records a demand of `gpus` at `at_us`. Times come in order, the highest value of a step
    /// counts, and values older than the newest step are ignored.
    pub fn observe(&mut self, of: Series<'_>, at_us: i64, gpus: f64) {
        if !(gpus.is_finite() && gpus >= 0.0) {
            return;
        }
        let config = self.config;
        let step = at_us.div_euclid(Millis(config.step_ms).to_micros().0);
        let past = self.series.entry(of, || Past { first: step, ..Past::default() });
        let end = past.end();
        if step + 1 < end {
            return;
        }
        past.newest_us = past.newest_us.max(at_us);
        if step + 1 == end && !past.values.is_empty() {
            let last = past.values.last_mut().expect("not empty");
            *last = Some(last.map_or(gpus, |seen| seen.max(gpus)));
            return;
        }
        past.close_newest(&config);
        // After a gap longer than the history, nothing from before counts.
        let kept = config.days * DAY_MS / config.step_ms;
        if step - end > kept {
            past.first = step;
            past.values.clear();
        }
        let gap = usize::try_from(step - past.end()).unwrap_or(0);
        past.values.extend(std::iter::repeat_n(None, gap));
        past.values.push(Some(gpus));
        let over = past.values.len().saturating_sub(usize::try_from(kept).unwrap_or(0));
        // Moved a day at a time, so that most steps cost nothing.
        let day = usize::try_from(DAY_MS / config.step_ms).unwrap_or(1);
        if over >= day {
            past.values.drain(..over);
            past.first += over as i64;
        }
    }
}

impl Past {
    fn end(&self) -> i64 {
        self.first + self.values.len() as i64
    }

    /// Completes the newest step: compares earlier bounds with it, and issues a bound from it.
    fn close_newest(&mut self, config: &TrailingConfig) {
        let step = self.end() - 1;
        let Some(Some(value)) = self.values.last().copied() else { return };
        let over = self.coverage.observe(step, value);
        self.adapt(&over, config);
        let horizon = steps(config.checked_ms, config);
        if let Some(bound) = self.highest(config.checked_level, horizon, config) {
            self.coverage.issue(step + horizon, bound);
        }
    }

    /// Adapts the margin to ended bounds: slightly down for each that held, more up for each that
    /// did not, so that the share that holds approaches the tracked level whatever demand does.
    /// This is online quantile tracking as in Angelopoulos, Candès and Tibshirani, "Conformal PID
    /// Control for Time Series Prediction" (2023), equation 4. The margin is never negative, so
    /// bounds are never narrower than history.
    fn adapt(&mut self, over: &[bool], config: &TrailingConfig) {
        if over.is_empty() {
            return;
        }
        let day = usize::try_from(DAY_MS / config.step_ms).unwrap_or(1);
        let last = &self.values[self.values.len().saturating_sub(day)..];
        let known = last.iter().flatten();
        let (low, high) = known.fold((f64::INFINITY, 0.0f64), |(low, high), v| (low.min(*v), high.max(*v)));
        let rate = LEARNING * (high - low).max(0.0);
        for held in over {
            let missed = if *held { 0.0 } else { 1.0 };
            self.margin = (self.margin + rate * (missed - (1.0 - config.checked_level))).max(0.0);
        }
    }

    /// Current demand plus the quantile of its rise over `horizon` steps, plus the margin.
    fn highest(&self, level: f64, horizon: i64, config: &TrailingConfig) -> Option<f64> {
        Some((self.risen(level, horizon, config)? + self.margin).max(0.0))
    }

    fn risen(&self, level: f64, horizon: i64, config: &TrailingConfig) -> Option<f64> {
        let now = *self.values.iter().rev().find_map(Option::as_ref)?;
        let horizon = usize::try_from(horizon).ok()?;
        let day = usize::try_from(DAY_MS / config.step_ms).ok()?;
        let around = usize::try_from(Millis::from_minutes(config.around_minutes).0 / config.step_ms).ok()?;
        let newest = self.values.len() - 1;
        let mut same_time = Vec::new();
        let mut days = 0;
        let mut back = day;
        while back <= newest + around {
            let before = same_time.len();
            for origin in newest.saturating_sub(back + around)..=newest + around - back {
                same_time.extend(self.rise(origin, horizon));
            }
            days += usize::from(same_time.len() > before);
            back += day;
        }
        // n values say nothing about quantiles above n / (n + 1); those use sudden rises at any
        // time of the last week.
        let highest_level = same_time.len() as f64 / (same_time.len() + 1) as f64;
        let by_time = if days < DAYS_ENOUGH { None } else { quantile(&mut same_time, level) };
        if let Some(rise) = by_time.filter(|_| level <= highest_level) {
            return Some(now + rise);
        }
        let first = if by_time.is_some() { newest.saturating_sub(7 * day) } else { 0 };
        let mut rises: Vec<f64> = (first..newest).filter_map(|origin| self.rise(origin, horizon)).collect();
        if rises.len() < ENOUGH {
            return None;
        }
        let at_any_time = quantile(&mut rises, level)?;
        Some(now + by_time.map_or(at_any_time, |rise| rise.max(at_any_time)))
    }

    /// Rise from `origin` to the highest of the `horizon` steps after it; negative if all were
    /// lower. `None`: gaps, or not all past.
    fn rise(&self, origin: usize, horizon: usize) -> Option<f64> {
        let from = (*self.values.get(origin)?)?;
        let after = self.values.get(origin + 1..=origin + horizon)?;
        after
            .iter()
            .try_fold(f64::NEG_INFINITY, |highest, value| Some(highest.max((*value)?)))
            .map(|h| h - from)
    }
}

fn steps(ms: i64, config: &TrailingConfig) -> i64 {
    (ms.max(1) + config.step_ms - 1) / config.step_ms
}

impl DemandForecast for Trailing {
    fn highest_gpus(&self, of: Series<'_>, level: f64, within_ms: i64) -> Option<f64> {
        self.series.get(of)?.highest(level, steps(within_ms, &self.config), &self.config)
    }

    fn typical_gpus(&self, of: Series<'_>, level: f64, _within_ms: i64) -> Option<f64> {
        let past = self.series.get(of)?;
        let week = usize::try_from(7 * DAY_MS / self.config.step_ms).ok()?;
        let from = past.values.len().saturating_sub(week);
        let mut known: Vec<f64> = past.values[from..].iter().flatten().copied().collect();
        if known.len() < ENOUGH {
            return None;
        }
        quantile(&mut known, level)
    }

    fn coverage(&self, of: Series<'_>) -> Option<f64> {
        self.series.get(of)?.coverage.share()
    }

    fn as_of_us(&self, of: Series<'_>) -> Option<i64> {
        self.series.get(of).map(|past| past.newest_us)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OF: Series<'_> = Series { owner: "serving", pool: "h100" };
    const HOUR_MS: i64 = 3_600_000;

    /// Hourly demand: 10 GPUs at night, 50 from 8 to 20 o'clock.
    fn tide(days: i64) -> Trailing {
        let config = TrailingConfig { step_ms: HOUR_MS, checked_ms: HOUR_MS, ..TrailingConfig::default() };
        let mut trailing = Trailing::new(config);
        for hour in 0..days * 24 {
            trailing.observe(OF, hour * HOUR_MS * 1000, demand(hour));
        }
        trailing
    }

    fn demand(hour: i64) -> f64 {
        if (8..20).contains(&(hour % 24)) { 50.0 } else { 10.0 }
    }

    #[test]
    fn the_morning_is_predicted_from_earlier_mornings() {
        let mut trailing = tide(7);
        // It is 23 o'clock. In the one to three hours after 22 to 24 o'clock, demand never rose.
        assert_eq!(trailing.highest_gpus(OF, 0.9, 3 * HOUR_MS), Some(10.0));
        for hour in 168..168 + 6 {
            trailing.observe(OF, hour * HOUR_MS * 1000, demand(hour));
        }
        // It is 5 o'clock. From 4, 5 and 6 o'clock, 8 o'clock is within 3 hours in two of three
        // cases: the rise is 40 at 0.9 and nothing at 0.1.
        assert_eq!(trailing.highest_gpus(OF, 0.9, 3 * HOUR_MS), Some(50.0));
        assert_eq!(trailing.highest_gpus(OF, 0.1, 3 * HOUR_MS), Some(10.0));
        assert_eq!(trailing.typical_gpus(OF, 0.4, HOUR_MS), Some(10.0));
        assert_eq!(trailing.typical_gpus(OF, 0.6, HOUR_MS), Some(50.0));
        assert_eq!(trailing.as_of_us(OF), Some(173 * HOUR_MS * 1000));
    }

    #[test]
    fn sudden_rises_at_any_time_count_for_levels_beyond_the_samples_of_one_time() {
        // Always 10 GPUs, except 90 at 15 o'clock of day 3. It is 4 o'clock of day 7: 3, 4 and 5
        // o'clock of six or seven days give at most 20 rises, none above 0.
        let config = TrailingConfig { step_ms: HOUR_MS, checked_ms: HOUR_MS, ..TrailingConfig::default() };
        let mut trailing = Trailing::new(config);
        for hour in 0..7 * 24 + 5 {
            trailing.observe(OF, hour * HOUR_MS * 1000, if hour == 3 * 24 + 15 { 90.0 } else { 10.0 });
        }
        assert_eq!(trailing.highest_gpus(OF, 0.9, HOUR_MS), Some(10.0));
        // One rise of 80 among the last 168: the quantile at 0.999 is between the highest and the
        // next, at place 166.833 of 167.
        let bound = trailing.highest_gpus(OF, 0.999, HOUR_MS).unwrap();
        assert!((bound - (10.0 + 0.833 * 80.0)).abs() < 1e-6, "{bound}");
    }

    #[test]
    fn a_bound_above_what_was_is_never_below_nothing_and_unknown_is_unknown() {
        let trailing = tide(1);
        assert_eq!(trailing.highest_gpus(OF, 0.9, HOUR_MS), None, "24 hours are too few");
        assert_eq!(trailing.highest_gpus(Series { owner: "x", pool: "h100" }, 0.9, HOUR_MS), None);
        let trailing = tide(2);
        assert!(trailing.highest_gpus(OF, 0.0, HOUR_MS).unwrap() >= 0.0);
    }

    #[test]
    fn gaps_late_values_and_nonsense_are_left_out() {
        let mut trailing = tide(7);
        let before = trailing.highest_gpus(OF, 0.9, HOUR_MS);
        trailing.observe(OF, 0, 1e6);
        trailing.observe(OF, 200 * HOUR_MS * 1000, f64::NAN);
        assert_eq!(trailing.highest_gpus(OF, 0.9, HOUR_MS), before);
        trailing.observe(OF, 400 * 24 * HOUR_MS * 1000, 20.0);
        assert_eq!(trailing.highest_gpus(OF, 0.9, HOUR_MS), None, "a year later nothing of before counts");
    }

    #[test]
    fn bounds_widen_until_enough_hold() {
        // Calm for two weeks; then demand jumps seven times as far, up and down.
        let mut trailing = Trailing::new(TrailingConfig::default());
        let (mut state, mut level) = (11u64, 200.0f64);
        let (mut values, mut bounds) = (Vec::new(), Vec::new());
        for step in 0..24 * 144usize {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let jump = ((state >> 33) % 9) as f64 - 4.0;
            level = (level + if step < 14 * 144 { jump } else { 7.0 * jump }).clamp(20.0, 4_000.0);
            trailing.observe(OF, step as i64 * 600_000_000, level);
            values.push(level);
            bounds.push(trailing.highest_gpus(OF, 0.9, 75 * 60_000));
        }
        // The newest value is already in its step, so a bound issued with it covers the eight steps
        // that follow.
        let of_days = |from: usize, until: usize| {
            let held = |origin: &usize| {
                values[origin + 1..=origin + 8].iter().all(|value| *value <= bounds[*origin].unwrap())
            };
            let origins: Vec<usize> = (from * 144..until * 144 - 8).collect();
            origins.iter().filter(|origin| held(origin)).count() as f64 / origins.len() as f64
        };
        let (calm, wild) = (of_days(8, 14), of_days(15, 24));
        assert!(calm > 0.86, "{calm}");
        assert!(wild > 0.86, "{wild}");
    }

    #[test]
    fn coverage_is_near_its_level_on_a_random_walk() {
        let config = TrailingConfig { checked_level: 0.9, ..TrailingConfig::default() };
        let mut trailing = Trailing::new(config);
        let (mut state, mut level) = (7u64, 100.0f64);
        for step in 0..6_000i64 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            level = (level + ((state >> 33) % 9) as f64 - 4.0).clamp(20.0, 400.0);
            trailing.observe(OF, step * 600_000_000, level);
        }
        let coverage = trailing.coverage(OF).unwrap();
        assert!((0.84..0.96).contains(&coverage), "{coverage}");
    }
}
