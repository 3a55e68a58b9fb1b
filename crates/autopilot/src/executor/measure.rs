//! Measures what verified actions gain, and scores them when their period is over.
//!
//! Measurements are written into the journal now and then, so a successor goes on with them. What
//! nobody observed between the last entry and its first observation counts as unseen.

use std::collections::BTreeMap;

use tidegate_units::Millis;

use super::{Executor, Journal, JournalEvent, OnlineForecast, StepError};
use crate::action::{ActionId, Change};
use crate::impact::{Companions, LONGEST_US, Measurements, Meter, Suspects, View};
use crate::intent::{Intent, Stage};
use crate::planner::Decision;
use crate::policy::Policy;
use crate::scorecard::{Interval, Realised, Score, score};
use crate::state::ClusterState;

/// Measurements of the process that leads.
#[derive(Debug, Default)]
pub(super) struct Measuring {
    /// Generation under which they were taken up from the journal.
    generation: Option<u64>,
    meters: BTreeMap<ActionId, Meter>,
    suspects: Suspects,
    /// When a suspicion first began or ended that is not written yet.
    news_us: Option<i64>,
}

impl<J: Journal, F: OnlineForecast> Executor<J, F> {
    /// Takes in an observation.
    pub(super) fn measure(&mut self, state: &ClusterState) {
        if self.measuring.generation != self.generation {
            // Another may have led meanwhile.
            let Measurements { meters, suspects } = self.journaled.measured.clone();
            let suspects = suspects.unwrap_or_default();
            self.measuring =
                Measuring { generation: self.generation, meters, suspects, ..Measuring::default() };
        }
        let Self { measuring, journaled, policy, .. } = self;
        measuring.meters.retain(|id, _| journaled.intents.get(id).is_some());
        if !measuring.meters.is_empty() {
            let view = View::of(state);
            for (id, meter) in &mut measuring.meters {
                if let Some(of) = journaled.intents.get(id).and_then(Intent::measured) {
                    meter.observe(&of, &view);
                }
            }
        }
        if measuring.suspects.observe(state, &policy.drain, LONGEST_US) {
            measuring.news_us.get_or_insert(state.at_us);
        }
    }

    /// Begins to measure what was verified.
    pub(super) fn measure_verified(&mut self, state: &ClusterState) {
        let Self { measuring, journaled, .. } = self;
        let is_new = |id: &ActionId| !journaled.is_scored(id) && !measuring.meters.contains_key(id);
        let verified = journaled.intents.all().filter_map(|intent| {
            let id = &intent.decision.action.id;
            intent.measured().filter(|_| is_new(id)).map(|of| (id.clone(), of))
        });
        let verified: Vec<_> = verified.collect();
        if verified.is_empty() {
            return;
        }
        let view = View::of(state);
        for (id, of) in verified {
            measuring.meters.insert(id, Meter::begin(&of, &view));
        }
    }

    /// Scores finished actions, and writes down measurements. An action that is part of another is
    /// not scored by itself: the work its job loses is a cost of the loan or the drain.
    pub(super) fn score(&mut self, now_us: i64) -> Result<(), StepError> {
        let is_due = |intent: &&Intent| match intent.stage {
            Stage::Verified { .. } => intent.measured().is_some_and(|of| now_us >= of.ends_us()),
            Stage::Failed { .. } | Stage::Compensated { .. } => intent.is_over(),
            _ => false,
        };
        let is_own = |intent: &&Intent| {
            !self.journaled.is_scored(&intent.decision.action.id) && !self.journaled.intents.is_part(intent)
        };
        let due: Vec<&Intent> = self.journaled.intents.all().filter(is_due).filter(is_own).collect();
        let mut events: Vec<JournalEvent> =
            due.iter().map(|intent| JournalEvent::Scored(self.scored(intent))).collect();
        let over: Vec<ActionId> = due.iter().map(|intent| intent.decision.action.id.clone()).collect();
        self.measuring.meters.retain(|id, _| !over.contains(id));
        events.extend(self.measurements(now_us).map(|it| JournalEvent::Measured(Box::new(it))));
        match events.is_empty() {
            true => Ok(()),
            false => self.record(events, now_us),
        }
    }

    /// Measurements that are due to be written.
    fn measurements(&mut self, now_us: i64) -> Option<Measurements> {
        let measuring = &mut self.measuring;
        let due = measuring.meters.iter_mut().filter(|(_, meter)| meter.is_due());
        let meters: BTreeMap<ActionId, Meter> = due.map(|(id, meter)| (id.clone(), meter.write())).collect();
        let every_us = Millis(self.settings.repeat_every_ms).to_micros().0;
        // Later by that much, a restart loses no more than the beginning of a trial of hours.
        let news = measuring.news_us.take_if(|news_us| now_us - *news_us >= every_us);
        let suspects = news.map(|_| measuring.suspects.clone());
        (!meters.is_empty() || suspects.is_some()).then_some(Measurements { meters, suspects })
    }

    fn scored(&self, intent: &Intent) -> Score {
        let Decision { action, kind, predicted, serves, canary, .. } = &intent.decision;
        let realised = match (intent.measured(), self.measuring.meters.get(&action.id)) {
            (Some(of), Some(meter)) => {
                let lost = self.lost_by_others(intent);
                meter.realised(&of, &Companions { lost, suspects: &self.measuring.suspects })
            }
            (Some(_), None) => Realised::verified(None, None),
            (None, _) => Realised::without_effect(),
        };
        let score = score(&action.id, *kind, intent.at_us(), predicted, &realised);
        // Room for others is predicted without correction, so it corrects nothing.
        let predicted_benefit = score.predicted_benefit.filter(|_| serves.is_none());
        Score { predicted_benefit, canary: canary.clone(), ..score }
    }

    /// Work lost by jobs that other actions disturbed for this one, GPUs × ms. `None`: unknown.
    fn lost_by_others(&self, intent: &Intent) -> Option<Interval> {
        let intents = &self.journaled.intents;
        match &intent.decision.action.change {
            Change::Lend { extends, .. } => {
                let loan = extends.as_ref().unwrap_or(&intent.decision.action.id);
                let (from_us, over_us) =
                    (intent.at_us(), Millis(intent.decision.predicted.over_ms).to_micros().0);
                Some(intents.lost_to_reclaim(loan, from_us, from_us + over_us))
            }
            Change::DrainNode { node, .. } => {
                let moves = intents.moved_off(node, intent.at_us());
                moves
                    .map(|it| self.measuring.meters.get(&it.decision.action.id)?.lost())
                    .try_fold(Interval::point(0), |sum, lost| Some(sum.plus(lost?)))
            }
            _ => Some(Interval::point(0)),
        }
    }

    /// Policy that decided.
    pub(super) fn policy_of(&self, decision: &Decision) -> &Policy {
        let canary =
            self.acting_canary().filter(|canary| decision.canary.as_ref() == Some(&canary.policy.name));
        canary.map_or(&self.policy, |canary| &canary.policy)
    }
}
