//! Measures the promises to owners, and records what becomes of them.

use std::collections::BTreeMap;

use tidegate_units::{Micros, Millis};

use super::{Executor, Journal, JournalEvent, OnlineForecast, StepError};
use crate::promise::{PromiseEvent, Promised, breach, lacking};
use crate::state::{ClusterState, OwnerName};

/// Longest time that an observation is taken to hold until the next one, ms.
const MOST_HELD_MS: i64 = 300_000;

/// Time for which owners lacked what they lent, since it was last recorded.
#[derive(Debug, Default)]
pub(super) struct Unmet {
    /// Owners that lacked something at the last observation.
    lacking: Vec<OwnerName>,
    observed_us: i64,
    ms: BTreeMap<OwnerName, i64>,
    recorded_us: i64,
}

impl Unmet {
    /// Between two observations the first is assumed to hold, for five minutes at most.
    fn observe(&mut self, state: &ClusterState) {
        let passed_ms = Micros(state.at_us.saturating_sub(self.observed_us)).floor_millis().0;
        for owner in self.lacking.drain(..) {
            *self.ms.entry(owner).or_default() += passed_ms.clamp(0, MOST_HELD_MS);
        }
        self.observed_us = state.at_us;
        self.lacking = lacking(state).cloned().collect();
    }

    fn take(&mut self, now_us: i64, every_us: i64) -> BTreeMap<OwnerName, i64> {
        let is_due = now_us.saturating_sub(self.recorded_us) >= every_us;
        if !is_due || self.ms.is_empty() {
            return BTreeMap::new();
        }
        self.recorded_us = now_us;
        std::mem::take(&mut self.ms)
    }
}

impl<J: Journal, F: OnlineForecast> Executor<J, F> {
    /// Adds the promises to the state, and records the waits of before the first action, unmet
    /// time, and promises that break or hold again.
    pub(super) fn update_promises(&mut self, state: &mut ClusterState, now_us: i64) -> Result<(), StepError> {
        self.unmet.observe(state);
        let every_us = Millis(self.settings.repeat_every_ms).to_micros().0;
        let unmet = self.unmet.take(now_us, every_us);
        let unmet = unmet.into_iter().map(|(owner, unmet_ms)| (owner, Promised::Unmet { unmet_ms }));
        self.record_promises(unmet.collect(), now_us)?;
        self.journaled.promises.annotate(state);
        self.record_promises(self.changed(state), now_us)
    }

    /// Records the owners' waits if no action has begun yet. To be called right before one does.
    pub(super) fn record_waits_before(&mut self, state: &ClusterState, now_us: i64) -> Result<(), StepError> {
        if !self.journaled.promises.is_before() {
            return Ok(());
        }
        let known = state.owners.iter().filter_map(|(name, owner)| Some((name.clone(), owner.waits?)));
        self.record_promises(known.map(|(name, waits)| (name, Promised::Before(waits))).collect(), now_us)
    }

    /// Promises that broke or hold again since the last step.
    fn changed(&self, state: &ClusterState) -> Vec<(OwnerName, Promised)> {
        let (rules, before) = (&self.policy.promise, self.journaled.promises.broken());
        let change = |(name, owner): (&OwnerName, _)| match (breach(rules, name, owner), before.get(name)) {
            (Some(why), None) => Some((name.clone(), Promised::Broken { why })),
            (None, Some(_)) => Some((name.clone(), Promised::Kept)),
            _ => None,
        };
        state.owners.iter().filter_map(change).collect()
    }

    fn record_promises(&mut self, of: Vec<(OwnerName, Promised)>, now_us: i64) -> Result<(), StepError> {
        if of.is_empty() {
            return Ok(());
        }
        let event = |(owner, what)| JournalEvent::Promise(Box::new(PromiseEvent { owner, what }));
        self.record(of.into_iter().map(event).collect(), now_us)
    }
}
