//! Coverage monitor: whether the bounds of published forecasts hold, per series and reach.
//!
//! Three CUSUMs of likelihood ratios (Page 1954) per reach test the promise against alternatives:
//! the truth falls outside quantiles 0.1 to 0.9 in 0.35 of the cases instead of 0.2; or in 0.08; or
//! above quantile 0.95 in 0.15 instead of 0.05. With alarms at ln 1000, false alarms are at least
//! 1,000 independent scores apart (Lorden 1971). Overlapping forecasts err together, so each score
//! counts by its share of an independent one: the geometric mean of dependent likelihood ratios has
//! no greater mean than one of them, so the bound stands.
//!
//! The end of drift is found by the reverse test, started at the alarm: the promise against the
//! alternative, at ln 300. Evidence for one is evidence against the other, so no test is surer
//! sooner. For the bound of 0.95, a score that keeps the promise adds 0.051 nats in the mean, and
//! ln 300 are 113 scores. After that the CUSUM starts at half the alarm, so that a relapse is found
//! in half the time.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// How far ahead a forecast looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reach {
    /// The next step.
    Step,
    /// Up to a day.
    Day,
    /// Up to a week.
    Week,
    /// Further.
    Beyond,
}

/// Verdict of the coverage monitor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Drift {
    /// As promised, within noise.
    #[default]
    None,
    /// The truth is above quantile 0.95 too often: do not lend on it.
    TooLow,
    /// The truth falls outside quantiles 0.1 to 0.9 too often: do not act on the bounds.
    TooNarrow,
    /// The truth falls inside too often: the bounds cost more than necessary.
    TooWide,
}

/// Coverage of one series at one reach.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Coverage {
    /// Reach of the forecasts.
    pub reach: Reach,
    /// Verdict.
    pub drift: Drift,
    /// Number of scores.
    pub scores: u64,
    /// Share inside quantiles 0.1 to 0.9; a score's weight halves in two weeks.
    pub inside80: f64,
    /// Share at or below quantile 0.95, likewise.
    pub below95: f64,
}

/// CUSUM at which drift is reported: ln 1000.
const ALARM: f64 = 6.907_755_278_982_137;
/// Reverse CUSUM at which it is over: ln 300.
const CLEAR: f64 = 5.703_782_474_656_201;
/// Half-life of a score's weight, days.
const HALF_LIFE_DAYS: f64 = 14.0;

/// CUSUM of the likelihood ratio of miss shares `then` against `promised`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
struct Cusum {
    miss: f64,
    hit: f64,
    /// Evidence for drift; during drift, evidence against it.
    sum: f64,
    is_alarmed: bool,
}

impl Cusum {
    fn new(promised: f64, then: f64) -> Self {
        Self {
            miss: (then / promised).ln(),
            hit: ((1.0 - then) / (1.0 - promised)).ln(),
            sum: 0.0,
            is_alarmed: false,
        }
    }

    fn observe(&mut self, is_miss: bool, weight: f64) {
        let ratio = weight * if is_miss { self.miss } else { self.hit };
        self.sum = (self.sum + if self.is_alarmed { -ratio } else { ratio }).max(0.0);
        if self.is_alarmed && self.sum > CLEAR {
            (self.is_alarmed, self.sum) = (false, 0.5 * ALARM);
        } else if !self.is_alarmed && self.sum > ALARM {
            (self.is_alarmed, self.sum) = (true, 0.0);
        }
    }
}

#[derive(Debug, Clone, Serialize, Deserialize)]
struct ReachMonitor {
    narrow: Cusum,
    wide: Cusum,
    low: Cusum,
    drift: Drift,
    scores: u64,
    /// Weighted counts: all, inside, below; as of step `at`.
    counts: [f64; 3],
    at: usize,
}

impl ReachMonitor {
    fn new() -> Self {
        Self {
            narrow: Cusum::new(0.2, 0.35),
            wide: Cusum::new(0.2, 0.08),
            low: Cusum::new(0.05, 0.15),
            drift: Drift::None,
            scores: 0,
            counts: [0.0; 3],
            at: 0,
        }
    }

    fn coverage(&self, reach: Reach) -> Coverage {
        let [all, inside, below] = self.counts;
        Coverage {
            reach,
            drift: self.drift,
            scores: self.scores,
            inside80: inside / all,
            below95: below / all,
        }
    }
}

/// Whether the bounds of one published forecast held.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct BoundCheck {
    /// The forecast step, as a number that rises by one per step.
    pub target: usize,
    /// Steps ahead, from 1.
    pub step: usize,
    /// Whether the truth lay between quantiles 0.1 and 0.9.
    pub inside80: bool,
    /// Whether it lay at or below quantile 0.95.
    pub below95: bool,
}

/// Monitors the published forecasts of one series.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct CoverageMonitor {
    day: usize,
    every: usize,
    /// Horizons published by reach.
    published: BTreeMap<Reach, usize>,
    reaches: BTreeMap<Reach, ReachMonitor>,
}

impl CoverageMonitor {
    /// For forecasts issued every `every` steps for each of `horizons` (steps, from 1), with `day`
    /// steps a day; both at least 1.
    pub fn new(day: usize, every: usize, horizons: &[usize]) -> Self {
        let (day, every) = (day.max(1), every.max(1));
        let mut published = BTreeMap::new();
        for horizon in horizons {
            *published.entry(reach(*horizon, day)).or_default() += 1;
        }
        Self { day, every, published, reaches: BTreeMap::new() }
    }

    /// Takes the next score, in order of target steps. Returns the coverage at its reach if the
    /// verdict changed.
    pub fn observe(&mut self, check: BoundCheck) -> Option<Coverage> {
        let reach = reach(check.step, self.day);
        // This many forecasts cover one step together, and this many horizons of a reach err
        // together.
        let overlap = (check.step as f64 / self.every as f64).max(1.0);
        let weight = 1.0 / (overlap * (*self.published.get(&reach).unwrap_or(&1)).max(1) as f64);
        let state = self.reaches.entry(reach).or_insert_with(ReachMonitor::new);
        state.narrow.observe(!check.inside80, weight);
        state.wide.observe(!check.inside80, weight);
        state.low.observe(!check.below95, weight);
        let at = check.target;
        let passed = at.saturating_sub(state.at) as f64 / self.day as f64;
        let keep = 0.5_f64.powf(passed / HALF_LIFE_DAYS);
        let seen = [true, check.inside80, check.below95];
        for (count, seen) in state.counts.iter_mut().zip(seen) {
            *count = *count * keep + f64::from(u8::from(seen));
        }
        state.at = state.at.max(at);
        state.scores += 1;
        let drift = match (state.low.is_alarmed, state.narrow.is_alarmed, state.wide.is_alarmed) {
            (true, ..) => Drift::TooLow,
            (_, true, _) => Drift::TooNarrow,
            (_, _, true) => Drift::TooWide,
            _ => Drift::None,
        };
        let changed = drift != state.drift;
        state.drift = drift;
        changed.then(|| state.coverage(reach))
    }

    /// Coverage at each reach that has scores, nearest first.
    pub fn coverage(&self) -> Vec<Coverage> {
        self.reaches.iter().map(|(reach, state)| state.coverage(*reach)).collect()
    }
}

fn reach(horizon: usize, day: usize) -> Reach {
    match horizon {
        0 | 1 => Reach::Step,
        _ if horizon <= day => Reach::Day,
        _ if horizon <= 7 * day => Reach::Week,
        _ => Reach::Beyond,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Feeds scores of one horizon. Returns the reports with the number of their score.
    fn feed(
        watch: &mut CoverageMonitor,
        step: usize,
        from: usize,
        input: &[(bool, bool)],
    ) -> Vec<(usize, Drift)> {
        (from..)
            .zip(input)
            .filter_map(|(at, (inside, below))| {
                let check = BoundCheck { target: at, step, inside80: *inside, below95: *below };
                Some((at, watch.observe(check)?.drift))
            })
            .collect()
    }

    #[test]
    fn what_holds_as_promised_is_not_spoken_of() {
        let mut watch = CoverageMonitor::new(24, 1, &[1]);
        // One in five outside, half of them above: one in ten above is twice the promise, but not
        // 0.15.
        let input: Vec<(bool, bool)> = (0..2_000).map(|at| (at % 5 != 0, at % 20 != 0)).collect();
        assert_eq!(feed(&mut watch, 1, 0, &input), vec![]);
        let now = watch.coverage()[0];
        assert_eq!((now.reach, now.scores, now.drift), (Reach::Step, 2_000, Drift::None));
        assert!((now.inside80 - 0.8).abs() < 0.01 && (now.below95 - 0.95).abs() < 0.01, "{now:?}");
    }

    #[test]
    fn drift_is_reported_once_and_cleared() {
        // ln(0.35 / 0.2) = 0.5596 a miss: the thirteenth passes 6.908. All are below quantile 0.1,
        // so none is above 0.95.
        let mut watch = CoverageMonitor::new(24, 1, &[1]);
        assert_eq!(feed(&mut watch, 1, 0, &[(false, true); 20]), vec![(12, Drift::TooNarrow)]);
        // A hit adds ln(0.8 / 0.65) = 0.2076 against it: the 28th passes 5.704. Fifty hits are too
        // many.
        let output = feed(&mut watch, 1, 20, &[(true, true); 55]);
        assert_eq!(output, vec![(20 + 27, Drift::None), (20 + 49, Drift::TooWide)]);
        // Starting at half of 6.908, a relapse is found after seven misses (0.5596 each).
        let mut watch = CoverageMonitor::new(24, 1, &[1]);
        feed(&mut watch, 1, 0, &[(false, true); 13]);
        assert_eq!(feed(&mut watch, 1, 13, &[(true, true); 28]), vec![(13 + 27, Drift::None)]);
        assert_eq!(feed(&mut watch, 1, 41, &[(false, true); 7]), vec![(41 + 6, Drift::TooNarrow)]);
        // ln(0.15 / 0.05) = 1.0986 a truth above the bound: seven.
        let mut watch = CoverageMonitor::new(24, 1, &[1]);
        assert_eq!(feed(&mut watch, 1, 0, &[(false, false); 7]), vec![(6, Drift::TooLow)]);
        // ln(0.92 / 0.8) = 0.1398 a hit: fifty.
        let mut watch = CoverageMonitor::new(24, 1, &[1]);
        assert_eq!(feed(&mut watch, 1, 0, &[(true, true); 60]), vec![(49, Drift::TooWide)]);
    }

    /// From an alarm on, a share `above` of the scores is above the bound. Returns the scores until
    /// the first clearing, and the share of `scores` for which bounds are reported to hold.
    fn after_an_alarm(seed: u64, above: f64, scores: usize) -> (Option<usize>, f64) {
        let mut cusum = Cusum::new(0.05, 0.15);
        (0..7).for_each(|_| cusum.observe(true, 1.0));
        assert!(cusum.is_alarmed);
        let (mut state, mut first, mut holds) = (seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1, None, 0);
        for at in 0..scores {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            cusum.observe(((state >> 33) as f64 / f64::from(1_u32 << 31)) < above, 1.0);
            if !cusum.is_alarmed {
                first = first.or(Some(at + 1));
                holds += 1;
            }
        }
        (first, f64::from(holds) / scores as f64)
    }

    #[test]
    fn drift_clears_in_time_and_rarely_falsely() {
        // A thousand runs with holding bounds: the mean is near ln 300 over 0.0507 nats a score, as
        // the module states.
        let (wald, seeds) = (CLEAR / (0.95 * (0.95_f64 / 0.85).ln() - 0.05 * 3.0_f64.ln()), 0..1_000);
        let times: Vec<f64> =
            seeds.clone().map(|seed| after_an_alarm(seed, 0.05, 2_000).0.unwrap() as f64).collect();
        let mean = times.iter().sum::<f64>() / times.len() as f64;
        assert!((0.5 * wald..1.1 * wald).contains(&mean), "{mean} of {wald}");
        // A thousand runs of a thousand scores (a year at the reach of a day) that are as wrong as
        // the alternative.
        let wrong: Vec<(Option<usize>, f64)> = seeds.map(|seed| after_an_alarm(seed, 0.15, 1_000)).collect();
        let returns = wrong.iter().filter(|(first, _)| first.is_some()).count();
        let share = wrong.iter().map(|(_, share)| share).sum::<f64>() / wrong.len() as f64;
        println!("over after {mean:.1} scores; wrong returns {returns} of 1000, {share:.4} of the time");
        assert!(share < 0.02, "{share}");
    }

    #[test]
    fn forecasts_that_overlap_count_as_one() {
        // A day ahead, issued every six hours, two horizons of that reach: a score is an eighth of
        // an independent one.
        let mut watch = CoverageMonitor::new(24, 6, &[12, 24]);
        assert_eq!(feed(&mut watch, 24, 0, &[(false, false); 50]), vec![]);
        assert_eq!(feed(&mut watch, 24, 50, &[(false, false); 10]), vec![(50, Drift::TooLow)]);
        // Other reaches are not affected.
        assert_eq!(watch.coverage().len(), 1);
    }

    #[test]
    fn old_scores_fade() {
        let mut watch = CoverageMonitor::new(24, 1, &[1]);
        feed(&mut watch, 1, 0, &[(false, true)]);
        feed(&mut watch, 1, 14 * 24, &[(true, true)]);
        // Half a miss and a hit.
        assert!((watch.coverage()[0].inside80 - 1.0 / 1.5).abs() < 1e-9);
    }
}
