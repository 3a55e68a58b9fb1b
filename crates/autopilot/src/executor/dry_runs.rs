//! Dry runs of what is about to begin, and their comparison with what was observed afterwards.

use tidegate_units::Micros;

use super::{Executor, Journal, JournalEvent, OnlineForecast, StepError};
use crate::action::{Action, ActionId};
use crate::dry_run::{self, Candidate, Compared, Expected, Outcome};
use crate::guard::{ActionStatus, KillSwitch, PastAction, Refusal, Rule, Verdict};
use crate::intent::{Intent, IntentEvent, Stage, Transition};
use crate::planner::Decision;
use crate::policy::Mode;
use crate::state::{ClusterState, Object};

/// Longest time until a scheduler starts every job that can start. Slurm's main scheduler goes
/// through the whole queue once a minute (`sched_interval`).
const SETTLES_WITHIN_S: i64 = 60;

impl<J: Journal, F: OnlineForecast> Executor<J, F> {
    /// Tries all actions that may begin now, in order, behind those under way. The guard is asked
    /// for each as it will be asked right before it begins, with the ones before it in flight.
    pub(super) fn try_due(&self, state: &ClusterState, now_us: i64) -> Outcome {
        let due = self.due(now_us);
        if due.is_empty() {
            return Outcome::default();
        }
        let actions: Vec<Action> = due.iter().map(|intent| intent.action()).collect();
        let batch = due.iter().zip(&actions).map(|(intent, action)| self.candidate(&intent.decision, action));
        let batch: Vec<Candidate<'_>> = batch.collect();
        let under_way = self.under_way(state);
        let history = self.history(KillSwitch::On, now_us);
        dry_run::try_batch(&self.policy, state, &under_way, &batch, now_us, |candidate, before| {
            let Some(intent) = self.journaled.intents.get(&candidate.action.id) else { return false };
            let mut history = history.clone();
            history.past.retain(|past| past.id != candidate.action.id);
            let begun = before.iter().filter_map(|it| self.journaled.intents.get(&it.action.id));
            history.past.extend(begun.map(|intent| PastAction {
                at_us: now_us,
                outcome: ActionStatus::UnderWay,
                ..intent.past().clone()
            }));
            self.verdict(&intent.decision, candidate.action, state, &history, now_us) == Verdict::Allowed
        })
    }

    /// Whether the dry run lets an action begin that the guard allows. One that the guard had not
    /// allowed when the batch was tried is tried now: an action before it may be over already.
    pub(super) fn fits_the_copy(
        &mut self,
        intent: &Intent,
        action: &Action,
        state: &ClusterState,
        now_us: i64,
    ) -> Result<(), Refusal> {
        if intent.is_unbegun() && !self.tried.has_tried(&action.id) {
            let (under_way, alone) = (self.under_way(state), [self.candidate(&intent.decision, action)]);
            let found = dry_run::try_batch(&self.policy, state, &under_way, &alone, now_us, |_, _| true);
            self.tried.extend(found);
        }
        self.tried.refused.get(&action.id).map_or(Ok(()), |refusal| Err(refusal.clone()))
    }

    /// Tries new decisions that the guard lets begin, behind all that is under way or due. A
    /// decision that waits for a person is tried once that person has approved it.
    pub(super) fn try_decisions(
        &self,
        state: &ClusterState,
        new: &[(&Decision, Verdict)],
        now_us: i64,
    ) -> Outcome {
        let begins = |verdict: &Verdict| match verdict {
            Verdict::Allowed => true,
            // What must come first is decided beside it.
            Verdict::Refused(refusal) => refusal.rule == Rule::Order,
        };
        let new = new.iter().filter(|(_, verdict)| begins(verdict));
        let batch: Vec<Candidate<'_>> =
            new.map(|(decision, _)| self.candidate(decision, &decision.action)).collect();
        if batch.is_empty() {
            return Outcome::default();
        }
        let mut so_far = self.under_way(state);
        so_far.extend(self.due(now_us).into_iter().map(Intent::action));
        dry_run::try_batch(&self.policy, state, &so_far, &batch, now_us, |candidate, before| {
            let is_before = |id: &ActionId| {
                before.iter().any(|it| it.action.id == *id) || self.journaled.intents.get(id).is_some()
            };
            candidate.action.after.iter().all(is_before)
        })
    }

    fn candidate<'a>(&self, decision: &'a Decision, action: &'a Action) -> Candidate<'a> {
        Candidate {
            action,
            restores: self.restores(decision, action),
            makes_room_for: match &decision.serves {
                Some(Object::Job(job)) => Some(job),
                _ => None,
            },
        }
    }

    /// Approved actions that have not begun, in the order of their decisions.
    fn due(&self, now_us: i64) -> Vec<&Intent> {
        let is_due = |intent: &&Intent| {
            let is_approved = match intent.stage {
                Stage::Proposed => intent.decision.mode == Mode::Act,
                Stage::Approved | Stage::Leased { .. } => true,
                _ => false,
            };
            is_approved && now_us < intent.decision.action.expires_us
        };
        let open = self.journaled.open();
        open.iter().filter_map(|id| self.journaled.intents.get(id)).filter(is_due).collect()
    }

    /// Actions whose effect `state` need not show: in flight, or verified after it was observed.
    fn under_way(&self, state: &ClusterState) -> Vec<Action> {
        let is_unseen = |intent: &&Intent| match intent.stage {
            Stage::Applying { .. } => true,
            Stage::Verified { at_us } => at_us >= state.at_us,
            _ => false,
        };
        let mut unseen: Vec<&Intent> = self.journaled.intents.all().filter(is_unseen).collect();
        unseen.sort_by_key(|intent| (intent.at_us(), &intent.decision.action.id));
        unseen.into_iter().map(Intent::action).collect()
    }

    /// Whether an action will not be done after all. If the dry run counted on it, the rest must
    /// be tried anew.
    pub(super) fn is_off(&self, id: &ActionId) -> bool {
        let stage = self.journaled.intents.get(id).map(|intent| &intent.stage);
        matches!(stage, Some(Stage::Dropped | Stage::Failed { .. }))
    }

    /// Records what is expected of an action, and that it begins.
    pub(super) fn record_beginning(&mut self, action: &ActionId, now_us: i64) -> Result<(), StepError> {
        let Some(generation) = self.generation else { return Err(StepError::Fenced) };
        let transition = Transition::Applying;
        self.steps.push((action.clone(), transition.name()));
        let expected = self.tried.expected.remove(action).map(|it| JournalEvent::Expected(Box::new(it)));
        let step = IntentEvent { action: action.clone(), at_us: now_us, generation, transition };
        let events = expected.into_iter().chain([JournalEvent::Step(Box::new(step))]);
        self.record(events.collect(), now_us)
    }

    /// Compares what was expected with the first observation that can show it.
    pub(super) fn compare_expected(&mut self, state: &ClusterState, now_us: i64) -> Result<(), StepError> {
        let due = self.journaled.expected.values().filter_map(|expected| self.compared(expected, state));
        let due: Vec<JournalEvent> = due.map(|it| JournalEvent::Compared(Box::new(it))).collect();
        if due.is_empty() { Ok(()) } else { self.record(due, now_us) }
    }

    /// `None`: the action or one beside it is not over, or `state` cannot show it yet.
    fn compared(&self, expected: &Expected, state: &ClusterState) -> Option<Compared> {
        let Stage::Verified { at_us: mut last_us } = self.journaled.intents.get(&expected.action)?.stage
        else {
            return None;
        };
        let mut without = Vec::new();
        for id in &expected.beside {
            match self.journaled.intents.get(id) {
                Some(Intent { stage: Stage::Verified { at_us }, .. }) => last_us = last_us.max(*at_us),
                Some(intent) if !intent.is_over() => return None,
                _ => without.push(id.clone()),
            }
        }
        let settles_us = last_us + Micros::from_secs(SETTLES_WITHIN_S).0;
        let is_settled = state.at_us > settles_us || expected.waiting(state).next().is_none();
        (state.at_us > last_us && is_settled).then(|| expected.compare(state, without))
    }
}
