//! How well the autopilot itself does: promises kept in time, actions verified, plans made in time,
//! each against an objective of the policy, with burn-rate alerts over several windows. Pure
//! arithmetic on what stands in the journal.
//!
//! Windows and rates are those of the SRE workbook (Google, 2018), chapter 5, "Alerting on SLOs",
//! method 6: an alert is raised where the error budget burns at a rate or more in a long window and
//! in a short one, which is a twelfth of it. Where little happens a single failure is a great share
//! of it, so an alert also takes a least number of failures (the same chapter, "Low-traffic
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

/// What is counted: an objective, and of which kind of decision where it is told by kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Series {
    /// The objective.
    pub objective: Objective,
    /// The kind of decision.
    pub kind: Option<Kind>,
}

impl Series {
    /// The kind of decision that is trusted with less while its budget burns fast: of promises that
    /// is lending, as taking back must go on.
    pub fn concerns(&self) -> Option<Kind> {
        match self.objective {
            Objective::Promises => Some(Kind::Lend),
            Objective::Verified => self.kind,
            Objective::Cycles => None,
        }
    }
}

/// How fast the budget burns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Burn {
    /// 14.4 times as fast as the objective lets it, over an hour and five minutes: 2 % of a month's
    /// budget in an hour.
    Fast,
    /// 6 times, over six hours and half an hour: 5 % in six hours.
    Slow,
    /// As fast as it lets it, over three days and six hours: 10 % in three days.
    Leak,
}

impl Burn {
    /// All, the fastest first.
    pub const ALL: [Self; 3] = [Self::Fast, Self::Slow, Self::Leak];

    /// Long window, short window (µs), and rate in thousandths.
    fn windows(self) -> (i64, i64, u64) {
        match self {
            Self::Fast => (HOUR_US, 5 * MINUTE_US, 14_400),
            Self::Slow => (6 * HOUR_US, 30 * MINUTE_US, 6_000),
            Self::Leak => (3 * DAY_US, 6 * HOUR_US, 1_000),
        }
    }

    /// Whether somebody is woken for it, or finds it in the morning.
    pub fn severity(self) -> &'static str {
        match self {
            Self::Fast | Self::Slow => "page",
            Self::Leak => "ticket",
        }
    }

    /// Its spelling.
    pub fn name(self) -> &'static str {
        match self {
            Self::Fast => "fast",
            Self::Slow => "slow",
            Self::Leak => "leak",
        }
    }
}

/// That an alert began or ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Alert {
    /// Of what.
    pub series: Series,
    /// How fast.
    pub burn: Burn,
    /// It is raised; else it is over.
    pub firing: bool,
    /// Since when it is raised.
    pub since_us: i64,
    /// How many times as fast as the objective lets it the budget burns in the long window,
    /// thousandths.
    pub burn_rate_milli: u64,
    /// Why, with the numbers.
    pub why: String,
}

/// How an objective stands.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ObjectiveStatus {
    /// Of what.
    pub series: Series,
    /// The objective, millionths.
    pub objective_ppm: u64,
    /// Days looked back on.
    pub window_days: u32,
    /// What went well and badly in them.
    pub counts: Counts,
    /// Share that went well, millionths; `None`: nothing happened.
    pub attained_ppm: Option<u64>,
    /// Share of the failures that the objective allows which is left, millionths; below 0: more
    /// were; `None`: nothing happened.
    pub budget_left_ppm: Option<i64>,
    /// Burn rate of the last hour, thousandths; `None`: nothing happened in it.
    pub burn_rate_milli: Option<u64>,
    /// Alerts that stand, the fastest first.
    pub burning: Vec<Burn>,
}

/// What was counted, and which alerts stand.
#[derive(Debug, Clone, Default)]
pub struct Slo {
    /// What was counted.
    pub tallies: Tallies,
    firing: BTreeMap<(Series, Burn), Alert>,
    alerts: u64,
}

impl Slo {
    /// Takes an alert of the journal.
    pub fn fold(&mut self, alert: Alert) {
        self.alerts += 1;
        let key = (alert.series, alert.burn);
        match alert.firing {
            true => drop(self.firing.insert(key, alert)),
            false => drop(self.firing.remove(&key)),
        }
    }

    /// How many alerts were told, beginnings and ends.
    pub fn alerts(&self) -> u64 {
        self.alerts
    }

    /// Alerts that stand.
    pub fn firing(&self) -> impl Iterator<Item = &Alert> {
        self.firing.values()
    }

    /// The kinds of decision that may go less far now, with the alert that says so.
    pub fn steps_down<'a>(&'a self, rules: &'a SloRules) -> impl Iterator<Item = (Kind, &'a Alert)> {
        let fast = self.firing.values().filter(|alert| rules.step_down && alert.burn == Burn::Fast);
        fast.filter_map(|alert| Some((alert.series.concerns()?, alert)))
    }

    /// Alerts that begin or end at `now_us`. One begins where both windows burn fast enough and
    /// hold enough failures; it ends once the long window does not burn so fast any more, so that a
    /// kind is not trusted again after five quiet minutes.
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
                let stands = self.firing.get(&(series, burn));
                let firing = match stands {
                    Some(_) => burns(long),
                    None => burns(long) && burns(short) && long.bad >= u64::from(rules.least_bad.max(1)),
                };
                if firing == stands.is_some() {
                    continue;
                }
                let burn_rate_milli = rate(long).unwrap_or(0);
                let since_us = stands.map_or(now_us, |alert| alert.since_us);
                let why = why(series, objective_ppm, burn_rate_milli, long, long_us);
                due.push(Alert { series, burn, firing, since_us, burn_rate_milli, why });
            }
        }
        due
    }

    /// How each objective stands at `now_us`.
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

/// Share of failures over the share that the objective allows, thousandths; `None`: nothing
/// happened.
fn burn_rate_milli(counts: Counts, objective_ppm: u64) -> Option<u64> {
    let allowed_ppm = 1_000_000u64.checked_sub(objective_ppm).filter(|allowed| *allowed > 0)?;
    let all = counts.all();
    (all > 0)
        .then(|| u128::from(counts.bad) * 1_000_000_000 / (u128::from(all) * u128::from(allowed_ppm)))
        .map(fits)
}

/// 1 less failures over those that the objective allows of as many events, millionths; `None`:
/// nothing happened.
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
