//! The product itself: its planner, its guard and its forecast, as they run in production.

use std::collections::BTreeMap;

use tidegate_autopilot::{
    action::{Action, Kind},
    forecast::{Series, Trailing, TrailingConfig},
    guard::{self, History, Outcome, Past, Switch, Verdict},
    planner::{self, Plan},
    policy::{Mode, Policy},
    state::ClusterState,
};

use super::{Decide, Ended};
use crate::{
    DAY_US, ServiceSpec,
    backtest::Setting,
    mistake::{ForecastError, Mistaken},
};

/// The planner and the guard with one policy. What it remembers is what stands on the log.
#[derive(Debug, Clone)]
pub struct Autopilot {
    policy: Policy,
    forecast: Trailing,
    /// How its forecast errs, and when it was asked last.
    error: ForecastError,
    asked_us: i64,
    history: History,
    plan: Option<Plan>,
    seed: u64,
    /// Refusals of the guard, by rule.
    refusals: BTreeMap<String, u64>,
}

impl Autopilot {
    /// An autopilot of that policy that knows nothing yet.
    pub fn new(policy: Policy, seed: u64) -> Self {
        let history = History { switch: Switch::On, ..History::default() };
        let forecast = Trailing::new(TrailingConfig::default());
        let (error, asked_us) = (ForecastError::default(), 0);
        Self { policy, forecast, error, asked_us, history, plan: None, seed, refusals: BTreeMap::new() }
    }

    /// One for a trial on a made-up setting: it has seen a week of demand like that to come, or takes over from `before`.
    pub fn for_trial(policy: &Policy, setting: &Setting, life: u64, before: Option<&Self>) -> Self {
        if let Some(before) = before {
            return before.successor();
        }
        let mut new = Self::new(policy.clone(), life);
        for service in &setting.services {
            let pool = &setting.spec.pools[service.pool].name;
            let week = (7 * DAY_US / service.step_us) as usize;
            let days = (DAY_US / service.step_us) as usize;
            // Days of what is to come, so that it knows the tide and not the noise of a certain day.
            let past = service.demand_gpus.iter().take(2 * days).cycle().take(week).copied().collect();
            let of = ServiceSpec { demand_gpus: past, ..service.clone() };
            new.remember(pool, pool, &of, setting.spec.epoch_us);
        }
        new
    }

    /// Takes a service's demand of the past as known: `of` stands for the time that ends at `until_us` since 1970.
    pub fn remember(&mut self, owner: &str, pool: &str, of: &ServiceSpec, until_us: i64) {
        let from_us = until_us - of.step_us * of.demand_gpus.len() as i64;
        for (step, gpus) in of.demand_gpus.iter().enumerate() {
            let at_us = from_us + step as i64 * of.step_us;
            self.forecast.observe(Series { owner, pool }, at_us, f64::from(*gpus));
        }
    }

    /// One that takes the lease after this one: the log tells what was done, and that nobody waits for it any more.
    pub fn successor(&self) -> Self {
        let mut next = self.clone();
        next.plan = None;
        let left_open = next.history.past.iter_mut().filter(|past| past.outcome == Outcome::UnderWay);
        left_open.for_each(|past| past.outcome = Outcome::Failed { why: "the actuator died".into() });
        next
    }

    /// Refusals of the guard so far, by rule.
    pub fn refusals(&self) -> &BTreeMap<String, u64> {
        &self.refusals
    }

    /// What it foresees demand by.
    pub fn forecast(&self) -> &Trailing {
        &self.forecast
    }

    /// Its policy.
    pub fn policy(&self) -> &Policy {
        &self.policy
    }
}

impl Decide for Autopilot {
    fn name(&self) -> String {
        format!("tidegate {}", self.policy.name)
    }

    fn mislead(&mut self, error: ForecastError) {
        self.error = error;
    }

    fn decide(&mut self, state: &ClusterState, now_us: i64) -> Vec<Action> {
        let learns = self.error.learns(self.asked_us, now_us);
        self.asked_us = now_us;
        for (owner, entry) in &state.owners {
            for (pool, share) in &entry.shares {
                if let Some(gpus) = share.demand_gpus.filter(|_| learns) {
                    self.forecast.observe(Series { owner, pool }, state.at_us, f64::from(gpus));
                }
            }
        }
        self.history.past.retain(|past| now_us - past.at_us < DAY_US || past.outcome == Outcome::UnderWay);
        let forecast = Mistaken { right: &self.forecast, error: self.error, now_us };
        let (plan, _) = planner::plan(&self.policy, state, &forecast, self.plan.as_ref(), now_us, self.seed);
        let done = plan.decisions.iter().filter(|d| d.mode >= Mode::Approve);
        let actions = done.map(|d| d.action.clone()).collect();
        self.plan = Some(plan);
        actions
    }

    fn permit(&mut self, action: &Action, state: &ClusterState, now_us: i64) -> bool {
        // Sent before with the answer lost: its own beginning is no reason against it.
        let own = self
            .history
            .past
            .iter()
            .position(|past| past.id == action.id)
            .filter(|at| self.history.past[*at].outcome == Outcome::UnderWay);
        let own = own.map(|at| self.history.past.remove(at));
        let verdict = guard::verdict(&self.policy, state, &self.history, action, now_us);
        self.history.past.extend(own);
        self.history.past.sort_by_key(|past| past.at_us);
        match verdict {
            Verdict::Allowed => true,
            Verdict::Refused(refusal) => {
                *self.refusals.entry(format!("{} {:?}", action.change.kind(), refusal.rule)).or_default() +=
                    1;
                false
            }
        }
    }

    fn begun(&mut self, action: &Action, state: &ClusterState, now_us: i64) {
        if self.history.find(&action.id).is_none() {
            let lost = self.plan.iter().flat_map(|plan| &plan.decisions).find(|d| d.action.id == action.id);
            let disturbs = matches!(action.change.kind(), Kind::Preempt | Kind::ResizeJob);
            let lost_gpu_ms = lost.filter(|_| disturbs).map_or(0, |d| d.predicted.cost_gpu_ms);
            self.history.past.push(Past::begun(action, state, lost_gpu_ms, now_us));
        }
    }

    fn learned(&mut self, action: &Action, ended: Ended, _now_us: i64) {
        if let Some(past) = self.history.past.iter_mut().find(|past| past.id == action.id) {
            past.outcome = match ended {
                Ended::Verified => Outcome::Verified,
                other => Outcome::Failed { why: format!("{other:?}") },
            };
        }
        // What came to nothing is decided anew, under a new id, if it is decided at all.
        if let Some(plan) = self.plan.as_mut().filter(|_| ended != Ended::Verified) {
            plan.decisions.retain(|decision| decision.action.id != action.id);
        }
    }
}
