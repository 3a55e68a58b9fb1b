//! Selection of the forecast by policy: published forecasts, or the series' past.
//!
//! With `source = "best"` the past comes first while its coverage is at least the policy's
//! `lend.least_coverage`: in backtests it left more to lend (docs/results/autopilot.md). Below it,
//! a fresh published forecast is used. If its bounds drift within a day, the past is used instead;
//! if they drift only further out, the past covers horizons beyond a day. With `source = "log"`
//! published forecasts are used even while they drift, and the guard refuses loans.

use std::collections::BTreeMap;

use tidegate_units::Micros;

use super::published::PublishedSeries;
use super::{DemandForecast, Published, Reach, Series, SeriesNames, Trailing, TrailingConfig, ppm};
use crate::policy::{ForecastRules, ForecastSource, Policy};
use crate::state::{ClusterState, ForecastOrigin};

const DAY_MS: i64 = 86_400_000;
/// Horizons that stand for "now" and "more than a day".
const NEAR_MS: i64 = 0;
const FAR_MS: i64 = DAY_MS;

/// Both forecasts and the rule to choose.
#[derive(Debug, Clone)]
pub struct SelectedForecast {
    rules: ForecastRules,
    /// The past comes first while at least this share of its bounds held.
    past_holds: f64,
    published: Published,
    past: Trailing,
}

impl SelectedForecast {
    /// Knows nothing yet. `names` maps owners and pools to their names on the log.
    pub fn new(policy: &Policy, names: SeriesNames) -> Self {
        Self {
            rules: policy.forecast,
            past_holds: policy.lend.least_coverage,
            published: Published::new(names),
            past: Trailing::new(TrailingConfig::default()),
        }
    }

    /// Published forecasts, to record into.
    pub fn published(&mut self) -> &mut Published {
        &mut self.published
    }

    /// Past demand, to record into.
    pub fn past(&mut self) -> &mut Trailing {
        &mut self.past
    }

    /// Learns the owners' current demand.
    pub fn observe(&mut self, state: &ClusterState) {
        self.published.observe(state);
        for (owner, entry) in &state.owners {
            for (pool, share) in &entry.shares {
                if let Some(gpus) = share.demand_gpus {
                    self.past.observe(Series { owner, pool }, state.at_us, f64::from(gpus));
                }
            }
        }
    }

    /// Writes the origin of each owner's forecast into the state, for the guard and the record.
    pub fn annotate(&self, state: &mut ClusterState) {
        state.forecast_origins.clear();
        for (owner, entry) in &state.owners {
            let by = |pool: &String| (pool.clone(), self.by(Series { owner, pool }));
            let pools: BTreeMap<_, _> = entry.shares.keys().map(by).collect();
            if !pools.is_empty() {
                state.forecast_origins.insert(owner.clone(), pools);
            }
        }
    }

    fn by(&self, of: Series<'_>) -> ForecastOrigin {
        if let Some(past) = self.past_that_holds(of) {
            let why = "it comes first while its bounds hold".to_owned();
            return ForecastOrigin::Past { why, held_ppm: past.coverage(of).map(ppm) };
        }
        match (self.answers(of, NEAR_MS), self.rules.source) {
            (Ok((series, issue)), source) => {
                let far = self.answers(of, FAR_MS).err();
                // What the past answers does not depend on drifting bounds.
                let off = if source == ForecastSource::Best { Vec::new() } else { self.published.off(issue) };
                ForecastOrigin::Published { series, issued_us: issue.issued_us(), off, far }
            }
            (Err(why), ForecastSource::Log) => ForecastOrigin::Nobody { why },
            (Err(why), _) => ForecastOrigin::Past { why, held_ppm: self.past.coverage(of).map(ppm) },
        }
    }

    /// The published series that answers for the next `within_ms`, or why none does.
    fn answers(&self, of: Series<'_>, within_ms: i64) -> Result<(String, &PublishedSeries), String> {
        if self.rules.source == ForecastSource::Trailing {
            return Err("the policy has it so".to_owned());
        }
        let most_age_us = Micros::from_secs(self.rules.most_age_s).0;
        let (named, issue) = self.published.usable(of, most_age_us)?;
        let drifts =
            issue.drifts(self.published.now_us()).filter(|_| self.rules.source == ForecastSource::Best);
        // It may have been issued some time ago.
        let reaches_far = within_ms.saturating_add(Micros(most_age_us).floor_millis().0) > DAY_MS;
        match drifts {
            Some((Reach::Step | Reach::Day, _)) => {
                Err(format!("the bounds published for {named} do not hold within a day"))
            }
            Some((Reach::Week | Reach::Beyond, _)) if reaches_far => {
                Err(format!("the bounds published for {named} do not hold beyond a day"))
            }
            _ => Ok((named.to_string(), issue)),
        }
    }

    /// The past, if it comes first.
    fn past_that_holds(&self, of: Series<'_>) -> Option<&Trailing> {
        let holds = |past: &&Trailing| past.coverage(of).is_some_and(|share| share >= self.past_holds);
        (self.rules.source == ForecastSource::Best).then_some(&self.past).filter(holds)
    }

    /// The past, if the policy allows it.
    fn past_or_nothing(&self) -> Option<&Trailing> {
        (self.rules.source != ForecastSource::Log).then_some(&self.past)
    }
}

impl DemandForecast for SelectedForecast {
    fn highest_gpus(&self, of: Series<'_>, level: f64, within_ms: i64) -> Option<f64> {
        let past = self.past_that_holds(of);
        if let Some(bound) = past.and_then(|past| past.highest_gpus(of, level, within_ms)) {
            return Some(bound);
        }
        match self.answers(of, within_ms) {
            Ok((_, issue)) => self.published.highest(of, issue, level, within_ms),
            Err(_) => self.past_or_nothing()?.highest_gpus(of, level, within_ms),
        }
    }

    fn typical_gpus(&self, of: Series<'_>, level: f64, within_ms: i64) -> Option<f64> {
        let published = self.answers(of, within_ms).ok();
        let published = published.and_then(|(_, issue)| self.published.typical(issue, level, within_ms));
        published.or_else(|| self.past_or_nothing()?.typical_gpus(of, level, within_ms))
    }

    fn coverage(&self, of: Series<'_>) -> Option<f64> {
        if let Some(past) = self.past_that_holds(of) {
            return past.coverage(of);
        }
        match self.answers(of, NEAR_MS) {
            Ok((_, issue)) => self.published.coverage(issue),
            Err(_) => self.past_or_nothing()?.coverage(of),
        }
    }

    fn as_of_us(&self, of: Series<'_>) -> Option<i64> {
        if let Some(past) = self.past_that_holds(of) {
            return past.as_of_us(of);
        }
        match self.answers(of, NEAR_MS) {
            Ok((_, issue)) => Some(self.published.as_of_us(of, issue)),
            Err(_) => self.past_or_nothing()?.as_of_us(of),
        }
    }
}
