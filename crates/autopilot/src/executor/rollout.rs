//! Candidates beside the policy that acts: when a canary begins and ends, by which policies its
//! decisions are judged, and what a shadow thought.

use super::{Executor, Journal, JournalEvent, OnlineForecast, StepError};
use crate::action::{Action, ActionId, Kind};
use crate::guard::{self, History, KillSwitch, Refusal, Rule, Verdict};
use crate::intent::{self, Intent, IntentEvent, Stage};
use crate::planner::{Decision, Plan, Report};
use crate::policy::Policy;
use crate::rollout::rollback::{self, CanaryRecord};
use crate::rollout::shadow::{Shadow, ShadowInput, ShadowResult};
use crate::rollout::{Canary, CanaryEvent, Rollout};
use crate::state::ClusterState;

impl<J: Journal, F: OnlineForecast> Executor<J, F> {
    /// Tries these beside its policy.
    #[must_use]
    pub fn with_rollout(mut self, candidates: Rollout) -> Self {
        self.shadow = candidates.shadow.map(Shadow::new);
        self.canary = candidates.canary;
        self
    }

    /// The canary that acts for its owners now; `None`: none is tried, or it has ended.
    pub fn acting_canary(&self) -> Option<&Canary> {
        let canary = self.canary.as_ref()?;
        let stands = self.journaled.canaries.get(&canary.id())?;
        stands.ended.is_none().then_some(canary)
    }

    /// The canary that acts, as far as the record of each kind lets it go.
    pub(super) fn planning_canary(&self) -> Option<Canary> {
        let canary = self.acting_canary()?.clone();
        let policy = Policy { at_most: self.journaled.earned_by_canary(&canary.policy), ..canary.policy };
        Some(Canary { policy, ..canary })
    }

    /// Lets the canary begin or end. One whose owners the cluster does not know does not begin. One
    /// that its record ended begins anew when a person says so, as they approve an action.
    pub(super) fn update_canary(
        &mut self,
        approved: &[(ActionId, String)],
        state: &ClusterState,
        now_us: i64,
    ) -> Result<(), StepError> {
        let own = self.canary.as_ref().map(|canary| (canary.id(), canary.clone()));
        let own_id = own.as_ref().map(|(id, _)| id);
        let left: Vec<CanaryEvent> = (self.journaled.canaries.acting().filter(|(id, _)| Some(*id) != own_id))
            .map(|(id, stands)| CanaryEvent::Ended {
                id: id.clone(),
                policy: stands.policy.clone(),
                why: "the policy that acts does not name it any more".to_owned(),
                rolled_back: false,
            })
            .collect();
        for told in left {
            self.record_canary(told, now_us)?;
        }
        let Some((id, canary)) = own else { return Ok(()) };
        let person =
            || approved.iter().find(|(of, by)| *of == id && by != "policy").map(|(_, by)| by.clone());
        let stands = self.journaled.canaries.get(&id);
        let began_us = stands.filter(|stands| stands.ended.is_none()).map(|stands| stands.began_us);
        let by = match stands.and_then(|stands| stands.ended.as_ref()) {
            Some((_, _, true)) => person(),
            _ => None,
        };
        let rolled_back =
            stands.and_then(|stands| stands.ended.as_ref()).is_some_and(|(_, _, by_record)| *by_record);
        let told = match began_us {
            Some(began_us) => self.rollback_reason(&canary, began_us, now_us).map(|why| {
                let policy = canary.policy.name.clone();
                CanaryEvent::Ended { id, policy, why, rolled_back: true }
            }),
            None if (!rolled_back || by.is_some()) && canary.check_owners(state).is_ok() => {
                Some(CanaryEvent::Began { canary: Box::new(canary), by })
            }
            None => None,
        };
        match told {
            Some(told) => self.record_canary(told, now_us),
            None => Ok(()),
        }
    }

    /// Records that a canary began, or that it ended and what of it is not begun never will be: the
    /// policy that acts for the rest decides on it anew. What gives back goes on.
    fn record_canary(&mut self, told: CanaryEvent, now_us: i64) -> Result<(), StepError> {
        let generation = self.generation.unwrap_or_default();
        let mut what = Vec::new();
        if let CanaryEvent::Ended { policy, .. } = &told {
            let unbegun = |intent: &&Intent| {
                matches!(intent.stage, Stage::Proposed | Stage::Approved | Stage::Leased { .. })
                    && intent.decision.canary.as_ref() == Some(policy)
                    && !self.restores(&intent.decision, &intent.decision.action)
            };
            for intent in self.journaled.intents.open().filter(unbegun) {
                let action = intent.decision.action.id.clone();
                let what_of_it = intent::Transition::Dropped { refusal: Some(canary_ended(policy)) };
                let event = IntentEvent { action, at_us: now_us, generation, transition: what_of_it };
                what.push(JournalEvent::Step(Box::new(event)));
            }
        }
        what.insert(0, JournalEvent::Canary(Box::new(told)));
        self.record(what, now_us)
    }

    /// Whether a decision gives back what the autopilot took, or frees it.
    fn restores(&self, decision: &Decision, action: &Action) -> bool {
        matches!(decision.kind, Kind::Reclaim | Kind::ReturnNode)
            || self.journaled.intents.frees_a_loan(action)
    }

    fn rollback_reason(&self, canary: &Canary, began_us: i64, now_us: i64) -> Option<String> {
        let record = CanaryRecord {
            policy: &canary.policy.name,
            began_us,
            scores: &self.journaled.scores,
            intents: &self.journaled.intents,
            breaker_trips: self.journaled.canaries.trips(began_us),
            window: self.policy.record.window,
        };
        rollback::reason(&canary.rollback, &record, now_us)
    }

    /// What the guard says of an action. A canary's is asked of both policies, as it uses the
    /// budgets and floors of all; once the canary has ended nothing of it is begun, but what gives
    /// back.
    pub(super) fn verdict(
        &self,
        decision: &Decision,
        action: &Action,
        state: &ClusterState,
        history: &History,
        now_us: i64,
    ) -> Verdict {
        let Some(name) = &decision.canary else {
            return guard::verdict(&self.policy, state, history, action, now_us);
        };
        if let Some(canary) = self.acting_canary().filter(|canary| canary.policy.name == *name) {
            let earned = self.journaled.earned_by_canary(&canary.policy);
            let history = History { earned, ..history.clone() };
            return canary.verdict(&self.policy, state, &history, action, now_us);
        }
        match self.restores(decision, action) {
            true => guard::verdict(&self.policy, state, history, action, now_us),
            false => Verdict::Refused(canary_ended(name)),
        }
    }

    /// What the shadow makes of what the acting plan was made from.
    pub(super) fn shadow_plan(
        &self,
        state: &ClusterState,
        plan: &Plan,
        report: &Report,
    ) -> Option<ShadowResult> {
        let shadow = self.shadow.as_ref()?;
        let history = self.history(KillSwitch::On, plan.made_us);
        let seen = ShadowInput { state, forecast: &self.forecast, history: &history, plan, report };
        Some(shadow.plan(seen, &self.journaled.earned(shadow.policy())))
    }

    /// Whether a thought holds what was not told lately.
    pub(super) fn has_new_decisions(&self, thought: Option<&ShadowResult>) -> bool {
        let of = self.shadow.as_ref().zip(thought);
        of.is_some_and(|(shadow, thought)| {
            shadow.has_new_decisions(thought, self.settings.repeat_every_ms * 1000)
        })
    }

    /// What is to be recorded of a thought.
    pub(super) fn shadow_events(&mut self, thought: Option<ShadowResult>) -> Vec<JournalEvent> {
        let (every_us, generation) =
            (self.settings.repeat_every_ms * 1000, self.generation.unwrap_or_default());
        let Some((shadow, thought)) = self.shadow.as_mut().zip(thought) else { return Vec::new() };
        let told = shadow.record(thought, generation, every_us);
        told.into_iter().map(|told| JournalEvent::Shadow(Box::new(told))).collect()
    }
}

/// Of what a candidate decided that does not act any more.
fn canary_ended(policy: &str) -> Refusal {
    Refusal { rule: Rule::Mode, why: format!("the candidate {policy} that decided it does not act any more") }
}
