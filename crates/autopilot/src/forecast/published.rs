//! Forecasts published on the log, converted to the bounds the autopilot needs.
//!
//! Published are quantiles of mean demand for each hour ahead. Needed is a bound that demand stays
//! below at every instant of a period. It is the largest of the hours' bounds, each made in four
//! steps:
//!
//! - *Level.* Any of k hours may exceed its bound, so each is asked at 1 − (1 − q) / 2k, which
//!   covers all of them whatever their dependence (Bonferroni). The 2 covers the highest instant
//!   within an hour: a walk with symmetric steps exceeds x at most twice as often as its end does
//!   (Lévy's inequality).
//! - *Spread.* The mean of the h-th hour of such a walk has variance h − 2/3 while its end has h,
//!   so an end is at most √3 times as far from the median as the mean is.
//! - *Tail.* Beyond the highest published level the tail is exponential through the two highest
//!   levels (as in Park et al. 2022).
//! - *Level shift.* A forecast issued hours ago does not know what happened since. All bounds rise
//!   by the amount that demand now exceeds the bound of this hour, and none is below current
//!   demand.

use std::collections::BTreeMap;

use tidegate_insight::forecast::{Drift, Reach};
use tidegate_units::{Micros, Millis};

use super::{BySeries, Series, quantile};
use crate::state::{BoundsDrift, ClusterState, OwnerName, PoolName};

/// Calibration reports come daily. After two days without one it counts as unknown.
const SILENT_US: i64 = 2 * 86_400_000_000;
/// Levels sampled per hour when drawing a time from many hours.
const DRAWN: u32 = 100;

/// Name of a published series.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum SeriesName {
    /// The whole cluster.
    Total,
    /// A pool, by its name on the log.
    Pool(String),
    /// A team, by its name on the log.
    Team(String),
}

impl std::fmt::Display for SeriesName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Total => write!(f, "TOTAL total"),
            Self::Pool(name) => write!(f, "POOL {name}"),
            Self::Team(name) => write!(f, "TEAM {name}"),
        }
    }
}

/// Names of owners and pools on the log, where they differ.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SeriesNames {
    /// Team of an owner. `None`: the owner spans several teams, so no series is its own.
    pub teams: BTreeMap<OwnerName, Option<String>>,
    /// Log name of a pool.
    pub pools: BTreeMap<PoolName, String>,
}

/// One step of a forecast: its length, and demand in thousandths of a GPU by level in millionths,
/// both ascending.
#[derive(Debug, Clone, PartialEq)]
struct Step {
    step_us: i64,
    row: Vec<(u32, u64)>,
}

/// Calibration report of published bounds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Calibration {
    /// When it was issued.
    pub at_us: i64,
    /// Kind of drift.
    pub drift: Drift,
    /// Since when.
    pub since_us: i64,
    /// Share of outcomes between quantiles 0.1 and 0.9, millionths.
    pub inside80_ppm: u32,
    /// Share of outcomes at or below quantile 0.95, millionths.
    pub below95_ppm: u32,
}

/// A published series.
#[derive(Debug, Clone, Default)]
pub(super) struct PublishedSeries {
    issued_us: i64,
    /// Steps of the newest issue, by start.
    steps: BTreeMap<i64, Step>,
    standing: BTreeMap<Reach, Calibration>,
}

/// Published forecasts, and demand observed since.
#[derive(Debug, Clone)]
pub struct Published {
    names: SeriesNames,
    series: BTreeMap<SeriesName, PublishedSeries>,
    /// Series that cover an owner's demand for a pool, best first.
    of: BySeries<Vec<SeriesName>>,
    /// Newest observed demand.
    seen: BySeries<(i64, f64)>,
    now_us: i64,
}

impl Published {
    /// No forecasts yet.
    pub fn new(names: SeriesNames) -> Self {
        let (series, of, seen) = (BTreeMap::new(), BySeries::new(), BySeries::new());
        Self { names, series, of, seen, now_us: 0 }
    }

    /// Records a step of the issue at `issued_us`: mean demand from `target_us` for `step_us`.
    /// `row` holds thousandths of a GPU by level in millionths, both ascending. Ignores issues
    /// older than the newest.
    pub fn record_step(
        &mut self,
        of: SeriesName,
        issued_us: i64,
        target_us: i64,
        step_us: i64,
        row: Vec<(u32, u64)>,
    ) {
        if row.is_empty() || step_us <= 0 {
            return;
        }
        let issue = self.series.entry(of).or_default();
        if issued_us > issue.issued_us {
            (issue.issued_us, issue.steps) = (issued_us, BTreeMap::new());
        }
        if issued_us == issue.issued_us {
            issue.steps.insert(target_us, Step { step_us, row });
        }
    }

    /// Records a calibration report; the newest counts.
    pub fn record_calibration(&mut self, of: SeriesName, reach: Reach, standing: Calibration) {
        let before = self.series.entry(of).or_default().standing.entry(reach).or_insert(standing);
        if standing.at_us >= before.at_us {
            *before = standing;
        }
    }

    /// Records what owners have and need now. A team's series answers for an owner with a single
    /// pool, a pool's series for the pool's only owner. Otherwise the series covers more than is
    /// asked, and is not used.
    pub(super) fn observe(&mut self, state: &ClusterState) {
        self.now_us = state.at_us;
        self.of = BySeries::new();
        let owners = state.owners.iter().filter(|(_, owner)| !owner.shares.is_empty());
        let mut owners_of: BTreeMap<&PoolName, u32> = BTreeMap::new();
        for pool in owners.clone().flat_map(|(_, owner)| owner.shares.keys()) {
            *owners_of.entry(pool).or_default() += 1;
        }
        for (owner, entry) in owners {
            for (pool, share) in &entry.shares {
                let of = Series { owner, pool };
                if let Some(gpus) = share.demand_gpus {
                    *self.seen.entry(of, || (0, 0.0)) = (state.at_us, f64::from(gpus));
                }
                let mut named = Vec::new();
                if entry.shares.len() == 1 {
                    let team = self.names.teams.get(owner).cloned().unwrap_or_else(|| Some(owner.clone()));
                    named.extend(team.map(SeriesName::Team));
                }
                if owners_of[pool] == 1 {
                    let name = self.names.pools.get(pool).unwrap_or(pool);
                    named.push(SeriesName::Pool(name.clone()));
                    named.extend((owners_of.len() == 1).then_some(SeriesName::Total));
                }
                *self.of.entry(of, Vec::new) = named;
            }
        }
    }

    /// The usable series, or why there is none.
    pub(super) fn usable(
        &self,
        of: Series<'_>,
        most_age_us: i64,
    ) -> Result<(&SeriesName, &PublishedSeries), String> {
        let named = self.of.get(of).filter(|named| !named.is_empty());
        let named = named.ok_or("no published series is this owner's demand for this pool alone")?;
        let mut why = None;
        for name in named {
            let judged = match self.series.get(name).filter(|issue| !issue.steps.is_empty()) {
                None => Err(format!("no forecast of {name} was published")),
                Some(issue) if self.now_us - issue.issued_us > most_age_us => Err(format!(
                    "the newest forecast of {name} is older than {} s",
                    Micros(most_age_us).floor_secs()
                )),
                Some(issue) if issue.standing(Reach::Day, self.now_us).is_none() => {
                    Err(format!("nothing was published on whether the bounds of {name} hold"))
                }
                Some(issue) => Ok((name, issue)),
            };
            match judged {
                Ok(found) => return Ok(found),
                Err(found) => why = why.or(Some(found)),
            }
        }
        Err(why.unwrap_or_default())
    }

    pub(super) fn now_us(&self) -> i64 {
        self.now_us
    }

    /// Time of the newest observed demand; otherwise of the issue.
    pub(super) fn as_of_us(&self, of: Series<'_>, issue: &PublishedSeries) -> i64 {
        self.seen.get(of).map_or(issue.issued_us, |(at_us, _)| *at_us)
    }

    /// The bound described at the top of the module. `None`: beyond the published horizon.
    pub(super) fn highest(
        &self,
        of: Series<'_>,
        issue: &PublishedSeries,
        level: f64,
        within_ms: i64,
    ) -> Option<f64> {
        let starts = issue.starts(self.now_us, within_ms)?;
        let each = 1.0 - (1.0 - level.clamp(0.0, 1.0)) / (2.0 * starts.len() as f64);
        let bound = |start: i64| {
            let (before, after, _) = issue.around(start)?;
            let of_step = |step: &Step| {
                let median = step.at(0.5);
                median + (step.at(each) - median).max(0.0) * 3.0f64.sqrt()
            };
            Some(of_step(before).max(of_step(after)))
        };
        let now = bound(*starts.first()?)?;
        let highest = starts.iter().map(|start| bound(*start)).try_fold(now, |most, b| Some(most.max(b?)))?;
        let seen = self.seen.get(of).map_or(0.0, |(_, gpus)| *gpus);
        Some((highest + (seen - now).max(0.0)).max(seen))
    }

    /// Quantile `level` of the mean of an hour drawn from those ahead.
    pub(super) fn typical(&self, issue: &PublishedSeries, level: f64, within_ms: i64) -> Option<f64> {
        let starts = issue.starts(self.now_us, within_ms)?;
        let mut values = Vec::with_capacity(starts.len() * DRAWN as usize);
        for start in starts {
            let (before, after, share) = issue.around(start)?;
            values.extend((0..DRAWN).map(|draw| {
                let level = (f64::from(draw) + 0.5) / f64::from(DRAWN);
                before.at(level) + share * (after.at(level) - before.at(level))
            }));
        }
        quantile(&mut values, level)
    }

    /// Share of outcomes at or below quantile 0.95, 0 to 1: the lower of the next hour's and the
    /// day's.
    pub(super) fn coverage(&self, issue: &PublishedSeries) -> Option<f64> {
        let said =
            [Reach::Step, Reach::Day].into_iter().filter_map(|reach| issue.standing(reach, self.now_us));
        said.map(|standing| standing.below95_ppm).min().map(|ppm| f64::from(ppm) / 1e6)
    }

    /// Bounds that outcomes have shown to be too low or too narrow. Bounds that are too wide are
    /// safe.
    pub(super) fn off(&self, issue: &PublishedSeries) -> Vec<BoundsDrift> {
        let off =
            issue.standing.keys().filter_map(|reach| Some((*reach, issue.standing(*reach, self.now_us)?)));
        off.filter(|(_, standing)| is_dangerous(standing.drift))
            .map(|(reach, standing)| BoundsDrift {
                reach,
                drift: standing.drift,
                since_us: standing.since_us,
                inside80_ppm: standing.inside80_ppm,
                below95_ppm: standing.below95_ppm,
            })
            .collect()
    }
}

fn is_dangerous(drift: Drift) -> bool {
    matches!(drift, Drift::TooLow | Drift::TooNarrow)
}

impl PublishedSeries {
    /// Dangerous drift up to a day ahead, otherwise further ahead.
    pub(super) fn drifts(&self, now_us: i64) -> Option<(Reach, Drift)> {
        let drift = |reach: &Reach| Some((*reach, self.standing(*reach, now_us)?.drift));
        self.standing.keys().filter_map(drift).find(|(_, drift)| is_dangerous(*drift))
    }

    pub(super) fn issued_us(&self) -> i64 {
        self.issued_us
    }

    fn standing(&self, reach: Reach, now_us: i64) -> Option<Calibration> {
        self.standing.get(&reach).copied().filter(|standing| now_us - standing.at_us <= SILENT_US)
    }

    /// Starts of the steps touched from `now_us` on. `None`: not covered by the issue.
    fn starts(&self, now_us: i64, within_ms: i64) -> Option<Vec<i64>> {
        let (first_us, step) = self.steps.first_key_value()?;
        let (last_us, _) = self.steps.last_key_value()?;
        let step_us = step.step_us;
        let from_us = first_us + (now_us - first_us).div_euclid(step_us) * step_us;
        let to_us = now_us.saturating_add(Millis(within_ms.max(1)).to_micros().0);
        // Limited to the issue, so that the list is no longer than it.
        let inside = from_us >= *first_us && to_us <= last_us + step_us;
        inside.then(|| (0..).map(|n| from_us + n * step_us).take_while(|start| *start < to_us).collect())
    }

    /// Published steps at or around `start_us`, and its position between them, 0 to 1.
    fn around(&self, start_us: i64) -> Option<(&Step, &Step, f64)> {
        let (before_us, before) = self.steps.range(..=start_us).next_back()?;
        let (after_us, after) = self.steps.range(start_us..).next()?;
        let gap_us = (after_us - before_us) as f64;
        let share = if gap_us > 0.0 { (start_us - before_us) as f64 / gap_us } else { 0.0 };
        Some((before, after, share))
    }
}

impl Step {
    /// Quantile `level`, GPUs: linear between published levels, constant below the lowest,
    /// exponential tail above the highest.
    fn at(&self, level: f64) -> f64 {
        let gpus = |at: usize| self.row[at].1 as f64 / 1e3;
        let level_at = |at: usize| f64::from(self.row[at].0) / 1e6;
        let (last, above) =
            (self.row.len() - 1, self.row.partition_point(|(ppm, _)| f64::from(*ppm) / 1e6 < level));
        if above == 0 {
            return gpus(0);
        }
        if above <= last {
            let (low, high) = (level_at(above - 1), level_at(above));
            return gpus(above - 1) + (level - low) / (high - low) * (gpus(above) - gpus(above - 1));
        }
        if last == 0 {
            return gpus(0);
        }
        // Q(p) = Q(p2) + b ln((1 - p2) / (1 - p)), with b from Q(p1), capped at one in a million.
        let (p1, p2) = (level_at(last - 1), level_at(last));
        let rate = (gpus(last) - gpus(last - 1)) / ((1.0 - p1) / (1.0 - p2)).ln();
        gpus(last) + rate * ((1.0 - p2) / (1.0 - level).max(1e-6)).ln().max(0.0)
    }
}

#[cfg(test)]
mod tests;
