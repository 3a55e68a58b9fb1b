//! The meter of one action: follows observations of the cluster until its period is over.

use serde::{Deserialize, Serialize};

use super::amounts::Amounts;
use super::measured::{Companions, Findings, Measured, View, unknown};
use super::{loans, nodes, owners, room};
use crate::action::Change;
use crate::scorecard::{Interval, Realised};

/// Longest time between two observations in which the first is assumed to hold, µs.
pub const LONGEST_US: i64 = 300 * 1_000_000;
/// A measurement that missed more than this part of its period is worth nothing.
const MOST_UNSEEN: i64 = 4;
/// How often a meter is written into the journal: this many times in its period, at most once in
/// [`LONGEST_US`].
const WRITTEN: i64 = 12;

/// A measurement under way, or finished. Sums are GPU-µs.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Meter {
    /// Up to when it was measured, µs since 1970.
    at_us: i64,
    /// Part of the period that nobody observed.
    unseen_us: i64,
    /// It was last written into the journal as of then.
    written_us: i64,
    /// Rates since `at_us`. `None`: cannot be determined.
    rates: Option<Amounts>,
    /// At one observation they could not be determined.
    is_unknown: bool,
    found: Findings,
}

impl Meter {
    /// Begins to measure at the first observation of the verified action.
    pub fn begin(of: &Measured<'_>, view: &View<'_>) -> Self {
        let at_us = view.state.at_us.max(of.verified_us);
        let mut meter =
            Self { at_us, unseen_us: (at_us - of.verified_us - LONGEST_US).max(0), ..Self::default() };
        meter.found.period_us = of.ends_us() - of.verified_us;
        room::begin(of, view, &mut meter.found.sightings);
        // What was lost is known now and may not be later, so it is written at once.
        meter.written_us = if meter.found.sightings.lost.is_some() { 0 } else { at_us };
        meter.take_rate(of, view);
        meter
    }

    /// Takes in an observation.
    pub fn observe(&mut self, of: &Measured<'_>, view: &View<'_>) {
        let until_us = view.state.at_us.min(of.ends_us());
        let span_us = until_us - self.at_us;
        if span_us <= 0 {
            return;
        }
        match self.rates {
            Some(rates) => {
                let add = |sum: &mut i64, milli: i64| *sum += times(milli, span_us);
                add(&mut self.found.sums.gained, rates.gained);
                add(&mut self.found.sums.forgone, rates.forgone);
                add(&mut self.found.sums.idle, rates.idle);
            }
            None => self.is_unknown = true,
        }
        self.unseen_us += (span_us - LONGEST_US).max(0);
        self.at_us = until_us;
        if view.state.at_us <= of.ends_us() {
            self.take_rate(of, view);
        }
    }

    fn take_rate(&mut self, of: &Measured<'_>, view: &View<'_>) {
        self.rates = match of.change {
            Change::Lend { .. } => loans::lend(of, view),
            Change::Reclaim { .. } | Change::AdjustReservation(_) => owners::rates(of, view),
            Change::ResizeJob { .. } if of.basis.is_none() => loans::resize(of, view),
            Change::ResizeJob { .. } | Change::Preempt { .. } => room::rates(of, view),
            Change::DrainNode { .. } => nodes::drained(of, view, &mut self.found.sightings),
            Change::ReturnNode { .. } => nodes::returned(of, view, &mut self.found.sightings),
        };
    }

    /// Whether it should be written into the journal. Writing bounds what a restart loses.
    pub fn is_due(&self) -> bool {
        self.at_us - self.written_us >= (self.found.period_us / WRITTEN).max(LONGEST_US)
    }

    /// The meter as it is written now.
    pub fn write(&mut self) -> Self {
        self.written_us = self.at_us;
        self.clone()
    }

    /// Work lost by the job that the action stopped or shrank. `None`: unknown.
    pub fn lost(&self) -> Option<Interval> {
        self.found.sightings.lost
    }

    /// What came of the action, at the end of its period.
    pub fn realised(&self, of: &Measured<'_>, with: &Companions<'_>) -> Realised {
        if self.unseen_us > self.found.period_us / MOST_UNSEEN {
            return unknown("it was not observed for more than a quarter of its period");
        }
        if self.is_unknown {
            return unknown("an observation lacked what it is measured by");
        }
        match of.change {
            Change::Lend { .. } => loans::realised(&self.found, of, with),
            Change::ResizeJob { .. } if of.basis.is_none() => loans::realised(&self.found, of, with),
            Change::Reclaim { .. } | Change::AdjustReservation(_) => owners::realised(&self.found, of),
            Change::ResizeJob { .. } | Change::Preempt { .. } => room::realised(&self.found, of),
            Change::DrainNode { node, .. } => nodes::drain_realised(&self.found, of, with, node),
            Change::ReturnNode { .. } => nodes::return_realised(&self.found),
        }
    }
}

/// Thousandths of a GPU over a time, GPU-µs.
fn times(milli: i64, span_us: i64) -> i64 {
    i64::try_from(i128::from(milli) * i128::from(span_us) / 1_000).unwrap_or(i64::MAX)
}
