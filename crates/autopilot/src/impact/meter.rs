//! The meter of one action: follows observations of the cluster until its period is over.

use serde::{Deserialize, Serialize};
use tidegate_units::Millis;

use super::{Amounts, Basis, Suspects, loans, nodes, owners, room};
use crate::action::{Adjustment, Change};
use crate::planner::Predicted;
use crate::scorecard::{Interval, Realised};
use crate::state::{ClusterState, Occupancy};

/// Longest time between two observations in which the first is assumed to hold, µs.
pub const LONGEST_US: i64 = 300 * 1_000_000;
/// A measurement that missed more than this part of its period is worth nothing.
const MOST_UNSEEN: i64 = 4;
/// How often a meter is written into the journal: this many times in its period, at most once in
/// [`LONGEST_US`].
const WRITTEN: i64 = 12;

/// The action that is measured.
#[derive(Debug, Clone, Copy)]
pub struct Measured<'a> {
    /// What it changes.
    pub change: &'a Change,
    /// What it is measured against. `None`: it was proposed by an older version, or nothing was
    /// known.
    pub basis: Option<&'a Basis>,
    /// When it began.
    pub begun_us: i64,
    /// When it was read back as done.
    pub verified_us: i64,
    /// When the disturbed job acknowledged that it had saved.
    pub saved_us: Option<i64>,
    /// Its prediction.
    pub predicted: &'a Predicted,
}

/// What other actions contribute to the result of one.
#[derive(Debug, Clone, Copy)]
pub struct Companions<'a> {
    /// Work lost by the jobs that they stopped or shrank, GPUs × ms. `None`: unknown.
    pub lost: Option<Interval>,
    /// What became of suspect nodes.
    pub suspects: &'a Suspects,
}

/// A measurement under way, or finished. Sums are GPU-µs.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Meter {
    /// Up to when it was measured, µs since 1970.
    at_us: i64,
    /// Length of the period, and the part of it that nobody observed.
    period_us: i64,
    unseen_us: i64,
    /// It was last written into the journal as of then.
    written_us: i64,
    pub(super) sums: Amounts,
    /// Rates since `at_us`. `None`: cannot be determined.
    rates: Option<Amounts>,
    /// At one observation they could not be determined.
    is_unknown: bool,
    pub(super) seen: Seen,
}

/// What was seen beside rates.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Seen {
    /// Work lost by the stopped job, or by the jobs on a node that failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lost: Option<Interval>,
    /// Work that jobs on the returned node would have lost at the last observation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub at_risk: Option<Interval>,
    /// Time of a step of the gang that was moved.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub step_us: Option<i64>,
    /// When the node failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failed_us: Option<i64>,
    /// Jobs were on the node when it was last seen.
    pub is_busy: bool,
}

/// An observation with its sums, which all meters share.
#[derive(Debug)]
pub struct View<'a> {
    pub(super) state: &'a ClusterState,
    pub(super) occupancy: Occupancy<'a>,
}

impl<'a> View<'a> {
    /// Sums up `state`.
    pub fn of(state: &'a ClusterState) -> Self {
        Self { state, occupancy: Occupancy::of(state) }
    }
}

impl Measured<'_> {
    /// When its period ends.
    pub fn ends_us(&self) -> i64 {
        let predicted_us = self.verified_us.saturating_add(Millis(self.predicted.over_ms).to_micros().0);
        let ends_us = match (self.change, self.basis) {
            // Without the reclaim the loan would have ended by itself and come back in as long.
            (_, Some(Basis::Reclaim { loan_ends_us, .. })) => loan_ends_us + self.verified_us - self.begun_us,
            (Change::AdjustReservation(Adjustment::Reservation { end_us, .. }), _) => *end_us,
            _ => predicted_us,
        };
        ends_us.max(self.verified_us)
    }
}

impl Meter {
    /// Begins to measure at the first observation of the verified action.
    pub fn begin(of: &Measured<'_>, view: &View<'_>) -> Self {
        let at_us = view.state.at_us.max(of.verified_us);
        let mut meter = Self {
            at_us,
            period_us: of.ends_us() - of.verified_us,
            unseen_us: (at_us - of.verified_us - LONGEST_US).max(0),
            ..Self::default()
        };
        room::begin(of, view, &mut meter.seen);
        // What was lost is known now and may not be later, so it is written at once.
        meter.written_us = if meter.seen.lost.is_some() { 0 } else { at_us };
        meter.look(of, view);
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
                add(&mut self.sums.gained, rates.gained);
                add(&mut self.sums.forgone, rates.forgone);
                add(&mut self.sums.idle, rates.idle);
            }
            None => self.is_unknown = true,
        }
        self.unseen_us += (span_us - LONGEST_US).max(0);
        self.at_us = until_us;
        if view.state.at_us <= of.ends_us() {
            self.look(of, view);
        }
    }

    fn look(&mut self, of: &Measured<'_>, view: &View<'_>) {
        self.rates = match of.change {
            Change::Lend { .. } => loans::lend(of, view),
            Change::Reclaim { .. } | Change::AdjustReservation(_) => owners::rates(of, view),
            Change::ResizeJob { .. } if of.basis.is_none() => loans::resize(of, view),
            Change::ResizeJob { .. } | Change::Preempt { .. } => room::rates(of, view),
            Change::DrainNode { .. } => nodes::drained(of, view, &mut self.seen),
            Change::ReturnNode { .. } => nodes::returned(of, view, &mut self.seen),
        };
    }

    /// Whether it should be written into the journal. Writing bounds what a restart loses.
    pub fn is_due(&self) -> bool {
        self.at_us - self.written_us >= (self.period_us / WRITTEN).max(LONGEST_US)
    }

    /// The meter as it is written now.
    pub fn write(&mut self) -> Self {
        self.written_us = self.at_us;
        self.clone()
    }

    /// Work lost by the job that the action stopped or shrank. `None`: unknown.
    pub fn lost(&self) -> Option<Interval> {
        self.seen.lost
    }

    /// What came of the action, at the end of its period.
    pub fn realised(&self, of: &Measured<'_>, with: &Companions<'_>) -> Realised {
        if self.unseen_us > self.period_us / MOST_UNSEEN {
            return unknown("it was not observed for more than a quarter of its period");
        }
        if self.is_unknown {
            return unknown("an observation lacked what it is measured by");
        }
        match of.change {
            Change::Lend { .. } => loans::realised(self, of, with),
            Change::ResizeJob { .. } if of.basis.is_none() => loans::realised(self, of, with),
            Change::Reclaim { .. } | Change::AdjustReservation(_) => owners::realised(self, of),
            Change::ResizeJob { .. } | Change::Preempt { .. } => room::realised(self, of),
            Change::DrainNode { node, .. } => nodes::drain_realised(self, of, with, node),
            Change::ReturnNode { .. } => nodes::return_realised(self),
        }
    }

    /// Part of the period that was measured, GPU-µs a GPU.
    pub(super) fn period_us(&self) -> i64 {
        self.period_us
    }
}

/// Thousandths of a GPU over a time, GPU-µs.
fn times(milli: i64, span_us: i64) -> i64 {
    i64::try_from(i128::from(milli) * i128::from(span_us) / 1_000).unwrap_or(i64::MAX)
}

/// A result of which nothing is known, and why.
pub(super) fn unknown(why: &str) -> Realised {
    Realised { without: Some(format!("unknown: {why}")), ..Realised::verified(None, None) }
}

impl Amounts {
    /// Sums of GPU-µs as GPUs × ms.
    pub(super) fn gpu_ms(&self) -> Self {
        let ms = |us: i64| us.div_euclid(1_000);
        Self { gained: ms(self.gained), forgone: ms(self.forgone), idle: ms(self.idle) }
    }
}
