//! The lease: which process leads, and whether it still does.

use tidegate_units::Millis;

use super::{Executor, Journal, JournalEntry, JournalEvent, OnlineForecast, Role, Settings, StepError};
use crate::intent::Lease;

impl<J: Journal, F: OnlineForecast> Executor<J, F> {
    /// Whether the newest lease in the journal is its own.
    pub(super) fn holds_lease(&self, generation: u64) -> bool {
        let lease = self.journaled.lease.as_ref();
        lease.is_some_and(|lease| lease.generation == generation && lease.holder == self.settings.holder)
    }

    /// Takes or renews the lease.
    pub(super) fn acquire_lease(&mut self, now_us: i64) -> Result<Role, StepError> {
        let Settings { holder, lease_ms, .. } = &self.settings;
        let lease = match Lease::take(self.journaled.lease.as_ref(), holder, now_us, *lease_ms) {
            Ok(lease) => lease,
            Err(held) => {
                self.generation = None;
                return Ok(Role::Standby(held));
            }
        };
        let generation = lease.generation;
        if self.generation != Some(generation) {
            // The time in which nobody planned counts.
            self.cycle_us = self.journaled.alive_us;
        }
        let held = self.journaled.lease.as_ref().filter(|_| self.generation == Some(generation));
        // Renews once a third of the lifetime has passed.
        if held.is_none_or(|held| held.until_us - now_us < Millis(*lease_ms).to_micros().0 * 2 / 3) {
            let entry = JournalEntry { at_us: now_us, generation, event: JournalEvent::Lease(lease) };
            self.journal.append(vec![entry])?;
            self.catch_up()?;
            if !self.holds_lease(generation) {
                return Err(StepError::Fenced);
            }
            self.generation = Some(generation);
        }
        Ok(Role::Leading { generation })
    }
}
