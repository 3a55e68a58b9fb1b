//! Rollout of candidate policies: begins and ends the canary, asks both policies about its
//! decisions, and runs the shadow.

use tidegate_units::Millis;

use super::{Executor, Journal, JournalEvent, OnlineForecast, StepError};
use crate::action::Action;
use crate::guard::{self, History, KillSwitch, Refusal, Rule, Verdict};
use crate::intent::{self, Intent, IntentEvent, POLICY_APPROVER, PersonApproval};
use crate::planner::{Decision, Plan, Report};
use crate::policy::Policy;
use crate::rollout::rollback::{self, CanaryRecord};
use crate::rollout::shadow::{Shadow, ShadowInput, ShadowResult};
use crate::rollout::{Canary, CanaryEvent, Rollout};
use crate::state::ClusterState;

impl<J: Journal, F: OnlineForecast> Executor<J, F> {
    /// Adds a shadow or a canary.
    #[must_use]
    pub fn with_rollout(mut self, candidates: Rollout) -> Self {
        self.shadow = candidates.shadow.map(Shadow::new);
        self.canary = candidates.canary;
        self
    }

    /// The canary in charge of its owners. `None`: there is none, or it has ended.
    pub fn acting_canary(&self) -> Option<&Canary> {
        let canary = self.canary.as_ref()?;
        let status = self.journaled.canaries.get(&canary.id())?;
        status.ended.is_none().then_some(canary)
    }

    /// The acting canary with the modes its scorecard allows.
    pub(super) fn planning_canary(&self) -> Option<Canary> {
        let canary = self.acting_canary()?.clone();
        let policy = Policy { at_most: self.journaled.earned_by_canary(&canary.policy), ..canary.policy };
        Some(Canary { policy, ..canary })
    }

    /// Begins or ends the canary. It does not begin while the cluster does not know its owners.
    /// After a rollback it begins again only if a person approves it, like an action.
    pub(super) fn update_canary(
        &mut self,
        approved: &[PersonApproval],
        state: &ClusterState,
        now_us: i64,
    ) -> Result<(), StepError> {
        let own = self.canary.as_ref().map(|canary| (canary.id(), canary.clone()));
        let own_id = own.as_ref().map(|(id, _)| id);
        let left: Vec<CanaryEvent> = (self.journaled.canaries.acting().filter(|(id, _)| Some(*id) != own_id))
            .map(|(id, status)| CanaryEvent::Ended {
                id: id.clone(),
                policy: status.policy.clone(),
                why: "the acting policy no longer names it".to_owned(),
                rolled_back: false,
            })
            .collect();
        for event in left {
            self.record_canary(event, now_us)?;
        }
        let Some((id, canary)) = own else { return Ok(()) };
        let person = || approved.iter().find(|it| it.action == id && it.by != POLICY_APPROVER).cloned();
        let status = self.journaled.canaries.get(&id);
        let began_us = status.filter(|status| status.ended.is_none()).map(|status| status.began_us);
        let person = match status.and_then(|status| status.ended.as_ref()) {
            Some((_, _, true)) => person(),
            _ => None,
        };
        let rolled_back =
            status.and_then(|status| status.ended.as_ref()).is_some_and(|(_, _, by_record)| *by_record);
        let event = match began_us {
            Some(began_us) => self.rollback_reason(&canary, began_us, now_us).map(|why| {
                let policy = canary.policy.name.clone();
                CanaryEvent::Ended { id, policy, why, rolled_back: true }
            }),
            None if (!rolled_back || person.is_some()) && canary.check_owners(state).is_ok() => {
                let (by, signed) = person.map(|it| (it.by, it.signed)).unzip();
                Some(CanaryEvent::Began { canary: Box::new(canary), by, signed: signed.flatten() })
            }
            None => None,
        };
        match event {
            Some(event) => self.record_canary(event, now_us),
            None => Ok(()),
        }
    }

    /// Records that the canary began or ended. When it ends, its decisions that have not begun are
    /// dropped, and the base policy decides anew; restoring actions continue.
    fn record_canary(&mut self, event: CanaryEvent, now_us: i64) -> Result<(), StepError> {
        let generation = self.generation.unwrap_or_default();
        let mut events = Vec::new();
        if let CanaryEvent::Ended { policy, .. } = &event {
            let unbegun = |intent: &&Intent| {
                intent.is_unbegun()
                    && intent.decision.canary.as_ref() == Some(policy)
                    && !self.restores(&intent.decision, &intent.decision.action)
            };
            for intent in self.journaled.intents.open().filter(unbegun) {
                let action = intent.decision.action.id.clone();
                let transition = intent::Transition::Dropped { refusal: Some(canary_ended(policy)) };
                let event = IntentEvent { action, at_us: now_us, generation, transition };
                events.push(JournalEvent::Step(Box::new(event)));
            }
        }
        events.insert(0, JournalEvent::Canary(Box::new(event)));
        self.record(events, now_us)
    }

    /// Whether a decision restores capacity the autopilot took.
    pub(super) fn restores(&self, decision: &Decision, action: &Action) -> bool {
        decision.kind.restores() || self.journaled.intents.frees_a_loan(action)
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

    /// The guard's verdict on an action. Both policies must allow a canary's action, because it
    /// uses shared budgets and floors. After the canary has ended only restoring actions begin.
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

    /// The shadow's result on the inputs of the acting plan.
    pub(super) fn shadow_plan(
        &self,
        state: &ClusterState,
        plan: &Plan,
        report: &Report,
    ) -> Option<ShadowResult> {
        let shadow = self.shadow.as_ref()?;
        let history = self.history(KillSwitch::On, plan.made_us);
        let input = ShadowInput { state, forecast: &self.forecast, history: &history, plan, report };
        Some(shadow.plan(input, &self.journaled.earned(shadow.policy())))
    }

    /// Whether the shadow decides something not recorded recently.
    pub(super) fn has_new_decisions(&self, result: Option<&ShadowResult>) -> bool {
        let of = self.shadow.as_ref().zip(result);
        of.is_some_and(|(shadow, result)| {
            shadow.has_new_decisions(result, Millis(self.settings.repeat_every_ms).to_micros().0)
        })
    }

    /// Events to record for a shadow's result.
    pub(super) fn shadow_events(&mut self, result: Option<ShadowResult>) -> Vec<JournalEvent> {
        let (every_us, generation) =
            (Millis(self.settings.repeat_every_ms).to_micros().0, self.generation.unwrap_or_default());
        let Some((shadow, result)) = self.shadow.as_mut().zip(result) else { return Vec::new() };
        let events = shadow.record(result, generation, every_us);
        events.into_iter().map(|event| JournalEvent::Shadow(Box::new(event))).collect()
    }
}

/// Refusal of decisions whose canary has ended.
fn canary_ended(policy: &str) -> Refusal {
    Refusal { rule: Rule::Mode, why: format!("the canary {policy} that decided it no longer acts") }
}
