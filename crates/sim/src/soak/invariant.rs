//! What must hold in a soak.

use serde::Serialize;

/// An invariant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Invariant {
    /// GPUs and GPU time add up.
    Books,
    /// An owner never has less than its floor.
    Floor,
    /// An action has at most one effect.
    OneEffect,
    /// No effect follows one of a newer generation.
    Generation,
    /// Effects of a kind stay within its hourly and daily budget.
    Budget,
    /// A loan is extended only near its end (within twice the promised reclaim time). Extensions
    /// use no budget, so this bounds them.
    Prolong,
    /// No loan outlives its end by more than the time of a reclaim.
    LoanEnds,
    /// Hours after the last fault, no action or node is stuck.
    Converges,
    /// Every effect was journaled before it was requested.
    Recorded,
    /// No effect is requested while the kill switch is off.
    Switch,
    /// Every decision, refusal and failure has a reason.
    Explained,
    /// Replaying the journal gives the recorded plans, those of shadows too.
    Rederived,
    /// A shadow never acts: it has no steps and no effects.
    Shadow,
    /// A canary decides only about its owners. Once ended, it begins nothing but returns.
    Canary,
}
