//! Published forecasts, kept until their hour has passed and then compared with the truth; and the
//! coverage signals that result.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use tidegate_events::v1::{self, CoverageState, ForecastReach, SeriesKind};
use tidegate_events::{Event, Micros};
use tidegate_insight::forecast::{BoundCheck, Coverage, CoverageMonitor, Drift, LEVELS, Reach};

use crate::publication::{Publication, envelope, ppm, producer_name};
use crate::time::{DAY_US, HOUR_US};

/// Scores needed before coverage is reported as holding.
const MIN_SCORES: u64 = 20;

/// Bounds for one hour, thousandths of a GPU.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
struct Bounds {
    horizon: usize,
    p10: u64,
    p90: u64,
    p95: u64,
}

/// Coverage of one series at one reach, to be published.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CoverageReport {
    pub coverage: Coverage,
    pub since_us: i64,
}

/// Published forecasts of one series.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct IssuedForecasts {
    monitor: CoverageMonitor,
    /// Forecasts whose hour has not passed, by its start.
    open: BTreeMap<i64, Vec<Bounds>>,
    /// Last published state, and since when it holds.
    published: BTreeMap<Reach, (Drift, i64)>,
}

impl IssuedForecasts {
    /// Forecasts will be issued every `every_hours` for each of `horizons` (hours).
    pub fn new(every_hours: usize, horizons: &[usize]) -> Self {
        Self {
            monitor: CoverageMonitor::new(24, every_hours, horizons),
            open: BTreeMap::new(),
            published: BTreeMap::new(),
        }
    }

    /// Adds a published forecast of the hour that starts at `target_us`: `gpus_milli` has a value
    /// for each of [`LEVELS`].
    pub fn add(&mut self, target_us: i64, horizon: usize, gpus_milli: &[u64]) {
        let at = |level: f64| {
            let place = LEVELS.iter().position(|known| *known == level)?;
            gpus_milli.get(place).copied()
        };
        if let (Some(p10), Some(p90), Some(p95)) = (at(0.1), at(0.9), at(0.95)) {
            self.open.entry(target_us).or_default().push(Bounds { horizon, p10, p90, p95 });
        }
    }

    /// Scores the forecasts of the hour that starts at `start_us`; `truth_milli` is `None` where
    /// demand is not known for the whole hour. Returns the coverage to publish: changes at once,
    /// and at midnight every reach, so that readers know it is still monitored.
    pub fn close_hour(&mut self, start_us: i64, truth_milli: Option<u64>) -> Vec<CoverageReport> {
        // Hours before the series was restarted are dropped.
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
        let mut output = Vec::new();
        for coverage in self.monitor.coverage() {
            let before = self.published.get(&coverage.reach).copied();
            if coverage.drift == Drift::None && before.is_none() && coverage.scores < MIN_SCORES {
                continue;
            }
            let since_us = before.filter(|(drift, _)| *drift == coverage.drift).map(|(_, since_us)| since_us);
            if since_us.is_none() || now_us.rem_euclid(DAY_US) == 0 {
                let since_us = since_us.unwrap_or(now_us);
                self.published.insert(coverage.reach, (coverage.drift, since_us));
                output.push(CoverageReport { coverage, since_us });
            }
        }
        output
    }
}

/// The report as an event. Each reach and time has a producer name of its own, so that a report of
/// an earlier run neither changes nor blocks others.
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
        since_ms: Micros(since_us).floor_millis().0,
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

    /// Quantiles from 0 to 10,000: 0.1 is 1,000, 0.9 is 9,000, 0.95 is 9,500.
    fn row() -> Vec<u64> {
        LEVELS.iter().map(|level| (level * 1e4).round() as u64).collect()
    }

    /// Issues one forecast an hour ahead for each hour, counted from a midnight. Returns the
    /// reports, with the hour at whose end each was made.
    fn feed(issued: &mut IssuedForecasts, hours: std::ops::Range<i64>, truth: u64) -> Vec<(i64, Drift, i64)> {
        let mut out = Vec::new();
        for hour in hours {
            let start_us = DAY0_US + hour * HOUR_US;
            issued.add(start_us, 1, &row());
            for output in issued.close_hour(start_us, Some(truth)) {
                out.push((hour + 1, output.coverage.drift, (output.since_us - DAY0_US) / HOUR_US));
            }
        }
        out
    }

    #[test]
    fn holding_bounds_are_published_once_and_then_daily() {
        let mut issued = IssuedForecasts::new(1, &[1]);
        // 20 scores are enough, and the day ends after the 24th. One in five is outside, below 0.1:
        // as promised.
        let mut output = feed(&mut issued, 0..19, 5_000);
        output.extend(feed(&mut issued, 19..20, 999));
        assert_eq!(output, [(20, Drift::None, 20)]);
        assert_eq!(feed(&mut issued, 20..24, 1_000), [(24, Drift::None, 20)]);
        // 23 of 24 are inside; a score one day old counts 0.5^(1/14) of a new one.
        let coverage = issued.monitor.coverage()[0];
        assert!((coverage.inside80 - 23.0 / 24.0).abs() < 2e-3 && coverage.below95 == 1.0, "{coverage:?}");
    }

    #[test]
    fn drift_is_published_at_its_start_and_end() {
        let mut issued = IssuedForecasts::new(1, &[1]);
        // Above 0.95 each hour adds ln(0.15 / 0.05) = 1.0986; the seventh passes 6.908. Reported
        // again at midnight.
        assert_eq!(feed(&mut issued, 0..24, 9_501), [(7, Drift::TooLow, 7), (24, Drift::TooLow, 7)]);
        // Each score that holds adds ln(0.95 / 0.85) = 0.1112 against the alarm; the 52nd passes
        // 5.704. The second CUSUM (outside too often) is over by then (0.2076 each). The third
        // (inside too often) has passed its alarm by the 50th (ln(0.92 / 0.8) = 0.1398), and is
        // reported once the first is over.
        let output = feed(&mut issued, 24..24 + 54, 5_000);
        assert_eq!(output, [(48, Drift::TooLow, 7), (72, Drift::TooLow, 7), (24 + 52, Drift::TooWide, 76)]);
        // One in two outside, below 0.1, speaks against it: ln(0.2 / 0.08) = 0.9163 less 0.1398 a
        // pair, and nothing for the first score inside. The eighth pair passes 0.9163 + 7 x 0.7765
        // = 6.352; "outside too often" does not alarm by then (0.3520 a pair).
        let mut last = Vec::new();
        for pair in 0..8 {
            last.extend(feed(&mut issued, 78 + 2 * pair..79 + 2 * pair, 5_000));
            last.extend(feed(&mut issued, 79 + 2 * pair..80 + 2 * pair, 0));
        }
        assert_eq!(last.last(), Some(&(94, Drift::None, 94)), "{last:?}");
    }

    #[test]
    fn a_partly_known_hour_is_no_score() {
        let mut issued = IssuedForecasts::new(1, &[1]);
        issued.add(DAY0_US, 1, &row());
        assert_eq!(issued.close_hour(DAY0_US, None), []);
        assert_eq!(issued.monitor.coverage(), []);
        // A forecast whose hour was skipped is dropped too.
        issued.add(DAY0_US, 1, &row());
        issued.close_hour(DAY0_US + 5 * HOUR_US, Some(1));
        assert!(issued.open.is_empty());
    }
}
