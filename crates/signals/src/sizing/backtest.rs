//! Backtest of commitment rules: what each would have cost in past decisions at present prices.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use tidegate_insight::sizing::{
    Decision, Prices, Rule, SWITCHING, SizingError, TEMPERATURE, blend, follow, regrets,
};

use crate::time::{DAY_HOURS, HOUR_US};

/// Rules shown for comparison and never followed: what people do without a rule.
const BASELINES: [Rule; 3] = [Rule::None, Rule::Mean { hours: 672 }, Rule::Peak { hours: 672 }];
const EXPERTS: usize = Rule::EXPERTS.len();
/// The rule followed at first: models of a week ahead hardly beat it (field notes B.5).
const LAST_WEEK: Rule = Rule::Quantile { hours: 168 };
/// Decisions fall on midnights. This many past ones are scored; the first needs a week of history
/// before it.
const MAX_DECISIONS: usize = 28;
const MIN_HISTORY_HOURS: usize = 168;

/// Past decisions for one series and term.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Backtest {
    term_hours: usize,
    /// Prices at which `decisions` are scored.
    prices: Option<Prices>,
    decisions: BTreeMap<i64, Decision>,
    /// The rule being followed.
    current: usize,
}

/// What the rules commit to now, and how they did.
#[derive(Debug, Clone, PartialEq)]
pub struct Choice {
    pub rule: Rule,
    pub rule_gpus: f64,
    /// Blend of all rules; `None` while no decision can be scored.
    pub blend_gpus: Option<f64>,
    pub decisions: usize,
    /// Cost of the best commitments, known afterwards.
    pub best_cost: f64,
    /// By rule, baselines last.
    pub regrets: Vec<(Rule, f64)>,
}

impl Backtest {
    pub fn new(term_hours: usize) -> Self {
        let current = Rule::EXPERTS.iter().position(|rule| *rule == LAST_WEEK).unwrap_or_default();
        Self { term_hours, prices: None, decisions: BTreeMap::new(), current }
    }

    /// Decides at `at_us`, a midnight, from all `hours` before it.
    ///
    /// # Errors
    /// As [`Decision::priced`], [`follow`] and [`blend`]: demand that is not finite.
    pub fn choose(&mut self, hours: &[f64], at_us: i64, prices: &Prices) -> Result<Choice, SizingError> {
        self.learn(hours, at_us, prices)?;
        let newest_us = at_us - self.term_hours as i64 * HOUR_US;
        let past: Vec<Decision> =
            self.decisions.range(..=newest_us).map(|(_, lesson)| lesson.clone()).collect();
        let of_experts =
            |lesson: &Decision| Decision { costs: lesson.costs[..EXPERTS].to_vec(), oracle: lesson.oracle };
        let level = prices.critical_ratio();
        let gpus = Rule::EXPERTS.map(|rule| rule.reserve(hours, self.term_hours, level));
        let mut blend_gpus = None;
        if !past.is_empty() {
            let experts: Vec<Decision> = past.iter().map(of_experts).collect();
            self.current = follow(&experts, EXPERTS, Some(self.current), SWITCHING)?;
            blend_gpus = Some(blend(&experts, &gpus, level, TEMPERATURE)?);
        }
        let values = if past.is_empty() { Vec::new() } else { regrets(&past, EXPERTS + BASELINES.len())? };
        Ok(Choice {
            rule: Rule::EXPERTS[self.current],
            rule_gpus: gpus[self.current],
            blend_gpus,
            decisions: past.len(),
            best_cost: past.iter().map(|lesson| lesson.oracle).sum(),
            regrets: rules().zip(values).collect(),
        })
    }

    /// Adds the decisions whose terms have ended since the last call, and drops the oldest. When
    /// prices change, all are scored anew: the best commitment at old prices says nothing about the
    /// new ones.
    fn learn(&mut self, hours: &[f64], at_us: i64, prices: &Prices) -> Result<(), SizingError> {
        if self.prices != Some(*prices) {
            (self.prices, self.decisions) = (Some(*prices), BTreeMap::new());
        }
        let newest_days = self.term_hours.div_ceil(DAY_HOURS);
        let known = hours.len();
        for back in (newest_days..newest_days + MAX_DECISIONS).map(|days| days * DAY_HOURS) {
            let decided_us = at_us - back as i64 * HOUR_US;
            if known < back + MIN_HISTORY_HOURS || self.decisions.contains_key(&decided_us) {
                continue;
            }
            let (before, after) = hours.split_at(known - back);
            let gpus: Vec<f64> =
                rules().map(|rule| rule.reserve(before, self.term_hours, prices.critical_ratio())).collect();
            let lesson = Decision::priced(&gpus, &after[..self.term_hours], prices)?;
            self.decisions.insert(decided_us, lesson);
        }
        let oldest_us = at_us - ((newest_days + MAX_DECISIONS - 1) * DAY_HOURS) as i64 * HOUR_US;
        self.decisions.retain(|decided_us, _| *decided_us >= oldest_us);
        Ok(())
    }
}

/// Experts, then baselines.
fn rules() -> impl Iterator<Item = Rule> {
    Rule::EXPERTS.into_iter().chain(BASELINES)
}

/// Name of a rule, with the hours it looks back.
pub fn rule_name(rule: Rule) -> String {
    match rule {
        Rule::None => "NOTHING".into(),
        Rule::Last => "LAST".into(),
        Rule::Mean { hours } => format!("MEAN_{hours}H"),
        Rule::Peak { hours } => format!("PEAK_{hours}H"),
        Rule::Quantile { hours } => format!("QUANTILE_{hours}H"),
        Rule::Change { hours, ratio, same_hour } => {
            let of = if ratio { "_RATIO" } else { "" };
            let when = if same_hour { "_SAME_HOUR" } else { "" };
            format!("CHANGE{of}{when}_{hours}H")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY_US: i64 = DAY_HOURS as i64 * HOUR_US;

    /// Decides at each midnight of `days`.
    fn run(hours: &[f64], days: std::ops::RangeInclusive<usize>, prices: &Prices) -> (Backtest, Choice) {
        let mut backtest = Backtest::new(168);
        let mut last = None;
        for day in days {
            last = Some(backtest.choose(&hours[..day * 24], day as i64 * DAY_US, prices).unwrap());
        }
        (backtest, last.unwrap())
    }

    #[test]
    fn the_first_two_weeks_have_no_lesson_and_then_one_a_day() {
        let hours = vec![10.0; 24 * 60];
        let prices = Prices::new(2.0, 4.0, 0.0).unwrap();
        let lessons = |day: usize| run(&hours, day..=day, &prices).1;
        assert_eq!([13, 14, 15, 60].map(|day| lessons(day).decisions), [0, 1, 2, 28]);
        assert_eq!((lessons(13).blend_gpus, lessons(13).regrets), (None, vec![]));
        let last = lessons(60);
        // 28 weeks of 10 reserved GPUs. Nothing reserved costs 4 instead of 2; the mean and the
        // peak are exact.
        assert_eq!((last.blend_gpus, last.best_cost), (Some(10.0), 28.0 * 168.0 * 10.0 * 2.0));
        let of = |rule: Rule| last.regrets.iter().find(|(of, _)| *of == rule).unwrap().1;
        assert_eq!([BASELINES[0], BASELINES[1], BASELINES[2], LAST_WEEK].map(of), [1.0, 0.0, 0.0, 0.0]);
    }

    #[test]
    fn kept_decisions_equal_recomputed_ones() {
        let hours: Vec<f64> = (0..24 * 80).map(|hour| ((hour * hour) % 37 + hour / 100) as f64).collect();
        let prices = Prices::new(2.4, 4.0, 0.0).unwrap();
        let (kept, _) = run(&hours, 30..=80, &prices);
        let (anew, _) = run(&hours, 80..=80, &prices);
        assert_eq!(kept.decisions, anew.decisions);
        // Other prices in between, and back again.
        let mut back = kept.clone();
        let other = Prices::new(1.0, 4.0, 0.0).unwrap();
        back.choose(&hours, 80 * DAY_US, &other).unwrap();
        assert_ne!(back.decisions, kept.decisions);
        back.choose(&hours, 80 * DAY_US, &prices).unwrap();
        assert_eq!(back.decisions, kept.decisions);
    }

    #[test]
    fn the_rule_changes_when_demand_jumps_about_and_its_regret_is_counted_by_hand() {
        // 2 GPUs in even weeks, 6 in odd ones: at a price ratio of 1/2 last week's quantile is
        // always that of the other kind of week.
        let hours: Vec<f64> = (0..168 * 12).map(|hour| if hour / 168 % 2 == 0 { 2.0 } else { 6.0 }).collect();
        let prices = Prices::new(2.0, 4.0, 0.0).unwrap();
        let mut backtest = Backtest::new(168);
        let choice = backtest.choose(&hours, 84 * DAY_US, &prices).unwrap();
        let mut totals = (0.0, 0.0);
        for day in (0..28).map(|back| 84 - 7 - back) {
            let term = &hours[day * 24..(day + 7) * 24];
            let cost = |gpus: f64| term.iter().map(|y| 2.0 * gpus + 4.0 * (y - gpus).max(0.0)).sum::<f64>();
            let mut before = hours[day * 24 - 168..day * 24].to_vec();
            before.sort_by(f64::total_cmp);
            // Median of an even number of hours, by linear interpolation.
            totals.0 += cost((before[83] + before[84]) / 2.0);
            totals.1 += (0..=6).map(|gpus| cost(f64::from(gpus))).fold(f64::INFINITY, f64::min);
        }
        assert!((choice.best_cost - totals.1).abs() < 1e-6, "{choice:?}");
        let found = choice.regrets.iter().find(|(rule, _)| *rule == LAST_WEEK).unwrap().1;
        assert!((found - (totals.0 / totals.1 - 1.0)).abs() < 1e-12, "{choice:?}");
        let least = choice.regrets[..EXPERTS].iter().map(|(_, it)| *it).fold(f64::INFINITY, f64::min);
        let followed = choice.regrets.iter().find(|(rule, _)| *rule == choice.rule).unwrap().1;
        assert!(choice.rule != LAST_WEEK && followed - least <= SWITCHING, "{choice:?}");
    }
}
