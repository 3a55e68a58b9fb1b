//! Forecaster of one series: observes steps as they end, forecasts at any time.

use serde::{Deserialize, Serialize};

use super::{
    ForecastError,
    distribution::{Forecast, LEVELS, MEDIAN, quantiles_of_sorted},
    history::History,
    ridge::Ridge,
    trailing::{MEMBERS, POINT_MEMBERS, Row, Trailing, Tuning},
};

/// Settings of a [`Forecaster`].
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct Config {
    /// Length of a step, seconds; a divisor of a day, at most a quarter of one.
    pub step_s: usize,
    /// Longest horizon, steps.
    pub horizon: usize,
    /// Steps between the forecasts recorded for learning. Prime to the hours of a day, so that all
    /// of them are covered.
    pub stride: usize,
    /// Treat a sudden drop of a steady series to zero as an outage, for at most two days. Off where
    /// the job table shows outages.
    pub outages: bool,
}

impl Default for Config {
    /// Hourly, up to one week.
    fn default() -> Self {
        Self { step_s: 3600, horizon: 168, stride: 5, outages: true }
    }
}

impl Config {
    /// Hourly, up to four weeks.
    pub fn monthly() -> Self {
        Self { horizon: 672, ..Self::default() }
    }

    /// Ten-minute steps, up to six hours.
    pub fn short() -> Self {
        Self { step_s: 600, horizon: 36, stride: 7, ..Self::default() }
    }
}

/// Members with one value, by place in [`Trailing`].
const LAST: usize = 0;
const SEASONAL: usize = 1;
const RIDGE: usize = 2;
const OUTLOOK: usize = 3;
/// Member with the quantiles of the last week.
const WEEK: usize = 4;

/// Residuals needed for a member's spread.
const MIN_SAMPLES: usize = 12;
/// Steps needed for a forecast.
const MIN_STEPS: usize = 2;

/// Forecasts of one series, updated step by step.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Forecaster {
    config: Config,
    day: usize,
    anchors: Vec<usize>,
    history: History,
    trailing: Trailing,
    ridge: Ridge,
}

impl Forecaster {
    /// A forecaster without history.
    ///
    /// # Errors
    /// [`ForecastError::Config`] for a step that does not divide the day, a zero horizon or stride.
    pub fn new(config: Config) -> Result<Self, ForecastError> {
        let fits = config.step_s > 0 && 86_400 % config.step_s == 0 && 86_400 / config.step_s >= 4;
        if !fits || config.horizon == 0 || config.stride == 0 {
            return Err(ForecastError::Config);
        }
        let day = 86_400 / config.step_s;
        let anchors = anchors(day, config.horizon);
        let tuning = Tuning {
            stride: config.stride,
            kept: (28 * day / config.stride).max(8),
            fade: 0.5f64.powf(config.stride as f64 / (10.0 * day as f64)),
            forget: 0.5f64.powf(config.stride as f64 / (14.0 * day as f64)),
            power: 8.0,
            prior: 40.0,
            rate: 0.02,
        };
        Ok(Self {
            config,
            day,
            history: History::new(day, config.outages),
            trailing: Trailing::new(&anchors, day, tuning),
            anchors,
            ridge: Ridge { day, penalty: 3.0, rows: 42 * day },
        })
    }

    /// Horizons at which an outlook is needed, rising, in steps.
    pub fn anchors(&self) -> &[usize] {
        &self.anchors
    }

    /// Steps of the series so far.
    pub fn steps(&self) -> usize {
        self.history.len()
    }

    /// Whether the next [`Self::observe`] records a forecast for learning, and so needs an outlook.
    pub fn wants_outlook(&self) -> bool {
        (self.history.len() + 1).is_multiple_of(self.config.stride)
    }

    /// Takes the mean of the next step; `None`, NaN, infinite and negative values are gaps.
    /// `outlook`: expectations after this step by [`Self::anchors`], from a source that knows more
    /// than the series (job table, clients).
    pub fn observe(&mut self, value: Option<f64>, outlook: Option<&[f64]>) {
        let at = self.history.len();
        self.history.push(value);
        let valid = value.filter(|v| v.is_finite() && *v >= 0.0);
        if let (Some(y), None) = (valid, self.history.down_for()) {
            self.trailing.observe_truth(at, y);
        }
        if self.history.len() >= MIN_STEPS && self.history.len().is_multiple_of(self.config.stride) {
            let points = self.points(outlook);
            let members = self.members(&points);
            let whole = self.combine(&members);
            self.trailing.record(self.history.len(), points, &members, &whole);
        }
    }

    /// Quantiles at all anchors after the last step.
    ///
    /// # Errors
    /// [`ForecastError::TooShort`] below two observed steps.
    pub fn forecast(&self, outlook: Option<&[f64]>) -> Result<Forecast, ForecastError> {
        if self.history.known() < MIN_STEPS {
            return Err(ForecastError::TooShort { known: self.history.known(), needed: MIN_STEPS });
        }
        let mut quantiles = self.combine(&self.members(&self.points(outlook)));
        if let Some(down) = self.history.down_for() {
            for (row, h) in quantiles.iter_mut().zip(&self.anchors) {
                mix_with_zero(row, outage_probability(down, *h, self.day));
            }
        }
        Ok(Forecast { origin: self.history.len(), horizons: self.anchors.clone(), quantiles })
    }

    fn points(&self, outlook: Option<&[f64]>) -> Vec<[Option<f64>; POINT_MEMBERS]> {
        let y = self.history.values();
        let ridge = self.ridge.predict(y, &self.anchors);
        let week = mean(&y[y.len().saturating_sub(7 * self.day)..]);
        let outlook = outlook.filter(|o| o.len() == self.anchors.len());
        self.anchors
            .iter()
            .enumerate()
            .map(|(i, &h)| {
                let mut out = [None; POINT_MEMBERS];
                let keep = (-(h as f64) / (7.0 * self.day as f64)).exp();
                out[LAST] = y.last().map(|v| week + (v - week) * keep);
                out[SEASONAL] = seasonal(y, h, self.day);
                out[RIDGE] = ridge[i];
                out[OUTLOOK] = outlook.map(|o| o[i]).filter(|v| v.is_finite());
                out
            })
            .collect()
    }

    /// Quantiles of every member at every anchor.
    fn members(&self, points: &[[Option<f64>; POINT_MEMBERS]]) -> Vec<[Option<Row>; MEMBERS]> {
        let y = self.history.values();
        let (mut scratch, mut pairs) = (Vec::new(), Vec::new());
        let mut week = y[y.len().saturating_sub(7 * self.day)..].to_vec();
        week.sort_unstable_by(f64::total_cmp);
        let week = quantiles_of_sorted(&week);
        points
            .iter()
            .enumerate()
            .map(|(i, points)| {
                let mut out = [None; MEMBERS];
                for (k, point) in points.iter().enumerate() {
                    let Some(point) = point else { continue };
                    let spread = self.trailing.spread(k, i, MIN_SAMPLES, &mut pairs);
                    out[k] = spread.map(|row| row.map(|r| point + r)).filter(is_finite);
                }
                if out.iter().all(Option::is_none) {
                    let point = points[LAST].unwrap_or(0.0);
                    out[LAST] = Some(self.unlearned(point, self.anchors[i], &mut scratch));
                }
                if y.len() >= 3 * self.day && is_finite(&week) {
                    out[WEEK] = Some(week);
                }
                out
            })
            .collect()
    }

    /// Spread at a horizon without record: past changes over as many steps; if there are too few,
    /// the step changes scaled by the root of the horizon, and never less than half the level.
    fn unlearned(&self, point: f64, h: usize, scratch: &mut Vec<f64>) -> Row {
        let y = self.history.values();
        scratch.clear();
        scratch.extend(y.windows(h + 1).map(|w| w[h] - w[0]));
        if scratch.len() >= self.day {
            scratch.sort_unstable_by(f64::total_cmp);
            let row = quantiles_of_sorted(scratch).map(|r| point + r);
            if is_finite(&row) {
                return row;
            }
        }
        let steps = y.windows(2).map(|w| (w[1] - w[0]).powi(2)).sum::<f64>() / (y.len().max(2) - 1) as f64;
        let peak = self.history.peak();
        let width = (steps * h as f64).sqrt().max(0.25 * peak).max(0.5 * point).min(3.0 * peak);
        LEVELS.map(|level| point + width * normal_quantile(level))
    }

    /// Average of the members' quantiles, weighed by trailing score, widened by coverage, within
    /// [0, 3 × peak].
    fn combine(&self, members: &[[Option<Row>; MEMBERS]]) -> Vec<Row> {
        let most = 3.0 * self.history.peak();
        let mut out = Vec::with_capacity(members.len());
        for (members, &h) in members.iter().zip(&self.anchors) {
            let weights = self.trailing.weights(h, prior(h, self.day, members));
            let (mut row, mut total) = ([0.0; LEVELS.len()], 0.0);
            for (member, weight) in members.iter().zip(weights) {
                let Some(member) = member else { continue };
                total += weight;
                for (q, p) in row.iter_mut().zip(member) {
                    *q += weight * p;
                }
            }
            let [below, above] = self.trailing.widening(h);
            let middle = row[MEDIAN] / total;
            for (i, q) in row.iter_mut().enumerate() {
                let factor = if i < MEDIAN { below } else { above };
                *q = (middle + factor * (*q / total - middle)).clamp(0.0, most);
            }
            row.sort_unstable_by(f64::total_cmp);
            out.push(row);
        }
        out
    }
}

/// Horizons computed: all of two days, every eighth of a day up to a week, half a day beyond.
/// Quantiles are interpolated between them.
fn anchors(day: usize, horizon: usize) -> Vec<usize> {
    let mut out: Vec<usize> = (1..=horizon.min(2 * day)).collect();
    let mut h = 2 * day;
    while h < horizon {
        h += if h < 7 * day { (day / 8).max(1) } else { (day / 2).max(1) };
        out.push(h.min(horizon));
    }
    out
}

/// Weights before any score: informed members near, the last week's quantiles more and more with
/// distance.
fn prior(h: usize, day: usize, members: &[Option<Row>; MEMBERS]) -> [f64; MEMBERS] {
    let hours = h as f64 * 24.0 / day as f64;
    let far = ((hours - 6.0) / 60.0).clamp(0.0, 0.6);
    let mut out = [0.0; MEMBERS];
    out[LAST] = 0.05;
    out[SEASONAL] = 0.1 * (hours / 24.0).min(1.0);
    out[RIDGE] = 0.5 * (-hours / 50.0).exp();
    out[OUTLOOK] = 0.5;
    out[WEEK] = far * 2.0;
    if members[RIDGE].is_none() && members[OUTLOOK].is_none() {
        out[LAST] = (1.0 - far).max(0.1);
    }
    out
}

/// Mean of the target's hour over the last two weeks, with weights falling by 0.85 a day.
fn seasonal(y: &[f64], h: usize, day: usize) -> Option<f64> {
    let target = y.len() + h - 1;
    let (mut sum, mut total, mut weight) = (0.0, 0.0, 1.0);
    let mut back = h.div_ceil(day) * day;
    for _ in 0..14 {
        let Some(at) = target.checked_sub(back) else { break };
        sum += weight * y[at];
        total += weight;
        weight *= 0.85;
        back += day;
    }
    (total > 0.0).then(|| sum / total)
}

/// Probability that an outage of `down` steps lasts for `h` more. Most end within hours; half of
/// those a day old last another day.
fn outage_probability(down: usize, h: usize, day: usize) -> f64 {
    let (past, ahead) = (down as f64 + 1.0, h as f64);
    (past / (past + ahead)).min(0.95) * (2.0 * day as f64 / (2.0 * day as f64 + ahead))
}

/// The distribution that is zero with probability `share` and `row` otherwise.
fn mix_with_zero(row: &mut Row, share: f64) {
    let from = *row;
    for (q, level) in row.iter_mut().zip(LEVELS) {
        *q = if level <= share {
            0.0
        } else {
            super::distribution::at_level(&from, (level - share) / (1.0 - share))
        };
    }
}

fn is_finite(row: &Row) -> bool {
    row.iter().all(|q| q.is_finite())
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len().max(1) as f64
}

fn normal_quantile(level: f64) -> f64 {
    use statrs::distribution::{ContinuousCDF, Normal};
    Normal::standard().inverse_cdf(level)
}
