//! Lease: one writer at a time, with a generation that rises whenever the lease changes hands.

use serde::{Deserialize, Serialize};
use tidegate_units::Millis;

/// Highest generation: more than one a millisecond for a thousand years.
const MOST_GENERATION: u64 = 1 << 45;
/// Longest time for which a lease is taken, µs. Longer ones do not count: they would shut out
/// everybody else.
const LONGEST_US: i64 = 86_400_000_000;
/// How far clocks of two machines may be apart, µs.
const CLOCKS_US: i64 = 3_600_000_000;

/// The right to act.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lease {
    /// Holder.
    pub holder: String,
    /// Every action carries it, and targets refuse older ones.
    pub generation: u64,
    /// Expiry.
    pub until_us: i64,
}

/// Somebody else holds the lease.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{holder} holds the lease until {until_us}, generation {generation}")]
pub struct LeaseHeld {
    /// Holder.
    pub holder: String,
    /// Its generation.
    pub generation: u64,
    /// Expiry.
    pub until_us: i64,
}

impl Lease {
    /// Whether a lease taken at that time is one that a process takes: for a day at most, and of a
    /// generation that can still rise.
    pub(crate) fn is_bounded(&self, at_us: i64) -> bool {
        self.generation <= MOST_GENERATION && self.until_us.saturating_sub(at_us) <= LONGEST_US
    }

    /// Whether it still holds. One that ends later than any lease that is taken now does not: the
    /// clock of whoever took it is wrong, or it is forged.
    fn holds(&self, now_us: i64) -> bool {
        now_us < self.until_us && self.until_us.saturating_sub(now_us) <= LONGEST_US + CLOCKS_US
    }

    /// Takes or renews the lease for `ttl_ms`, a day at most. A renewal in time keeps the
    /// generation. Any other take raises it, even by the same holder: somebody else may have held
    /// it meanwhile.
    ///
    /// # Errors
    /// Somebody else holds it and it has not expired.
    pub fn take(current: Option<&Self>, holder: &str, now_us: i64, ttl_ms: i64) -> Result<Self, LeaseHeld> {
        let until_us = now_us.saturating_add(Millis(ttl_ms).to_micros().0.min(LONGEST_US));
        let (holder, next) = (holder.to_owned(), current.map_or(1, |lease| lease.generation + 1));
        match current {
            Some(lease) if lease.holds(now_us) && lease.holder == holder => {
                Ok(Self { holder, generation: lease.generation, until_us: until_us.max(lease.until_us) })
            }
            Some(lease) if lease.holds(now_us) => {
                let Self { holder, generation, until_us } = lease.clone();
                Err(LeaseHeld { holder, generation, until_us })
            }
            _ => Ok(Self { holder, generation: next, until_us }),
        }
    }
}
