//! Candidates beside the policy that acts: when a canary begins and ends, by which policies its
//! decisions are judged, and what a shadow thought.

use super::{Executor, Foresees, Journal, Stop, What};
use crate::action::{Action, ActionId, Kind};
use crate::guard::{self, History, Refusal, Rule, Switch, Verdict};
use crate::intent::{self, Intent, IntentEvent, Stage};
use crate::planner::{Decision, Plan, Report};
use crate::policy::Policy;
use crate::rollout::rollback::{self, Record};
use crate::rollout::shadow::{Seen, Shadow, Thought};
use crate::rollout::{Canary, Candidates, Told};
use crate::state::ClusterState;

impl<J: Journal, F: Foresees> Executor<J, F> {
    /// Tries these beside its policy.
    #[must_use]
    pub fn beside(mut self, candidates: Candidates) -> Self {
        self.shadow = candidates.shadow.map(Shadow::new);
        self.canary = candidates.canary;
        self
    }

    /// The canary that acts for its owners now; `None`: none is tried, or it has ended.
    pub fn acting_canary(&self) -> Option<&Canary> {
        let canary = self.canary.as_ref()?;
        let stands = self.known.canaries.get(&canary.id())?;
        stands.ended.is_none().then_some(canary)
    }

    /// The canary that acts, as far as the record of each kind lets it go.
    pub(super) fn planning_canary(&self) -> Option<Canary> {
        let canary = self.acting_canary()?.clone();
        let policy = Policy { at_most: self.known.earned_beside(&canary.policy), ..canary.policy };
        Some(Canary { policy, ..canary })
    }

    /// Lets the canary begin or end. One whose owners the cluster does not know does not begin. One
    /// that its record ended begins anew when a person says so, as they approve an action.
    pub(super) fn tend_canary(
        &mut self,
        approved: &[(ActionId, String)],
        state: &ClusterState,
        now_us: i64,
    ) -> Result<(), Stop> {
        let own = self.canary.as_ref().map(|canary| (canary.id(), canary.clone()));
        let own_id = own.as_ref().map(|(id, _)| id);
        let left: Vec<Told> = (self.known.canaries.acting().filter(|(id, _)| Some(*id) != own_id))
            .map(|(id, stands)| Told::Ended {
                id: id.clone(),
                policy: stands.policy.clone(),
                why: "the policy that acts does not name it any more".to_owned(),
                rolled_back: false,
            })
            .collect();
        for told in left {
            self.tell_canary(told, now_us)?;
        }
        let Some((id, canary)) = own else { return Ok(()) };
        let person =
            || approved.iter().find(|(of, by)| *of == id && by != "policy").map(|(_, by)| by.clone());
        let stands = self.known.canaries.get(&id);
        let began_us = stands.filter(|stands| stands.ended.is_none()).map(|stands| stands.began_us);
        let by = match stands.and_then(|stands| stands.ended.as_ref()) {
            Some((_, _, true)) => person(),
            _ => None,
        };
        let rolled_back =
            stands.and_then(|stands| stands.ended.as_ref()).is_some_and(|(_, _, by_record)| *by_record);
        let told = match began_us {
            Some(began_us) => self.rolls_back(&canary, began_us, now_us).map(|why| {
                let policy = canary.policy.name.clone();
                Told::Ended { id, policy, why, rolled_back: true }
            }),
            None if (!rolled_back || by.is_some()) && canary.known_in(state).is_ok() => {
                Some(Told::Began { what: Box::new(canary), by })
            }
            None => None,
        };
        match told {
            Some(told) => self.tell_canary(told, now_us),
            None => Ok(()),
        }
    }

    /// Records that a canary began, or that it ended and what of it is not begun never will be: the
    /// policy that acts for the rest decides on it anew. What gives back goes on.
    fn tell_canary(&mut self, told: Told, now_us: i64) -> Result<(), Stop> {
        let generation = self.mine.unwrap_or_default();
        let mut what = Vec::new();
        if let Told::Ended { policy, .. } = &told {
            let unbegun = |intent: &&Intent| {
                matches!(intent.stage, Stage::Proposed | Stage::Approved | Stage::Leased { .. })
                    && intent.decision.canary.as_ref() == Some(policy)
                    && !self.gives_back(&intent.decision, &intent.decision.action)
            };
            for intent in self.known.intents.open().filter(unbegun) {
                let action = intent.decision.action.id.clone();
                let what_of_it = intent::What::Dropped { refusal: Some(over(policy)) };
                let event = IntentEvent { action, at_us: now_us, generation, what: what_of_it };
                what.push(What::Step(Box::new(event)));
            }
        }
        what.insert(0, What::Canary(Box::new(told)));
        self.record(what, now_us)
    }

    /// Whether a decision gives back what the autopilot took, or frees it.
    fn gives_back(&self, decision: &Decision, action: &Action) -> bool {
        matches!(decision.kind, Kind::Reclaim | Kind::ReturnNode) || self.known.intents.frees_a_loan(action)
    }

    fn rolls_back(&self, canary: &Canary, began_us: i64, now_us: i64) -> Option<String> {
        let record = Record {
            policy: &canary.policy.name,
            began_us,
            scores: &self.known.scores,
            intents: &self.known.intents,
            breaker_trips: self.known.canaries.trips(began_us),
            window: self.policy.record.window,
        };
        rollback::why(&canary.rollback, &record, now_us)
    }

    /// What the guard says of an action. A canary's is asked of both policies, as it uses the
    /// budgets and floors of all; once the canary has ended nothing of it is begun, but what gives
    /// back.
    pub(super) fn judge(
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
            let earned = self.known.earned_beside(&canary.policy);
            let history = History { earned, ..history.clone() };
            return canary.verdict(&self.policy, state, &history, action, now_us);
        }
        match self.gives_back(decision, action) {
            true => guard::verdict(&self.policy, state, history, action, now_us),
            false => Verdict::Refused(over(name)),
        }
    }

    /// What the shadow makes of what the acting plan was made from.
    pub(super) fn shadow_thinks(
        &self,
        state: &ClusterState,
        plan: &Plan,
        report: &Report,
    ) -> Option<Thought> {
        let shadow = self.shadow.as_ref()?;
        let history = self.history(Switch::On, plan.made_us);
        let seen = Seen { state, forecast: &self.forecast, history: &history, plan, report };
        Some(shadow.think(seen, &self.known.earned(shadow.policy())))
    }

    /// Whether a thought holds what was not told lately.
    pub(super) fn is_news(&self, thought: Option<&Thought>) -> bool {
        let of = self.shadow.as_ref().zip(thought);
        of.is_some_and(|(shadow, thought)| shadow.has_news(thought, self.settings.repeat_every_ms * 1000))
    }

    /// What is to be recorded of a thought.
    pub(super) fn tell_thought(&mut self, thought: Option<Thought>) -> Vec<What> {
        let (every_us, generation) = (self.settings.repeat_every_ms * 1000, self.mine.unwrap_or_default());
        let Some((shadow, thought)) = self.shadow.as_mut().zip(thought) else { return Vec::new() };
        let told = shadow.tell(thought, generation, every_us);
        told.into_iter().map(|told| What::Shadow(Box::new(told))).collect()
    }
}

/// Of what a candidate decided that does not act any more.
fn over(policy: &str) -> Refusal {
    Refusal { rule: Rule::Mode, why: format!("the candidate {policy} that decided it does not act any more") }
}
