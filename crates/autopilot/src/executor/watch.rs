//! The executor's eye on itself: whether plans come in time, promises are kept and actions
//! verified, and alerts where they are not.

use super::{Executor, Foresees, Journal, Stop, What};
use crate::slo::Cycles;

impl<J: Journal, F: Foresees> Executor<J, F> {
    /// Puts on record what whoever runs it had to say.
    pub(super) fn tell_notes(&mut self, now_us: i64) -> Result<(), Stop> {
        let Some(generation) = self.mine.filter(|_| !self.notes.is_empty()) else { return Ok(()) };
        let mut notes = self.notes.clone();
        for note in &mut notes {
            if let What::Step(event) = note {
                (event.at_us, event.generation) = (now_us, generation);
            }
        }
        self.record(notes, now_us)?;
        self.notes.clear();
        Ok(())
    }

    /// Counts a plan that is made now, or that could not be, and those that are missing before it.
    /// What is missing is on record at once, what goes well with the next plan that is.
    pub(super) fn cycle(&mut self, now_us: i64, made: bool) -> Result<(), Stop> {
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
        self.record(vec![What::Cycles(cycles)], now_us)
    }

    /// Puts alerts on record that begin or end.
    pub(super) fn watch_itself(&mut self, now_us: i64) -> Result<(), Stop> {
        self.known.slo.tallies.expire(now_us);
        let due = self.known.slo.due(&self.policy.slo, now_us);
        if due.is_empty() {
            return Ok(());
        }
        self.record(due.into_iter().map(|alert| What::Alert(Box::new(alert))).collect(), now_us)
    }
}
