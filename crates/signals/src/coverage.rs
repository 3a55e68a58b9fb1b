//! Forecasts that were issued, each kept until its hour is over and then held against what was; and
//! what is said of how they hold.

use std::collections::BTreeMap;

use tidegate_events::Event;
use tidegate_events::v1::{self, CoverageState, ForecastReach, SeriesKind};
use tidegate_insight::forecast::{BoundCheck, Coverage, CoverageMonitor, Drift, LEVELS, Reach};

use crate::publication::{Publication, envelope, ppm, producer_name};
use crate::time::{DAY_US, HOUR_US};

/// Scores before it is said that bounds hold.
const MIN_SCORES: u64 = 20;

/// Bounds of one hour, thousandths of a GPU.
#[derive(Debug, Clone, Copy)]
struct Bounds {
    horizon: usize,
    p10: u64,
    p90: u64,
    p95: u64,
}

/// What is said of one reach of a series.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CoverageReport {
    pub coverage: Coverage,
    pub since_us: i64,
}

/// The forecasts of one series that were issued.
#[derive(Debug, Clone)]
pub struct IssuedForecasts {
    monitor: CoverageMonitor,
    /// Those whose hour is not over, by its start.
    open: BTreeMap<i64, Vec<Bounds>>,
    /// What was said last, and since when it is so.
    published: BTreeMap<Reach, (Drift, i64)>,
}

impl IssuedForecasts {
    /// None yet; they will be issued every `every_hours` for each of `horizons`.
    pub fn new(every_hours: usize, horizons: &[usize]) -> Self {
        Self {
            monitor: CoverageMonitor::new(24, every_hours, horizons),
            open: BTreeMap::new(),
            published: BTreeMap::new(),
        }
    }

    /// `gpus_milli` was published, a value for each of [`LEVELS`], for the hour from `target_us`
    /// on.
    pub fn add(&mut self, target_us: i64, horizon: usize, gpus_milli: &[u64]) {
        let at = |level: f64| {
            let place = LEVELS.iter().position(|known| *known == level)?;
            gpus_milli.get(place).copied()
        };
        if let (Some(p10), Some(p90), Some(p95)) = (at(0.1), at(0.9), at(0.95)) {
            self.open.entry(target_us).or_default().push(Bounds { horizon, p10, p90, p95 });
        }
    }

    /// The hour from `start_us` on is over; `None`: nobody knows its demand whole. Tells what is to
    /// be said of how bounds hold: what changed, and at midnight how everything stands, so that
    /// whoever reads it knows that it is still looked at.
    pub fn close_hour(&mut self, start_us: i64, truth_milli: Option<u64>) -> Vec<CoverageReport> {
        // Hours of before the series began anew are not asked for any more.
        let later = self.open.split_off(&(start_us + 1));
        let mut bounds = std::mem::replace(&mut self.open, later).remove(&start_us).unwrap_or_default();
        bounds.sort_by_key(|bounds| bounds.horizon);
        let target = usize::try_from(start_us.div_euclid(HOUR_US)).unwrap_or(0);
        for Bounds { horizon, p10, p90, p95 } in bounds {
            let Some(truth) = truth_milli else { continue };
            let (inside80, below95) = ((p10..=p90).contains(&truth), truth <= p95);
            self.monitor.observe(BoundCheck { target, step: horizon, inside80, below95 });
        }
        let now_us = start_us + HOUR_US;
        let mut said = Vec::new();
        for coverage in self.monitor.coverage() {
            let before = self.published.get(&coverage.reach).copied();
            if coverage.drift == Drift::None && before.is_none() && coverage.scores < MIN_SCORES {
                continue;
            }
            let since_us = before.filter(|(drift, _)| *drift == coverage.drift).map(|(_, since_us)| since_us);
            if since_us.is_none() || now_us.rem_euclid(DAY_US) == 0 {
                let since_us = since_us.unwrap_or(now_us);
                self.published.insert(coverage.reach, (coverage.drift, since_us));
                said.push(CoverageReport { coverage, since_us });
            }
        }
        said
    }
}

/// What is published of it. Each reach and time is a publication of its own, so that what an
/// earlier life of the operator said stands and keeps nothing else from being said.
pub fn publication(
    cluster: &str,
    (kind, name): (SeriesKind, &str),
    model: &str,
    at_us: i64,
    standing: CoverageReport,
) -> Publication {
    let CoverageReport { coverage, since_us } = standing;
    let reach = match coverage.reach {
        Reach::Step => ForecastReach::NextStep,
        Reach::Day => ForecastReach::WithinDay,
        Reach::Week => ForecastReach::WithinWeek,
        Reach::Beyond => ForecastReach::BeyondWeek,
    };
    let state = match coverage.drift {
        Drift::None => CoverageState::Holds,
        Drift::TooLow => CoverageState::TooLow,
        Drift::TooNarrow => CoverageState::TooNarrow,
        Drift::TooWide => CoverageState::TooWide,
    };
    let about =
        [model, cluster, "COVERAGE", kind.as_str_name(), name, reach.as_str_name(), &at_us.to_string()];
    let source = producer_name(&about);
    let signal = v1::CoverageSignal {
        envelope: envelope(cluster, &source, at_us, 0),
        kind: kind.into(),
        name: name.into(),
        reach: reach.into(),
        state: state.into(),
        since_ms: since_us.div_euclid(1_000),
        scores: coverage.scores,
        inside80_ppm: ppm(coverage.inside80),
        below95_ppm: ppm(coverage.below95),
        model: model.into(),
    };
    Publication { source, events: vec![Event::Coverage(signal)] }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY0_US: i64 = 20_000 * DAY_US;

    /// Rows of quantiles from 0 to 10,000: 0.1 is 1,000, 0.9 is 9,000, 0.95 is 9,500.
    fn row() -> Vec<u64> {
        LEVELS.iter().map(|level| (level * 1e4).round() as u64).collect()
    }

    /// One forecast an hour ahead for each hour; hours are numbered from a midnight on. Tells at
    /// which hour's end what was said.
    fn feed(issued: &mut IssuedForecasts, hours: std::ops::Range<i64>, truth: u64) -> Vec<(i64, Drift, i64)> {
        let mut out = Vec::new();
        for hour in hours {
            let start_us = DAY0_US + hour * HOUR_US;
            issued.add(start_us, 1, &row());
            for said in issued.close_hour(start_us, Some(truth)) {
                out.push((hour + 1, said.coverage.drift, (said.since_us - DAY0_US) / HOUR_US));
            }
        }
        out
    }

    #[test]
    fn that_bounds_hold_is_said_once_and_once_a_day() {
        let mut issued = IssuedForecasts::new(1, &[1]);
        // 20 scores are enough, and the day is over after the 24th. One in five is outside, below
        // 0.1: as promised.
        let mut said = feed(&mut issued, 0..19, 5_000);
        said.extend(feed(&mut issued, 19..20, 999));
        assert_eq!(said, [(20, Drift::None, 20)]);
        assert_eq!(feed(&mut issued, 20..24, 1_000), [(24, Drift::None, 20)]);
        // 23 of 24 inside; those a day old count for 0.5^(1/14) of a new one.
        let coverage = issued.monitor.coverage()[0];
        assert!((coverage.inside80 - 23.0 / 24.0).abs() < 2e-3 && coverage.below95 == 1.0, "{coverage:?}");
    }

    #[test]
    fn drift_is_said_when_it_begins_and_when_it_is_over() {
        let mut issued = IssuedForecasts::new(1, &[1]);
        // Above 0.95 each hour: ln(0.15 / 0.05) = 1.0986 a score, 6.908 are passed by the seventh;
        // said again at midnight.
        assert_eq!(feed(&mut issued, 0..24, 9_501), [(7, Drift::TooLow, 7), (24, Drift::TooLow, 7)]);
        // Each that holds speaks against it with ln(0.95 / 0.85) = 0.1112: 5.704 are passed by the
        // 52nd. The other sum, that they are outside too often, is over by then (0.2076 each), and
        // the third one, that they are inside too often, has passed its alarm by the 50th (ln(0.92
        // / 0.8) = 0.1398), and is said when the first is over.
        let said = feed(&mut issued, 24..24 + 54, 5_000);
        assert_eq!(said, [(48, Drift::TooLow, 7), (72, Drift::TooLow, 7), (24 + 52, Drift::TooWide, 76)]);
        // One in two outside, below 0.1, speaks against that: ln(0.2 / 0.08) = 0.9163 less 0.1398 a
        // pair, and before it the first inside nothing. 0.9163 + 7 x 0.7765 = 6.352 are passed by
        // the eighth pair, by then outside too often is not (0.3520 a pair).
        let mut last = Vec::new();
        for pair in 0..8 {
            last.extend(feed(&mut issued, 78 + 2 * pair..79 + 2 * pair, 5_000));
            last.extend(feed(&mut issued, 79 + 2 * pair..80 + 2 * pair, 0));
        }
        assert_eq!(last.last(), Some(&(94, Drift::None, 94)), "{last:?}");
    }

    #[test]
    fn an_hour_nobody_knows_whole_is_no_score() {
        let mut issued = IssuedForecasts::new(1, &[1]);
        issued.add(DAY0_US, 1, &row());
        assert_eq!(issued.close_hour(DAY0_US, None), []);
        assert_eq!(issued.monitor.coverage(), []);
        // Nor is one that was never asked for; it does not wait for ever.
        issued.add(DAY0_US, 1, &row());
        issued.close_hour(DAY0_US + 5 * HOUR_US, Some(1));
        assert!(issued.open.is_empty());
    }
}
