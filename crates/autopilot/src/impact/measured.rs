//! What is measured: an action, an observation, and what has been found of it so far.

use serde::{Deserialize, Serialize};
use tidegate_units::Millis;

use super::amounts::Amounts;
use super::basis::Basis;
use super::suspects::Suspects;
use crate::action::{Adjustment, Change};
use crate::planner::Predicted;
use crate::scorecard::{Interval, Realised};
use crate::state::{ClusterState, Occupancy};

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

/// What was found up to now.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Findings {
    /// Length of the whole period, µs.
    pub period_us: i64,
    /// Sums, GPU-µs.
    pub sums: Amounts,
    /// What was seen beside rates.
    pub sightings: Sightings,
}

/// What was seen beside rates.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Sightings {
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

/// A result of which nothing is known, and why.
pub(super) fn unknown(why: &str) -> Realised {
    Realised { without: Some(format!("unknown: {why}")), ..Realised::verified(None, None) }
}
