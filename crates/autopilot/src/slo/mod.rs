//! Service level objectives of the autopilot: promises kept in time, actions verified, plans made
//! in time, with multi-window burn-rate alerts.
//!
//! Pure arithmetic on the journal. Windows and rates follow the SRE Workbook (Google, 2018),
//! chapter 5, "Alerting on SLOs", method 6: an alert fires if the error budget burns at a rate or
//! faster in a long window and in a short one, a twelfth of it. With few events a single failure is
//! a large share, so an alert also needs a minimum number of failures (same chapter, "Low-traffic
//! services").

mod tally;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

pub use tally::{Counts, Cycles, Tallies};

use crate::action::Kind;
pub use crate::policy::Objective;
use crate::policy::SloRules;

const MINUTE_US: i64 = 60_000_000;
const HOUR_US: i64 = 60 * MINUTE_US;
const DAY_US: i64 = 24 * HOUR_US;

/// What is counted: an objective, and the kind of decision if it is per kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Series {
    /// The objective.
    pub objective: Objective,
    /// The kind of decision.
    pub kind: Option<Kind>,
}

impl Series {
    /// Kind of decision that loses trust while this budget burns fast. For promises it is lending,
    /// because reclaiming must go on.
    pub fn concerns(&self) -> Option<Kind> {
        match self.objective {
            Objective::Promises => Some(Kind::Lend),
            Objective::Verified => self.kind,
            Objective::Cycles => None,
        }
    }
}

/// Speed at which an error budget burns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Burn {
    /// 14.4 times the allowed rate over one hour and five minutes: 2 % of a month's budget in an
    /// hour.
    Fast,
    /// 6 times the allowed rate over six hours and half an hour: 5 % in six hours.
    Slow,
    /// The allowed rate over three days and six hours: 10 % in three days.
    Leak,
}

impl Burn {
    /// All, fastest first.
    pub const ALL: [Self; 3] = [Self::Fast, Self::Slow, Self::Leak];

    /// Long window, short window (µs), and rate in thousandths.
    fn windows(self) -> (i64, i64, u64) {
        match self {
            Self::Fast => (HOUR_US, 5 * MINUTE_US, 14_400),
            Self::Slow => (6 * HOUR_US, 30 * MINUTE_US, 6_000),
            Self::Leak => (3 * DAY_US, 6 * HOUR_US, 1_000),
        }
    }

    /// Severity: `page` wakes somebody, `ticket` waits for the morning.
    pub fn severity(self) -> &'static str {
        match self {
            Self::Fast | Self::Slow => "page",
            Self::Leak => "ticket",
        }
    }

    /// Spelling in tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Fast => "fast",
            Self::Slow => "slow",
            Self::Leak => "leak",
        }
    }
}

/// Begin or end of an alert.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Alert {
    /// What it is about.
    pub series: Series,
    /// Speed.
    pub burn: Burn,
    /// `true`: it begins. `false`: it ends.
    pub firing: bool,
    /// Since when it fires.
    pub since_us: i64,
    /// Burn rate in the long window over the allowed rate, thousandths.
    pub burn_rate_milli: u64,
    /// Reason, with numbers.
    pub why: String,
}

/// Status of an objective.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ObjectiveStatus {
    /// What it is about.
    pub series: Series,
    /// The objective, millionths.
    pub objective_ppm: u64,
    /// Days in the window.
    pub window_days: u32,
    /// Good and bad events in the window.
    pub counts: Counts,
    /// Share of good events, millionths. `None`: no events.
    pub attained_ppm: Option<u64>,
    /// Share of the error budget left, millionths. Negative: overspent. `None`: no events.
    pub budget_left_ppm: Option<i64>,
    /// Burn rate of the last hour, thousandths. `None`: no events.
    pub burn_rate_milli: Option<u64>,
    /// Firing alerts, fastest first.
    pub burning: Vec<Burn>,
}

/// Counts and firing alerts.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Slo {
    /// What was counted.
    pub tallies: Tallies,
    #[serde(with = "crate::pairs")]
    firing: BTreeMap<(Series, Burn), Alert>,
    alerts: u64,
}

impl Slo {
    /// Applies an alert from the journal.
    pub fn fold(&mut self, alert: Alert) {
        self.alerts += 1;
        let key = (alert.series, alert.burn);
        match alert.firing {
            true => drop(self.firing.insert(key, alert)),
            false => drop(self.firing.remove(&key)),
        }
    }

    /// Number of recorded alerts, beginnings and ends.
    pub fn alerts(&self) -> u64 {
        self.alerts
    }

    /// Firing alerts.
    pub fn firing(&self) -> impl Iterator<Item = &Alert> {
        self.firing.values()
    }

    /// Kinds of decision to lower by one mode now, with the alert behind it.
    pub fn steps_down<'a>(&'a self, rules: &'a SloRules) -> impl Iterator<Item = (Kind, &'a Alert)> {
        let fast = self.firing.values().filter(|alert| rules.step_down && alert.burn == Burn::Fast);
        fast.filter_map(|alert| Some((alert.series.concerns()?, alert)))
    }

    /// Alerts that begin or end at `now_us`. An alert begins if both windows burn fast enough and
    /// hold enough failures. It ends once the long window no longer does, so that five quiet
    /// minutes do not restore trust.
    pub fn due(&self, rules: &SloRules, now_us: i64) -> Vec<Alert> {
        let mut due = Vec::new();
        let mut counted = self.tallies.series();
        counted.extend(self.firing.keys().map(|(series, _)| *series));
        for series in counted {
            let objective_ppm = rules.objective_ppm(series.objective);
            for burn in Burn::ALL {
                let (long_us, short_us, rate_milli) = burn.windows();
                let counts = |window_us| self.tallies.counts(series, now_us - window_us, now_us);
                let (long, short) = (counts(long_us), counts(short_us));
                let rate = |counts: Counts| objective_ppm.and_then(|ppm| burn_rate_milli(counts, ppm));
                let burns = |counts: Counts| rate(counts).is_some_and(|rate| rate >= rate_milli);
                let alert = self.firing.get(&(series, burn));
                let firing = match alert {
                    Some(_) => burns(long),
                    None => burns(long) && burns(short) && long.bad >= u64::from(rules.least_bad.max(1)),
                };
                if firing == alert.is_some() {
                    continue;
                }
                let burn_rate_milli = rate(long).unwrap_or(0);
                let since_us = alert.map_or(now_us, |alert| alert.since_us);
                let why = why(series, objective_ppm, burn_rate_milli, long, long_us);
                due.push(Alert { series, burn, firing, since_us, burn_rate_milli, why });
            }
        }
        due
    }

    /// Status of each objective at `now_us`.
    pub fn status(&self, rules: &SloRules, now_us: i64) -> Vec<ObjectiveStatus> {
        let of = |series: Series| {
            let objective_ppm = rules.objective_ppm(series.objective)?;
            let counts = |window_us| self.tallies.counts(series, now_us - window_us, now_us);
            let whole = counts(i64::from(rules.window_days) * DAY_US);
            Some(ObjectiveStatus {
                series,
                objective_ppm,
                window_days: rules.window_days,
                counts: whole,
                attained_ppm: (whole.all() > 0).then(|| whole.good * 1_000_000 / whole.all()),
                budget_left_ppm: budget_left_ppm(whole, objective_ppm),
                burn_rate_milli: burn_rate_milli(counts(HOUR_US), objective_ppm),
                burning: Burn::ALL
                    .into_iter()
                    .filter(|burn| self.firing.contains_key(&(series, *burn)))
                    .collect(),
            })
        };
        self.tallies.series().into_iter().filter_map(of).collect()
    }
}

/// Failure rate over the allowed failure rate, thousandths. `None`: no events.
fn burn_rate_milli(counts: Counts, objective_ppm: u64) -> Option<u64> {
    let allowed_ppm = 1_000_000u64.checked_sub(objective_ppm).filter(|allowed| *allowed > 0)?;
    let all = counts.all();
    (all > 0)
        .then(|| u128::from(counts.bad) * 1_000_000_000 / (u128::from(all) * u128::from(allowed_ppm)))
        .map(fits)
}

/// 1 minus failures over allowed failures, millionths. `None`: no events.
fn budget_left_ppm(counts: Counts, objective_ppm: u64) -> Option<i64> {
    let allowed_ppm = 1_000_000u64.checked_sub(objective_ppm).filter(|allowed| *allowed > 0)?;
    let all = counts.all();
    let used = (all > 0)
        .then(|| u128::from(counts.bad) * 1_000_000_000_000 / (u128::from(all) * u128::from(allowed_ppm)))?;
    Some(1_000_000 - i64::try_from(used).unwrap_or(i64::MAX / 2))
}

fn fits(number: u128) -> u64 {
    u64::try_from(number).unwrap_or(u64::MAX)
}

fn why(
    series: Series,
    objective_ppm: Option<u64>,
    burn_rate_milli: u64,
    counts: Counts,
    window_us: i64,
) -> String {
    let Counts { good, bad } = counts;
    let what = match (series.objective, series.kind) {
        (Objective::Promises, _) => "promises to owners broken".to_owned(),
        (Objective::Verified, Some(kind)) => format!("{kind} not verified"),
        (Objective::Verified, None) => "actions not verified".to_owned(),
        (Objective::Cycles, _) => "plans not made in time".to_owned(),
    };
    let objective = objective_ppm.map_or_else(|| "none".to_owned(), |ppm| format!("{:.4}", ppm as f64 / 1e6));
    format!(
        "{bad} of {} {what} in {} h, {:.1} times what the objective {objective} allows",
        good + bad,
        window_us / HOUR_US,
        burn_rate_milli as f64 / 1e3
    )
}

#[cfg(test)]
mod tests;
