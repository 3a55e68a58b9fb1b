//! Measured impact: what a verified action gains during its prediction period, compared with doing
//! nothing.

use tidegate_units::Millis;

use super::{Executor, Journal, JournalEvent, OnlineForecast, StepError};
use crate::action::Change;
use crate::intent::{Intent, Stage};
use crate::planner::Decision;
use crate::scorecard::{Realised, Score, score};
use crate::state::{ClusterState, Job, JobState};

/// Thousandths of a GPU x microseconds in a GPU millisecond.
const MILLI_US_PER_GPU_MS: i128 = 1_000_000;

/// Useful GPU time an action gains, summed over observations. Between two, the first is assumed to
/// hold.
#[derive(Debug, Clone)]
pub(super) struct Impact {
    change: Change,
    at_us: i64,
    ends_us: i64,
    rate_gpu_milli: Option<i64>,
    /// Thousandths of a GPU x microseconds: divided once, at the end.
    gained_milli_us: i128,
    /// At one observation the gain could not be determined.
    unknown: bool,
}

impl Impact {
    pub(super) fn new(decision: &Decision, state: &ClusterState) -> Self {
        let change = decision.action.change.clone();
        let rate_gpu_milli = rate(&change, state);
        Self {
            at_us: state.at_us,
            ends_us: state.at_us + Millis(decision.predicted.over_ms).to_micros().0,
            rate_gpu_milli,
            change,
            gained_milli_us: 0,
            unknown: rate_gpu_milli.is_none(),
        }
    }

    pub(super) fn observe(&mut self, state: &ClusterState) {
        let until_us = state.at_us.min(self.ends_us);
        match self.rate_gpu_milli {
            _ if until_us <= self.at_us => {}
            Some(rate) => self.gained_milli_us += i128::from(rate) * i128::from(until_us - self.at_us),
            None => self.unknown = true,
        }
        self.at_us = self.at_us.max(until_us);
        self.rate_gpu_milli = rate(&self.change, state);
    }

    fn gained_gpu_ms(&self) -> Option<i64> {
        let gpu_ms = self.gained_milli_us.div_euclid(MILLI_US_PER_GPU_MS);
        (!self.unknown).then(|| i64::try_from(gpu_ms).unwrap_or(i64::MAX))
    }
}

/// GPUs of useful work gained by the change, thousandths. `None`: cannot be determined.
///
/// Loan: what jobs of others than the lender hold of it, which would be idle. Resize: the job's
/// rate at its new size minus that at its old size, by its curve. The effect of other kinds cannot
/// be determined from one cluster.
fn rate(change: &Change, state: &ClusterState) -> Option<i64> {
    match change {
        Change::Lend { from, to, gpus, nodes, .. } => {
            let running = state.jobs.values().filter(|job| matches!(job.state, JobState::Running { .. }));
            if nodes.is_empty() {
                let held: u32 = running.filter(|job| job.owner == *to).map(Job::held_gpus).sum();
                let quota: u32 = state.owners.get(to)?.shares.values().map(|share| share.quota_gpus).sum();
                return Some(gpu_milli(held.saturating_sub(quota).min(*gpus)));
            }
            let on = |job: &Job| -> u32 {
                job.placement.iter().filter(|(node, _)| nodes.contains(*node)).map(|(_, gpus)| gpus).sum()
            };
            // The borrower may share it with others if the scheduler allows.
            Some(gpu_milli(running.filter(|job| job.owner != *from).map(on).sum()))
        }
        Change::ResizeJob { job, from_gpus, to_gpus, .. } => {
            // A finished job gains nothing more.
            let Some(job) = state.jobs.get(job) else { return Some(0) };
            let curve = job.curve.as_ref()?;
            if job.held_gpus() != *to_gpus {
                return Some(0);
            }
            // Millionths of one GPU's work to thousandths.
            let rate = |gpus| i64::try_from(curve.rate_ppm(gpus) / 1000).unwrap_or(i64::MAX);
            Some(rate(*to_gpus) - rate(*from_gpus))
        }
        Change::Reclaim { .. }
        | Change::AdjustReservation(_)
        | Change::DrainNode { .. }
        | Change::ReturnNode { .. }
        | Change::Preempt { .. } => None,
    }
}

/// Whole GPUs in thousandths.
fn gpu_milli(gpus: u32) -> i64 {
    i64::from(gpus) * 1_000
}

impl<J: Journal, F: OnlineForecast> Executor<J, F> {
    /// Scores finished actions. An action that frees a loan's GPUs is not scored by itself: the
    /// work its job loses is the loan's cost. Actions verified by a previous process are not
    /// scored.
    pub(super) fn score(&mut self, now_us: i64) -> Result<(), StepError> {
        let due = self.journaled.intents.all().filter(|intent| {
            let predicted = &intent.decision.predicted;
            match intent.stage {
                Stage::Verified { at_us } => now_us >= at_us + Millis(predicted.over_ms).to_micros().0,
                Stage::Failed { .. } | Stage::Compensated { .. } => intent.is_over(),
                _ => false,
            }
        });
        let is_own = |intent: &&Intent| {
            let action = &intent.decision.action;
            !self.journaled.is_scored(&action.id) && !self.journaled.intents.frees_a_loan(action)
        };
        let due: Vec<Intent> = due.filter(is_own).cloned().collect();
        let scores: Vec<JournalEvent> =
            due.iter().map(|intent| JournalEvent::Scored(self.scored(intent))).collect();
        for intent in &due {
            self.impacts.remove(&intent.decision.action.id);
        }
        match scores.is_empty() {
            true => Ok(()),
            false => self.record(scores, now_us),
        }
    }

    fn scored(&self, intent: &Intent) -> Score {
        let Decision { action, kind, predicted, .. } = &intent.decision;
        let verified = matches!(intent.stage, Stage::Verified { .. });
        let benefit_gpu_ms = match verified {
            true => self.impacts.get(&action.id).and_then(Impact::gained_gpu_ms),
            false => Some(0),
        };
        // Work lost because a loan was reclaimed is the loan's cost; a resize costs its pause.
        let cost_gpu_ms = match &action.change {
            Change::Lend { extends, .. } => {
                let loan = extends.as_ref().unwrap_or(&action.id);
                let (from_us, over_us) = (intent.at_us(), Millis(predicted.over_ms).to_micros().0);
                Some(self.journaled.intents.lost_to_reclaim(loan, from_us, from_us + over_us))
            }
            _ if verified => Some(predicted.cost_gpu_ms),
            _ => None,
        };
        let realised = Realised { verified, benefit_gpu_ms, cost_gpu_ms };
        let canary = intent.decision.canary.clone();
        Score { canary, ..score(&action.id, *kind, intent.at_us(), predicted, &realised) }
    }
}
