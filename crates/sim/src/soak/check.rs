//! Invariants of a soak test, checked on the cluster and the journal, not on an executor's own
//! state.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use serde::Serialize;
use tidegate_autopilot::{
    action::Kind, executor::InMemoryJournal, policy::Policy, rollout::shadow::ID_PREFIX,
};

use super::invariant::Invariant;
use super::journal_check::JournalCheck;
use crate::{
    DAY_US, HOUR_US, MINUTE_US, Place,
    target::{AppliedEffect, SimTarget},
};

/// Limits that the autopilot must keep.
#[derive(Debug, Clone, Default)]
pub struct Limits {
    /// Effects of a kind per hour and per 24 hours; kinds without an entry are unlimited.
    pub budgets: BTreeMap<Kind, (u32, u32)>,
}

impl Limits {
    /// The budgets of a policy.
    pub fn from_policy(policy: &Policy) -> Self {
        let budget = |kind: Kind| (kind, (policy.budget(kind).per_hour, policy.budget(kind).per_day));
        Self { budgets: Kind::ALL.into_iter().map(budget).collect() }
    }
}

/// One violation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Violation {
    /// The seed.
    pub seed: u64,
    /// Simulated time, µs.
    pub at_us: i64,
    /// The violated invariant.
    pub invariant: Invariant,
    /// Description.
    pub what: String,
}

pub(super) struct Checker {
    seed: u64,
    limits: Limits,
    journal: JournalCheck,
    /// When the kill switch is off.
    off: Vec<Range<i64>>,
    seen: usize,
    ids: BTreeSet<String>,
    generation: u64,
    by_kind: BTreeMap<Kind, Vec<i64>>,
    /// Nodes in transit, with the start.
    under_way: BTreeMap<u32, i64>,
    violations: Vec<Violation>,
}

/// Longest time an action may be open without faults: up to an hour for approval and fifteen
/// minutes for verification, with room.
const STUCK_US: i64 = 2 * HOUR_US;
/// Longest time a node may be in transit without faults: notice, checkpoint, kill, hand-over, load
/// and some ticks.
const ON_THE_WAY_US: i64 = HOUR_US;

impl Checker {
    pub(super) fn new(seed: u64, limits: Limits, journal: InMemoryJournal, off: Vec<Range<i64>>) -> Self {
        Self {
            seed,
            limits,
            journal: JournalCheck::new(journal),
            off,
            seen: 0,
            ids: BTreeSet::new(),
            generation: 0,
            by_kind: BTreeMap::new(),
            under_way: BTreeMap::new(),
            violations: Vec::new(),
        }
    }

    fn report(&mut self, at_us: i64, invariant: Invariant, what: String) {
        // One violation per invariant and seed is enough.
        if self.violations.iter().all(|v| v.invariant != invariant) {
            self.violations.push(Violation { seed: self.seed, at_us, invariant, what });
        }
    }

    pub(super) fn check(&mut self, target: &SimTarget, is_quiet: bool) {
        let sim = target.sim();
        let now_us = sim.now_us();
        if let Err(what) = sim.audit() {
            self.report(now_us, Invariant::Books, what);
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
                self.report(now_us, Invariant::Floor, what);
            }
        }
        let epoch_us = sim.spec().epoch_us;
        for (at_us, invariant, what) in self.journal.read() {
            self.report(at_us - epoch_us, invariant, what);
        }
        self.check_effects(target);
        for (id, late_us) in target.overdue() {
            // A broken node or a job with notice may take this long.
            if late_us > sim.spec().latency.reclaim_us() + 10 * MINUTE_US {
                self.report(now_us, Invariant::LoanEnds, format!("loan {id} is {late_us} µs over its end"));
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
                self.report(now_us, Invariant::Converges, what);
            }
        }
        if is_quiet {
            self.check_stuck(now_us, epoch_us);
        }
    }

    /// Reports actions that are still open hours after the last fault.
    fn check_stuck(&mut self, now_us: i64, epoch_us: i64) {
        let before_us = epoch_us + now_us - STUCK_US;
        let stuck = self.journal.stuck(before_us).next().map(|(id, stage)| format!("{id} is {stage:?}"));
        if let Some(what) = stuck {
            self.report(now_us, Invariant::Converges, what);
        }
    }

    /// Checks that an effect was journaled before its request, and requested with the switch on.
    fn check_recorded(&mut self, effect: &AppliedEffect, epoch_us: i64) {
        let begun_us = self.journal.begun_us.get(&effect.action);
        if begun_us.is_none_or(|at_us| *at_us > epoch_us + effect.asked_us) {
            let what = format!("{} was asked for, and the journal says {begun_us:?}", effect.action);
            self.report(effect.at_us, Invariant::Recorded, what);
        }
        if self.off.iter().any(|off| off.contains(&effect.asked_us)) {
            self.report(effect.at_us, Invariant::Switch, format!("{} was asked for", effect.action));
        }
    }

    fn check_effects(&mut self, target: &SimTarget) {
        for effect in &target.effects()[self.seen..] {
            if effect.action.starts_with(ID_PREFIX) {
                self.report(effect.at_us, Invariant::Shadow, format!("{} had an effect", effect.action));
            }
            self.check_recorded(effect, target.sim().spec().epoch_us);
            if !self.ids.insert(effect.action.clone()) {
                self.report(
                    effect.at_us,
                    Invariant::OneEffect,
                    format!("{} had a second effect", effect.action),
                );
            }
            if effect.generation < self.generation {
                let what = format!(
                    "{} of generation {} after {}",
                    effect.action, effect.generation, self.generation
                );
                self.report(effect.at_us, Invariant::Generation, what);
            }
            self.generation = self.generation.max(effect.generation);
            if let Some(early_us) = effect.early_us.filter(|us| *us > 0) {
                let what = format!("{} let a loan go on {early_us} µs before its time", effect.action);
                self.report(effect.at_us, Invariant::Prolong, what);
            }
            // An undo was counted with the original action.
            let Some(counts_as) = effect.counts_as.filter(|_| !effect.action.ends_with("-undo")) else {
                continue;
            };
            let times = self.by_kind.entry(counts_as).or_default();
            times.push(effect.asked_us);
            let within = |span_us: i64| times.iter().filter(|at| effect.asked_us - **at < span_us).count();
            let (hour, day) = (within(HOUR_US), within(DAY_US));
            if let Some((per_hour, per_day)) = self.limits.budgets.get(&counts_as)
                && (hour > *per_hour as usize || day > *per_day as usize)
            {
                let what = format!(
                    "{hour} {} in an hour, {day} in a day; {per_hour} and {per_day} may be",
                    effect.kind
                );
                self.report(effect.at_us, Invariant::Budget, what);
            }
        }
        self.seen = target.effects().len();
    }

    /// A day after the last executor ended, nothing may be lent.
    pub(super) fn end(&mut self, target: &SimTarget) {
        if target.open_loans() > 0 {
            let what = format!("{} loans are open a day after everybody died", target.open_loans());
            self.report(target.sim().now_us(), Invariant::LoanEnds, what);
        }
    }

    /// Number of replayed plans.
    pub(super) fn plans(&self) -> u64 {
        self.journal.plans
    }

    /// Numbers of replayed shadow plans and of canaries rolled back by their record.
    pub(super) fn rollout_counts(&self) -> (u64, u64) {
        (self.journal.rollout.shadow_plans, self.journal.rollout.ended)
    }

    pub(super) fn take_violations(&mut self) -> Vec<Violation> {
        std::mem::take(&mut self.violations)
    }
}

#[cfg(test)]
mod tests;
