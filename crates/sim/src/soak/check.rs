//! What must never happen, checked from outside: by the cluster alone, not by what an actuator believes.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use tidegate_autopilot::action::Kind;

use crate::{DAY_US, HOUR_US, MINUTE_US, Place, target::SimTarget};

/// What must hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Invariant {
    /// GPUs and GPU time add up.
    Books,
    /// An owner is never left with less than its floor.
    Floor,
    /// An action has one effect.
    OneEffect,
    /// No effect comes after one of a newer generation.
    Generation,
    /// No more effects of a kind than its budget, in an hour and in a day.
    Budget,
    /// A loan is let go on only in the last of its time (twice the promise to give it back): that bounds what uses no budget.
    Prolong,
    /// No loan outlives its end by more than it takes to come back.
    LoanEnds,
    /// Hours after the last fault, nothing is stuck half-way.
    Converges,
}

/// What an autopilot has promised to keep to.
#[derive(Debug, Clone, Default)]
pub struct Limits {
    /// Effects of a kind in an hour and in 24 hours; kinds without an entry are not limited.
    pub budgets: BTreeMap<Kind, (u32, u32)>,
}

/// One violation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Violation {
    pub seed: u64,
    pub at_us: i64,
    pub invariant: Invariant,
    pub what: String,
}

pub(super) struct Checker {
    seed: u64,
    limits: Limits,
    budgets: usize,
    seen: usize,
    ids: BTreeSet<String>,
    generation: u64,
    by_kind: BTreeMap<Kind, Vec<i64>>,
    /// Since when a node has been on its way.
    under_way: BTreeMap<u32, i64>,
    violations: Vec<Violation>,
}

/// Longest that a node may be on its way when nothing goes wrong: notice and checkpoint, kill, hand-over, load and some ticks.
const ON_THE_WAY_US: i64 = HOUR_US;

impl Checker {
    /// `budgets`: how many budgets there are. One that lost its lease and does not know it yet has one of its own.
    pub(super) fn new(seed: u64, limits: Limits, budgets: usize) -> Self {
        Self {
            seed,
            limits,
            budgets,
            seen: 0,
            ids: BTreeSet::new(),
            generation: 0,
            by_kind: BTreeMap::new(),
            under_way: BTreeMap::new(),
            violations: Vec::new(),
        }
    }

    fn found(&mut self, at_us: i64, invariant: Invariant, what: String) {
        // One of a kind and seed tells enough.
        if self.violations.iter().all(|v| v.invariant != invariant) {
            self.violations.push(Violation { seed: self.seed, at_us, invariant, what });
        }
    }

    pub(super) fn look(&mut self, target: &SimTarget, is_quiet: bool) {
        let sim = target.sim();
        let now_us = sim.now_us();
        if let Err(what) = sim.audit() {
            self.found(now_us, Invariant::Books, what);
        }
        for (p, pool) in sim.spec().pools.iter().enumerate() {
            let away = |place: Place| {
                matches!(place, Place::Lent { .. } | Place::Leaving { .. } | Place::Called { .. })
            };
            let nodes = sim.nodes().iter().filter(|n| n.pool == p);
            let left: u32 = nodes.filter(|n| !away(n.place)).map(|n| n.gpus).sum();
            if left < pool.floor_gpus {
                let what =
                    format!("{} is left with {left} GPUs, its floor is {}", pool.name, pool.floor_gpus);
                self.found(now_us, Invariant::Floor, what);
            }
        }
        self.look_at_deeds(target);
        for (id, late_us) in target.overdue() {
            // A node that was broken, or a job that had to be told, may take this long.
            if late_us > sim.spec().latency.reclaim_us() + 10 * MINUTE_US {
                self.found(now_us, Invariant::LoanEnds, format!("loan {id} is {late_us} µs over its end"));
            }
        }
        for (n, node) in sim.nodes().iter().enumerate() {
            let settled = matches!(node.place, Place::Home | Place::Lent { .. });
            if settled {
                self.under_way.remove(&(n as u32));
                continue;
            }
            let since_us = *self.under_way.entry(n as u32).or_insert(now_us);
            if is_quiet && now_us - since_us > ON_THE_WAY_US {
                let what = format!("node {n} is {:?} since {since_us} µs", node.place);
                self.found(now_us, Invariant::Converges, what);
            }
        }
    }

    fn look_at_deeds(&mut self, target: &SimTarget) {
        for deed in &target.deeds()[self.seen..] {
            if !self.ids.insert(deed.action.clone()) {
                self.found(deed.at_us, Invariant::OneEffect, format!("{} had a second effect", deed.action));
            }
            if deed.generation < self.generation {
                let what =
                    format!("{} of generation {} after {}", deed.action, deed.generation, self.generation);
                self.found(deed.at_us, Invariant::Generation, what);
            }
            self.generation = self.generation.max(deed.generation);
            if let Some(early_us) = deed.early_us.filter(|us| *us > 0) {
                let what = format!("{} let a loan go on {early_us} µs before its time", deed.action);
                self.found(deed.at_us, Invariant::Prolong, what);
            }
            let Some(counts_as) = deed.counts_as else { continue };
            let times = self.by_kind.entry(counts_as).or_default();
            times.push(deed.asked_us);
            let within = |span_us: i64| times.iter().filter(|at| deed.asked_us - **at < span_us).count();
            let (hour, day) = (within(HOUR_US), within(DAY_US));
            if let Some((per_hour, per_day)) = self.limits.budgets.get(&counts_as)
                && (hour > self.budgets * *per_hour as usize || day > self.budgets * *per_day as usize)
            {
                let what = format!(
                    "{hour} {} in an hour, {day} in a day; {per_hour} and {per_day} may be",
                    deed.kind
                );
                self.found(deed.at_us, Invariant::Budget, what);
            }
        }
        self.seen = target.deeds().len();
    }

    /// A day after the last actuator died, nothing is lent any more.
    pub(super) fn end(&mut self, target: &SimTarget) {
        if target.open_loans() > 0 {
            let what = format!("{} loans are open a day after everybody died", target.open_loans());
            self.found(target.sim().now_us(), Invariant::LoanEnds, what);
        }
    }

    pub(super) fn into_violations(self) -> Vec<Violation> {
        self.violations
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        ClusterSpec, Sim,
        target::{Control, Deed},
    };

    fn found(deeds: &[(&str, u64, i64)]) -> Vec<Invariant> {
        let sim = Sim::new(ClusterSpec::uniform(&[1], 8), vec![], vec![]).unwrap();
        let mut target = SimTarget::new(sim, Control::default(), 1);
        for (action, generation, at_us) in deeds {
            let kind = Kind::Lend;
            target.forge(Deed {
                at_us: *at_us,
                asked_us: *at_us,
                action: (*action).into(),
                generation: *generation,
                kind,
                counts_as: (!action.starts_with("on")).then_some(kind),
                early_us: action.starts_with("on").then_some(*at_us - 10),
            });
        }
        let mut checker = Checker::new(1, Limits { budgets: [(Kind::Lend, (2, 3))].into() }, 1);
        checker.look(&target, true);
        checker.into_violations().iter().map(|v| v.invariant).collect()
    }

    #[test]
    fn deeds_that_must_not_be_are_found() {
        assert_eq!(found(&[("a", 1, 0), ("b", 1, 1), ("c", 2, HOUR_US + 1)]), []);
        assert_eq!(found(&[("a", 1, 0), ("a", 1, 1)]), [Invariant::OneEffect]);
        assert_eq!(found(&[("a", 2, 0), ("b", 1, 1)]), [Invariant::Generation]);
        assert_eq!(found(&[("a", 1, 0), ("b", 1, 1), ("c", 1, HOUR_US - 1)]), [Invariant::Budget]);
        let day = [("a", 1, 0), ("b", 1, 2 * HOUR_US), ("c", 1, 4 * HOUR_US), ("d", 1, 6 * HOUR_US)];
        assert_eq!(found(&day), [Invariant::Budget]);
        // What lets a loan go on is of no budget, but has its time.
        let on = |at_us: i64| [("a", 1, 0), ("b", 1, 1), ("on1", 1, at_us), ("on2", 1, at_us)];
        assert_eq!(found(&on(10)), []);
        assert_eq!(found(&on(11)), [Invariant::Prolong]);
    }
}
