//! Tallies: good and bad events per minute, counted from the journal.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use tidegate_units::Millis;

use super::{DAY_US, MINUTE_US, Objective, Series};
use crate::action::{ActionId, Change};
use crate::intent::{IntentEvent, Stage, Transition};
use crate::planner::Decision;

/// How long minutes are kept.
const KEPT_US: i64 = 31 * DAY_US;

/// Good and bad events.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Counts {
    /// Good events.
    pub good: u64,
    /// Bad events.
    pub bad: u64,
}

impl Counts {
    /// All events.
    pub fn all(&self) -> u64 {
        self.good + self.bad
    }
}

/// Planning cycles since the last record: plans made and plans missed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Cycles {
    /// Made.
    pub made: u64,
    /// Missing.
    pub missed: u64,
}

impl Cycles {
    /// Plans missed after `since_us` without one, with one due every `every_ms`. Up to half an
    /// interval late is in time, because the loop polls.
    pub fn missing(since_us: i64, every_ms: i64) -> u64 {
        let every_us = Millis(every_ms.max(1)).to_micros().0;
        u64::try_from((since_us - every_us / 2).div_euclid(every_us)).unwrap_or(0)
    }
}

/// A reclaim whose promise is still open.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct OpenPromise {
    at_us: i64,
    within_ms: i64,
}

impl OpenPromise {
    fn until_us(&self) -> i64 {
        self.at_us.saturating_add(Millis(self.within_ms).to_micros().0)
    }
}

/// Counts by series and minute.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tallies {
    #[serde(with = "crate::pairs")]
    minutes: BTreeMap<Series, BTreeMap<i64, Counts>>,
    open: BTreeMap<ActionId, OpenPromise>,
}

impl Tallies {
    /// Counts an event that an intent accepted. `before` is its earlier stage. The promised time
    /// `within_ms` runs from the approval: a person's delay is not the autopilot's.
    pub fn record(&mut self, event: &IntentEvent, before: &Stage, decision: &Decision, within_ms: i64) {
        let verified = Series { objective: Objective::Verified, kind: Some(decision.kind) };
        let IntentEvent { action, at_us, .. } = event;
        match &event.transition {
            Transition::Approved { .. } if *before == Stage::Proposed => {
                if matches!(decision.action.change, Change::Reclaim { .. }) {
                    self.open.insert(action.clone(), OpenPromise { at_us: *at_us, within_ms });
                }
            }
            Transition::Verified | Transition::Failed { .. } if matches!(before, Stage::Applying { .. }) => {
                let done = matches!(event.transition, Transition::Verified);
                self.add(verified, *at_us, done);
                self.decided(action, *at_us, done);
            }
            Transition::Dropped { .. } | Transition::Rejected { .. } | Transition::Yielded { .. } => {
                self.open.remove(action);
            }
            _ => {}
        }
    }

    /// Counts promises overdue at `now_us` as broken, whatever happens later.
    pub fn expire(&mut self, now_us: i64) {
        let late = |promise: &OpenPromise| now_us > promise.until_us();
        let broken: Vec<ActionId> =
            self.open.iter().filter(|(_, promise)| late(promise)).map(|(id, _)| id.clone()).collect();
        for id in broken {
            self.decided(&id, now_us, false);
        }
    }

    fn decided(&mut self, action: &str, at_us: i64, done: bool) {
        let Some(promise) = self.open.remove(action) else { return };
        let until_us = promise.until_us();
        let kept = done && at_us <= until_us;
        // A promise is broken when its time is up, or when the action failed before.
        let at_us = if kept { at_us } else { at_us.min(until_us) };
        self.add(Series { objective: Objective::Promises, kind: None }, at_us, kept);
    }

    /// Counts cycles recorded at `at_us`.
    pub fn cycles(&mut self, cycles: Cycles, at_us: i64) {
        let minute = self.minute(Series { objective: Objective::Cycles, kind: None }, at_us);
        minute.good += cycles.made;
        minute.bad += cycles.missed;
    }

    fn add(&mut self, series: Series, at_us: i64, good: bool) {
        let minute = self.minute(series, at_us);
        match good {
            true => minute.good += 1,
            false => minute.bad += 1,
        }
    }

    fn minute(&mut self, series: Series, at_us: i64) -> &mut Counts {
        self.minutes.entry(series).or_default().entry(at_us.div_euclid(MINUTE_US)).or_default()
    }

    /// Series with events.
    pub fn series(&self) -> BTreeSet<Series> {
        self.minutes.keys().copied().collect()
    }

    /// Events after the minute of `from_us`, up to and including that of `to_us`.
    pub fn counts(&self, series: Series, from_us: i64, to_us: i64) -> Counts {
        let (from, to) = (from_us.div_euclid(MINUTE_US) + 1, to_us.div_euclid(MINUTE_US));
        let mut sum = Counts::default();
        if let Some(minutes) = self.minutes.get(&series).filter(|_| from <= to) {
            for counts in minutes.range(from..=to).map(|(_, counts)| counts) {
                sum.good += counts.good;
                sum.bad += counts.bad;
            }
        }
        sum
    }

    /// Forgets minutes older than any window at `now_us`.
    pub fn forget(&mut self, now_us: i64) {
        let from = (now_us - KEPT_US).div_euclid(MINUTE_US);
        self.minutes.values_mut().for_each(|minutes| *minutes = minutes.split_off(&from));
        self.minutes.retain(|_, minutes| !minutes.is_empty());
    }
}
