//! Planning: makes a plan when it is due, records it if it says something, and proposes its
//! decisions.

use tidegate_units::Millis;

use super::{Executor, Journal, JournalEvent, MadePlan, OnlineForecast, Settings, StepError, telling};
use crate::action::{ActionId, Kind};
use crate::guard::{self, KillSwitch, PastAction, Rule, Verdict};
use crate::impact::Basis;
use crate::intent::{IntentEvent, Transition};
use crate::planner::{self, Decision, Plan, PlanRecord};
use crate::policy::{Mode, Policy};
use crate::state::ClusterState;

impl<J: Journal, F: OnlineForecast> Executor<J, F> {
    /// Plans if it is time. Records the plan if it decides something new, if the policy changed, if
    /// nothing was recorded for long, or if it says something else within the budget for that.
    pub(super) fn plan(
        &mut self,
        state: &ClusterState,
        switch: KillSwitch,
        now_us: i64,
    ) -> Result<Option<(String, usize)>, StepError> {
        let due = |last: Option<i64>, every_ms: i64| {
            last.is_none_or(|last| now_us - last >= Millis(every_ms).to_micros().0)
        };
        if !due(self.planned_us, self.settings.plan_every_ms) {
            return Ok(None);
        }
        self.planned_us = Some(now_us);
        self.count_cycle(now_us, true)?;
        let (parent, kept) = self.journaled.parent();
        let seed = self.settings.seed;
        // A kind demoted by its scorecard needs a person's approval, and decisions that wait for
        // one stay valid longer.
        let policy = Policy { at_most: self.earned.clone(), ..self.policy.clone() };
        let canary = self.planning_canary();
        let (plan, report) = planner::plan_with_canary(
            &policy,
            canary.as_ref(),
            state,
            &self.forecast,
            parent.as_ref(),
            now_us,
            seed,
        );
        let shadow_result = self.shadow_plan(state, &plan, &report);
        let proposals = self.proposals(&plan, state, switch, now_us);
        let before = self.journaled.plan.as_ref();
        let by_the_same = before.is_some_and(|before| {
            (&before.policy_hash, &before.canary_hash) == (&plan.policy_hash, &plan.canary_hash)
        });
        let is_new = !proposals.is_empty() || !by_the_same || self.has_new_decisions(shadow_result.as_ref());
        let contents = telling::contents(&plan, &report);
        let is_recorded = is_new
            || due(self.journaled.planned_us, self.settings.repeat_every_ms)
            || self.tells(contents, &plan, &kept, now_us);
        let generation = self.generation.unwrap_or_default();
        let canary = canary.map(Box::new);
        self.journal.made(&MadePlan {
            plan: &plan,
            report: &report,
            policy: &policy,
            canary: canary.as_deref(),
            state,
            kept: &kept,
            generation,
            is_recorded,
        });
        if !is_recorded {
            return Ok(None);
        }
        let Settings { most_changed, repeat_every_ms, .. } = self.settings;
        self.telling.recorded(contents, now_us, repeat_every_ms, most_changed);
        let recorded = (plan.id.clone(), plan.decisions.len());
        let state = state.clone();
        let cycles = JournalEvent::Cycles(std::mem::take(&mut self.cycles));
        let planned = PlanRecord { plan, report, policy, canary, state, kept };
        let mut events = vec![JournalEvent::Planned(Box::new(planned)), cycles];
        events.extend(self.shadow_events(shadow_result));
        events.extend(proposals.into_iter().map(|event| JournalEvent::Step(Box::new(event))));
        self.record(events, now_us)?;
        Ok(Some(recorded))
    }

    /// Whether a plan that decides nothing new is recorded because of what it says.
    fn tells(&self, contents: u64, plan: &Plan, kept: &[ActionId], now_us: i64) -> bool {
        let Settings { most_changed, repeat_every_ms, .. } = self.settings;
        self.telling.is_news(contents)
            && telling::keeps(plan, kept)
            && self.telling.may_spend(now_us, repeat_every_ms, most_changed)
    }

    /// Events for new decisions. A repeated refusal of the same object by the same rule is not
    /// recorded again.
    fn proposals(
        &mut self,
        plan: &Plan,
        state: &ClusterState,
        switch: KillSwitch,
        now_us: i64,
    ) -> Vec<IntentEvent> {
        let generation = self.generation.unwrap_or_default();
        let repeat_us = Millis(self.settings.repeat_every_ms).to_micros().0;
        let history = self.history(switch, now_us);
        let mut events: Vec<IntentEvent> = Vec::new();
        let mut proposed: Vec<&str> = Vec::new();
        let is_new = |decision: &&Decision| {
            decision.mode >= Mode::Suggest && self.journaled.intents.get(&decision.action.id).is_none()
        };
        let asked = |decision| (decision, self.verdict(decision, &decision.action, state, &history, now_us));
        let new: Vec<(&Decision, Verdict)> = plan.decisions.iter().filter(is_new).map(asked).collect();
        let tried = self.try_decisions(state, &new, now_us);
        for (decision, verdict) in new {
            let action = &decision.action;
            let begun =
                |id: &ActionId| proposed.contains(&id.as_str()) || self.journaled.intents.get(id).is_some();
            if !action.after.iter().all(begun) {
                continue;
            }
            // What must come first is proposed beside it, and a person has not answered yet.
            let refusal = match verdict {
                Verdict::Refused(refusal) if !matches!(refusal.rule, Rule::Order | Rule::Mode) => {
                    Some(refusal)
                }
                _ => tried.refused.get(&action.id).cloned(),
            };
            if let Some(refusal) = &refusal {
                let key = (format!("{} {}", decision.kind, action.change.object()), refusal.rule);
                if self.refused.get(&key).is_some_and(|at_us| now_us - at_us < repeat_us) {
                    continue;
                }
                self.refused.insert(key, now_us);
            }
            let disturbs = matches!(decision.kind, Kind::Preempt | Kind::ResizeJob);
            let lost_gpu_ms = if disturbs { decision.predicted.cost_gpu_ms } else { 0 };
            let past = Box::new(PastAction::begun(action, state, lost_gpu_ms, now_us));
            let event =
                |transition| IntentEvent { action: action.id.clone(), at_us: now_us, generation, transition };
            let basis = Basis::of(decision, plan, state, self.policy_of(decision)).map(Box::new);
            let decision = Box::new(decision.clone());
            let plan = plan.id.clone();
            events.push(event(Transition::Proposed { decision, plan, past, basis }));
            match refusal {
                Some(refusal) => {
                    events.push(event(Transition::Dropped { refusal: Some(refusal) }));
                }
                None => proposed.push(&action.id),
            }
        }
        events
    }

    /// History for the guard.
    pub(super) fn history(&self, switch: KillSwitch, now_us: i64) -> guard::History {
        let mut history = self.journaled.intents.history(now_us, switch);
        history.earned.clone_from(&self.earned);
        history
    }
}
