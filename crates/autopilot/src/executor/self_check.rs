//! Self-check: counts planning cycles and records queued events and SLO alerts.

use super::{Executor, Journal, JournalEvent, OnlineForecast, StepError};
use crate::slo::Cycles;

impl<J: Journal, F: OnlineForecast> Executor<J, F> {
    /// Records queued events.
    pub(super) fn record_queued(&mut self, now_us: i64) -> Result<(), StepError> {
        let Some(generation) = self.generation.filter(|_| !self.queued.is_empty()) else { return Ok(()) };
        let mut notes = self.queued.clone();
        for note in &mut notes {
            if let JournalEvent::Step(event) = note {
                (event.at_us, event.generation) = (now_us, generation);
            }
        }
        self.record(notes, now_us)?;
        self.queued.clear();
        Ok(())
    }

    /// Counts a plan made or failed now, and plans missed before it. Missed plans are recorded at
    /// once, successful ones with the next recorded plan.
    pub(super) fn count_cycle(&mut self, now_us: i64, made: bool) -> Result<(), StepError> {
        let since_us = self.cycle_us.map_or(0, |cycle_us| now_us - cycle_us);
        let missed = Cycles::missing(since_us, self.settings.plan_every_ms);
        if made || missed > 0 || self.cycle_us.is_none() {
            self.cycle_us = Some(now_us);
        }
        self.cycles.made += u64::from(made);
        self.cycles.missed += missed;
        if self.cycles.missed == 0 {
            return Ok(());
        }
        let cycles = std::mem::take(&mut self.cycles);
        self.record(vec![JournalEvent::Cycles(cycles)], now_us)
    }

    /// Records alerts that begin or end.
    pub(super) fn record_alerts(&mut self, now_us: i64) -> Result<(), StepError> {
        self.journaled.slo.tallies.expire(now_us);
        let due = self.journaled.slo.due(&self.policy.slo, now_us);
        if due.is_empty() {
            return Ok(());
        }
        self.record(due.into_iter().map(|alert| JournalEvent::Alert(Box::new(alert))).collect(), now_us)
    }
}
