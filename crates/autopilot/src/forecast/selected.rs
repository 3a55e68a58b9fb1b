//! Forecasts by what the policy says: those that were published on the log where there are any to
//! be used, else the past of the series.
//!
//! Where the log says that published bounds drift, the past answers until they hold again, if the
//! policy has both: all that is asked where they drift within a day, and what reaches further than
//! a day where they drift beyond. The past keeps a record of its own bounds. Where the policy has
//! published forecasts alone, they stay and the guard refuses.

use std::collections::BTreeMap;

use super::published::PublishedSeries;
use super::{DemandForecast, Published, Reach, Series, SeriesNames, Trailing, TrailingConfig, ppm};
use crate::policy::{ForecastRules, ForecastSource};
use crate::state::{ClusterState, ForecastOrigin};

const DAY_MS: i64 = 86_400_000;
/// Stand for what is asked of the next moment, and of more than a day.
const NEAR_MS: i64 = 0;
const FAR_MS: i64 = DAY_MS;

/// Both, and which of them answers.
#[derive(Debug, Clone)]
pub struct SelectedForecast {
    rules: ForecastRules,
    published: Published,
    past: Trailing,
}

impl SelectedForecast {
    /// Knows nothing yet. `names`: what owners and pools are called on the log.
    pub fn new(rules: ForecastRules, names: SeriesNames) -> Self {
        Self { rules, published: Published::new(names), past: Trailing::new(TrailingConfig::default()) }
    }

    /// Takes what is published.
    pub fn published(&mut self) -> &mut Published {
        &mut self.published
    }

    /// Takes the past.
    pub fn past(&mut self) -> &mut Trailing {
        &mut self.past
    }

    /// Takes what owners need now.
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

    /// Writes who answers for each owner and pool into the state, for the guard and the record.
    pub fn annotate(&self, state: &mut ClusterState) {
        state.foreseen.clear();
        for (owner, entry) in &state.owners {
            let by = |pool: &String| (pool.clone(), self.by(Series { owner, pool }));
            let pools: BTreeMap<_, _> = entry.shares.keys().map(by).collect();
            if !pools.is_empty() {
                state.foreseen.insert(owner.clone(), pools);
            }
        }
    }

    fn by(&self, of: Series<'_>) -> ForecastOrigin {
        match (self.answers(of, NEAR_MS), self.rules.source) {
            (Ok((series, told)), source) => {
                let far = self.answers(of, FAR_MS).err();
                // What the past answers rests on no bounds that drift.
                let off = if source == ForecastSource::Best { Vec::new() } else { self.published.off(told) };
                ForecastOrigin::Published { series, issued_us: told.issued_us(), off, far }
            }
            (Err(why), ForecastSource::Log) => ForecastOrigin::Nobody { why },
            (Err(why), _) => ForecastOrigin::Past { why, held_ppm: self.past.coverage(of).map(ppm) },
        }
    }

    /// The published series that answers what is asked of the next `within_ms`, or why none does.
    fn answers(&self, of: Series<'_>, within_ms: i64) -> Result<(String, &PublishedSeries), String> {
        if self.rules.source == ForecastSource::Trailing {
            return Err("the policy has it so".to_owned());
        }
        let most_age_us = self.rules.most_age_s.saturating_mul(1_000_000);
        let (named, told) = self.published.usable(of, most_age_us)?;
        let drifts =
            told.drifts(self.published.now_us()).filter(|_| self.rules.source == ForecastSource::Best);
        // It may have been issued some time ago.
        let reaches_far = within_ms.saturating_add(most_age_us / 1_000) > DAY_MS;
        match drifts {
            Some((Reach::Step | Reach::Day, _)) => {
                Err(format!("the bounds published for {named} do not hold within a day"))
            }
            Some((Reach::Week | Reach::Beyond, _)) if reaches_far => {
                Err(format!("the bounds published for {named} do not hold beyond a day"))
            }
            _ => Ok((named.to_string(), told)),
        }
    }

    /// The past, where it may answer.
    fn past_or_nothing(&self) -> Option<&Trailing> {
        (self.rules.source != ForecastSource::Log).then_some(&self.past)
    }
}

impl DemandForecast for SelectedForecast {
    fn highest_gpus(&self, of: Series<'_>, level: f64, within_ms: i64) -> Option<f64> {
        match self.answers(of, within_ms) {
            Ok((_, told)) => self.published.highest(of, told, level, within_ms),
            Err(_) => self.past_or_nothing()?.highest_gpus(of, level, within_ms),
        }
    }

    fn typical_gpus(&self, of: Series<'_>, level: f64, within_ms: i64) -> Option<f64> {
        let published = self.answers(of, within_ms).ok();
        let published = published.and_then(|(_, told)| self.published.typical(told, level, within_ms));
        published.or_else(|| self.past_or_nothing()?.typical_gpus(of, level, within_ms))
    }

    fn coverage(&self, of: Series<'_>) -> Option<f64> {
        match self.answers(of, NEAR_MS) {
            Ok((_, told)) => self.published.coverage(told),
            Err(_) => self.past_or_nothing()?.coverage(of),
        }
    }

    fn as_of_us(&self, of: Series<'_>) -> Option<i64> {
        match self.answers(of, NEAR_MS) {
            Ok((_, told)) => Some(self.published.as_of_us(of, told)),
            Err(_) => self.past_or_nothing()?.as_of_us(of),
        }
    }
}
