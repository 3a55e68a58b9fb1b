//! Checks the journal of a soak test: reasons are given, and replayed plans equal the recorded
//! ones.

use std::collections::BTreeMap;

use tidegate_autopilot::{
    action::ActionId,
    executor::{ExecutorState, InMemoryJournal, Journal, JournalEntry, JournalEvent, PlanRecord},
    intent::{IntentEvent, Stage, Transition},
    rollout::CanaryEvent,
};

use super::invariant::Invariant;
use super::rollout_check::{RolloutCheck, wrong_step};

/// State of the journal up to the last entry read.
pub(super) struct JournalCheck {
    journal: InMemoryJournal,
    known: ExecutorState,
    /// When an action, or its undo, was first begun, µs since 1970.
    pub(super) begun_us: BTreeMap<ActionId, i64>,
    /// Replayed plans.
    pub(super) plans: u64,
    pub(super) rollout: RolloutCheck,
}

/// A violation: time (µs since 1970), invariant and text.
pub(super) type Found = (i64, Invariant, String);

impl JournalCheck {
    pub(super) fn new(journal: InMemoryJournal) -> Self {
        Self {
            journal,
            known: ExecutorState::default(),
            begun_us: BTreeMap::new(),
            plans: 0,
            rollout: RolloutCheck::default(),
        }
    }

    /// Reads new entries and returns violations.
    pub(super) fn read(&mut self) -> Vec<Found> {
        let entries = self.journal.read().expect("memory can always be read");
        entries.into_iter().flat_map(|entry| self.take(entry)).collect()
    }

    fn take(&mut self, entry: JournalEntry) -> Vec<Found> {
        let (at_us, before, parent) = (entry.at_us, self.known.rejected, self.known.plan.clone());
        let what = entry.event.clone();
        self.known.fold(entry);
        // Entries of an executor without the lease have no effect.
        if self.known.rejected > before {
            return Vec::new();
        }
        let wrong = match what {
            JournalEvent::Planned(planned) => {
                self.plans += 1;
                let (plan, report) = planned.replay(parent.as_ref());
                let same = plan == planned.plan && report == planned.report;
                let other = (!same).then(|| format!("plan {} comes out otherwise", planned.plan.id));
                other
                    .map(|what| (Invariant::Rederived, what))
                    .into_iter()
                    .chain(unexplained(&planned))
                    .chain(self.rollout.plan(&planned))
                    .collect()
            }
            JournalEvent::Step(event) => {
                let wrong = self.step(&event).map(|what| (Invariant::Explained, what));
                wrong.into_iter().chain(wrong_step(&event, &self.known)).collect()
            }
            JournalEvent::Shadow(event) => self.rollout.shadow(&event),
            JournalEvent::Canary(event) => {
                self.rollout.ended +=
                    u64::from(matches!(*event, CanaryEvent::Ended { rolled_back: true, .. }));
                Vec::new()
            }
            JournalEvent::Lease(_)
            | JournalEvent::Scored(_)
            | JournalEvent::Measured(_)
            | JournalEvent::Policy(_)
            | JournalEvent::Alert(_)
            | JournalEvent::Cycles(_)
            | JournalEvent::Switched(_)
            | JournalEvent::Expected(_)
            | JournalEvent::Compared(_)
            | JournalEvent::Refused(_)
            | JournalEvent::Promise(_) => Vec::new(),
        };
        wrong.into_iter().map(|(invariant, what)| (at_us, invariant, what)).collect()
    }

    /// Checks a step; returns what is wrong with it.
    fn step(&mut self, event: &IntentEvent) -> Option<String> {
        let id = &event.action;
        match &event.transition {
            Transition::Applying => {
                self.begun_us.entry(id.clone()).or_insert(event.at_us);
                None
            }
            Transition::Compensating => {
                self.begun_us.entry(format!("{id}-undo")).or_insert(event.at_us);
                None
            }
            Transition::Dropped { refusal: Some(refusal) } => refusal
                .why
                .is_empty()
                .then(|| format!("{id} was refused by {:?} without a word", refusal.rule)),
            Transition::Dropped { refusal: None } => {
                let expires_us = self.known.intents.get(id)?.decision.action.expires_us;
                (event.at_us < expires_us).then(|| format!("{id} was dropped in time, and nobody says why"))
            }
            Transition::Failed { why, .. } => {
                why.is_empty().then(|| format!("{id} failed, and nobody says why"))
            }
            _ => None,
        }
    }

    /// Open actions that are older than `before_us`.
    pub(super) fn stuck(&self, before_us: i64) -> impl Iterator<Item = (&ActionId, &Stage)> {
        let old = self.known.intents.open().filter(move |intent| intent.at_us() < before_us);
        old.map(|intent| (&intent.decision.action.id, &intent.stage))
    }
}

/// Decisions of a plan without a reason in its report.
fn unexplained(planned: &PlanRecord) -> Vec<(Invariant, String)> {
    let recorded = |id: &ActionId| {
        let about =
            |considered: &&tidegate_autopilot::planner::Considered| considered.action.as_ref() == Some(id);
        planned.report.considered.iter().find(about).is_some_and(|considered| !considered.reason.is_empty())
    };
    let ids = planned.plan.decisions.iter().map(|decision| &decision.action.id);
    ids.filter(|id| !recorded(id))
        .map(|id| (Invariant::Explained, format!("nobody says why {id} was decided")))
        .collect()
}
