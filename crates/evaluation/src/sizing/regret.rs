//! Regret of commitments: their cost over the cheapest commitment known afterwards, less one.
//!
//! Each series has 24 decisions. The regret of a series is that of the sums over its decisions,
//! that of a table the mean over series. Commitments are not rounded, so that small series count as
//! much as large ones. Policies learn from the same rules' past commitments, every six hours, once
//! their term has passed.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use tidegate_insight::sizing::{Decision, Prices, Rule, SWITCHING, TEMPERATURE, blend, follow};

use super::SizingEvaluationError;

/// Lengths of a commitment, hours.
pub const TERMS: [usize; 2] = [168, 24];
/// Decisions of a series.
const DECISIONS: usize = 24;
/// Hours between past decisions, and how far back they count.
const LESSON_STRIDE: usize = 6;
const LESSON_HOURS: usize = 672;
/// Hours before the first past decision: a week of history.
const WARM: usize = 168;

/// A series, and when decisions are made.
#[derive(Debug, Clone, PartialEq)]
pub struct Case {
    /// Set and series.
    pub name: String,
    /// Demand by hour, GPUs.
    pub demand: Vec<f64>,
    /// Hours known at the first decision.
    pub first: usize,
    /// Hours between decisions.
    pub step: usize,
    /// Outside experts: forecasts.
    pub outside: Vec<OutsideExpert>,
}

/// An expert with given commitments, by known hours and term. Where it has none, the last week's
/// quantile stands in.
#[derive(Debug, Clone, PartialEq)]
pub struct OutsideExpert {
    /// Name of its row.
    pub name: String,
    /// GPUs by (hours known, term), for one break-even.
    pub commitments: BTreeMap<(usize, usize), f64>,
}

/// How a commitment is chosen.
#[derive(Debug, Clone, PartialEq)]
pub enum Policy {
    /// One rule.
    Rule(Rule),
    /// The outside expert at this index.
    OutsideExpert(usize),
    /// The best commitment known afterwards, constant over the term.
    Oracle,
    /// Every hour's demand at the reserved price: a bound that no commitment reaches.
    HourlyOracle,
    /// Follow the leader over all experts, with a switching cost of 1 %.
    Leader,
    /// Blend of all experts by trailing regret.
    Blend,
}

/// Regret of one policy for one term.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RegretRow {
    /// Policy.
    pub policy: String,
    /// Hours of the commitment.
    pub term_hours: usize,
    /// Break-even utilisation.
    pub rho: f64,
    /// Mean over series.
    pub regret: f64,
    /// Mean over the series named total.
    pub regret_totals: f64,
    /// By series, in the order of the cases.
    pub by_series: Vec<f64>,
}

/// All rows.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RegretTable {
    /// Series, in order.
    pub series: Vec<String>,
    /// Rows.
    pub rows: Vec<RegretRow>,
}

/// Runs the protocol at break-even `rho`.
///
/// # Errors
/// A series too short for its decisions; demand, prices or commitments that sizing rejects.
pub fn regret_table(cases: &[Case], rho: f64) -> Result<RegretTable, SizingEvaluationError> {
    let prices = Prices::from_ratio(rho)?;
    let mut rows = Vec::new();
    for term in TERMS {
        let mut by_policy: Vec<(String, Vec<f64>)> =
            policies(cases).iter().map(|(name, _)| (name.clone(), Vec::new())).collect();
        for case in cases {
            let lessons = PastDecisions::new(case, term, &prices)?;
            for (row, (_, policy)) in by_policy.iter_mut().zip(policies(cases)) {
                row.1.push(regret(case, term, &prices, &policy, &lessons)?);
            }
        }
        rows.extend(
            by_policy.into_iter().map(|(policy, by_series)| row(cases, policy, term, rho, by_series)),
        );
    }
    Ok(RegretTable { series: cases.iter().map(|case| case.name.clone()).collect(), rows })
}

fn row(cases: &[Case], policy: String, term_hours: usize, rho: f64, by_series: Vec<f64>) -> RegretRow {
    let mean = |values: Vec<f64>| values.iter().sum::<f64>() / values.len().max(1) as f64;
    let totals = cases.iter().zip(&by_series).filter(|(case, _)| case.name.ends_with("total"));
    let regret_totals = mean(totals.map(|(_, regret)| *regret).collect());
    RegretRow { policy, term_hours, rho, regret: mean(by_series.clone()), regret_totals, by_series }
}

fn policies(cases: &[Case]) -> Vec<(String, Policy)> {
    let rule = |name: &str, rule| (name.to_owned(), Policy::Rule(rule));
    let change = |hours, ratio, same_hour| Rule::Change { hours, ratio, same_hour };
    let mut policies = vec![
        ("(c) oracle".to_owned(), Policy::Oracle),
        ("hourly oracle".to_owned(), Policy::HourlyOracle),
        rule("(a) peak of 4 weeks", Rule::Peak { hours: 672 }),
        rule("(b) mean of 4 weeks", Rule::Mean { hours: 672 }),
        rule("nothing", Rule::None),
        rule("last value", Rule::Last),
        rule("quantile of 4 weeks", Rule::Quantile { hours: 672 }),
        rule("quantile of the last week", Rule::Quantile { hours: 168 }),
        rule("quantile of the last day", Rule::Quantile { hours: 24 }),
        rule("change, as differences", change(672, false, false)),
        rule("change, as ratios", change(672, true, false)),
        rule("change at this hour, as differences", change(1008, false, true)),
        rule("change at this hour, as ratios", change(1008, true, true)),
    ];
    let outside = cases.first().map_or(&[][..], |case| &case.outside);
    policies.extend(
        outside.iter().enumerate().map(|(at, expert)| (expert.name.clone(), Policy::OutsideExpert(at))),
    );
    policies.push(("ours: follow the leader".to_owned(), Policy::Leader));
    policies.push(("ours: blend by trailing regret".to_owned(), Policy::Blend));
    policies
}

/// Hours at which outside experts decide, for all terms and past decisions.
pub(super) fn decision_hours(first: usize, step: usize) -> BTreeSet<usize> {
    let decisions = (0..DECISIONS).map(|decision| first + decision * step);
    let last = first + (DECISIONS - 1) * step;
    let lessons = (WARM..=last).step_by(LESSON_STRIDE).filter(|at| at + TERMS[0] + LESSON_HOURS >= first);
    decisions.chain(lessons).collect()
}

/// Past commitments of every expert, with their costs.
struct PastDecisions {
    term: usize,
    decisions: BTreeMap<usize, Decision>,
}

impl PastDecisions {
    fn new(case: &Case, term: usize, prices: &Prices) -> Result<Self, SizingEvaluationError> {
        let last = case.first + (DECISIONS - 1) * case.step;
        let needed = last + TERMS[0];
        if case.demand.len() < needed {
            return Err(SizingEvaluationError::Short {
                name: case.name.clone(),
                hours: case.demand.len(),
                needed,
            });
        }
        let mut decisions = BTreeMap::new();
        for at in (WARM..=last - term).step_by(LESSON_STRIDE) {
            // No decision looks further back.
            if at + term + LESSON_HOURS >= case.first {
                let commitments = commitments(case, at, term, prices);
                decisions.insert(at, Decision::priced(&commitments, &case.demand[at..at + term], prices)?);
            }
        }
        Ok(Self { term, decisions })
    }

    /// Decisions whose term had passed after `known` hours.
    fn at(&self, known: usize) -> Vec<Decision> {
        let newest = known.saturating_sub(self.term);
        let oldest = newest.saturating_sub(LESSON_HOURS);
        self.decisions.range(oldest..=newest).map(|(_, decision)| decision.clone()).collect()
    }
}

fn commitments(case: &Case, known: usize, term: usize, prices: &Prices) -> Vec<f64> {
    let history = &case.demand[..known];
    let level = prices.critical_ratio();
    let own = Rule::EXPERTS.iter().map(|rule| rule.reserve(history, term, level));
    own.chain((0..case.outside.len()).map(|at| outside(case, at, known, term, prices))).collect()
}

fn outside(case: &Case, at: usize, known: usize, term: usize, prices: &Prices) -> f64 {
    let stand_in =
        || Rule::Quantile { hours: 168 }.reserve(&case.demand[..known], term, prices.critical_ratio());
    case.outside[at].commitments.get(&(known, term)).copied().unwrap_or_else(stand_in)
}

fn regret(
    case: &Case,
    term: usize,
    prices: &Prices,
    policy: &Policy,
    lessons: &PastDecisions,
) -> Result<f64, SizingEvaluationError> {
    let (mut cost, mut best) = (0.0, 0.0);
    let mut current = None;
    for decision in 0..DECISIONS {
        let known = case.first + decision * case.step;
        let demand = &case.demand[known..known + term];
        let oracle = Decision::priced(&[], demand, prices)?.oracle;
        best += oracle;
        let reserve = |rule: Rule| rule.reserve(&case.demand[..known], term, prices.critical_ratio());
        cost += match policy {
            Policy::Oracle => oracle,
            Policy::HourlyOracle => demand.iter().map(|gpus| gpus * prices.reserved()).sum(),
            Policy::Rule(rule) => prices.total(reserve(*rule), demand),
            Policy::OutsideExpert(at) => prices.total(outside(case, *at, known, term, prices), demand),
            Policy::Leader => {
                let experts = commitments(case, known, term, prices);
                let leader = follow(&lessons.at(known), experts.len(), current, SWITCHING)?;
                // The first leader is no switch; each later switch costs what the policy assumed.
                let switched = current.is_some_and(|current| current != leader);
                current = Some(leader);
                prices.total(experts[leader], demand) + if switched { SWITCHING * oracle } else { 0.0 }
            }
            Policy::Blend => {
                let experts = commitments(case, known, term, prices);
                let gpus = blend(&lessons.at(known), &experts, prices.critical_ratio(), TEMPERATURE)?;
                prices.total(gpus, demand)
            }
        };
    }
    Ok(if best > 0.0 { cost / best - 1.0 } else { 0.0 })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn case(demand: impl Fn(usize) -> f64) -> Case {
        let demand = (0..1416).map(demand).collect();
        Case { name: "test/total".to_owned(), demand, first: 672, step: 25, outside: Vec::new() }
    }

    fn of<'a>(table: &'a RegretTable, policy: &str, term: usize) -> &'a RegretRow {
        table.rows.iter().find(|row| row.policy == policy && row.term_hours == term).unwrap()
    }

    #[test]
    fn steady_demand_gives_no_regret_to_rules_with_history() {
        let table = regret_table(&[case(|_| 10.0)], 0.6).unwrap();
        for policy in [
            "last value",
            "quantile of the last week",
            "ours: follow the leader",
            "ours: blend by trailing regret",
        ] {
            assert!(of(&table, policy, 168).regret.abs() < 1e-9, "{policy}");
        }
        // With nothing reserved each hour costs 1 instead of 0.6.
        assert!((of(&table, "nothing", 24).regret - 2.0 / 3.0).abs() < 1e-9);
        assert!(of(&table, "hourly oracle", 24).regret.abs() < 1e-9);
    }

    #[test]
    fn the_oracle_is_never_beaten_and_runs_are_equal() {
        let wave = case(|hour| {
            20.0 + 10.0 * (hour as f64 / 24.0 * std::f64::consts::TAU).sin() + (hour / 300) as f64
        });
        let table = regret_table(std::slice::from_ref(&wave), 0.6).unwrap();
        for row in table.rows.iter().filter(|row| row.policy != "hourly oracle") {
            assert!(row.regret >= -1e-9, "{row:?}");
        }
        assert_eq!(table, regret_table(&[wave], 0.6).unwrap());
    }

    #[test]
    fn an_outside_expert_that_knows_is_followed() {
        let mut wild = case(|hour| ((hour / 40) % 7 * 10) as f64 + 1.0);
        let prices = Prices::from_ratio(0.6).unwrap();
        let best = |known: usize, term: usize| {
            let mut hours = wild.demand[known..known + term].to_vec();
            hours.sort_unstable_by(f64::total_cmp);
            hours[(prices.critical_ratio() * term as f64 - 1e-9).ceil() as usize - 1]
        };
        let commitments = TERMS
            .iter()
            .flat_map(|&term| (0..1416 - term).map(move |known| (known, term)))
            .map(|at| (at, best(at.0, at.1)))
            .collect();
        wild.outside.push(OutsideExpert { name: "prophet".to_owned(), commitments });
        let table = regret_table(&[wild], 0.6).unwrap();
        for policy in ["prophet", "ours: follow the leader"] {
            assert!(of(&table, policy, 24).regret < 0.011, "{policy}");
        }
    }

    #[test]
    fn a_short_series_is_refused() {
        let short = Case { demand: vec![1.0; 500], ..case(|_| 1.0) };
        assert!(matches!(regret_table(&[short], 0.6), Err(SizingEvaluationError::Short { .. })));
        assert!(regret_table(&[case(|_| 1.0)], 1.5).is_err());
    }
}
