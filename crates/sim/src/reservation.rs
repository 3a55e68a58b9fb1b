//! Reservations: whole nodes of a pool that one team alone may use for a time.

use std::collections::BTreeSet;

/// A reservation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reservation {
    /// Index of the team that may use it.
    pub team: usize,
    /// Its nodes.
    pub nodes: BTreeSet<u32>,
    /// When it begins, µs since the simulation began.
    pub start_us: i64,
    /// When it ends.
    pub end_us: i64,
}
