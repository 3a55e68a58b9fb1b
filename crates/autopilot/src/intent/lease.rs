//! Lease: one writer at a time, with a generation that rises whenever the lease changes hands.

use serde::{Deserialize, Serialize};
use tidegate_units::Millis;

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
    /// Takes or renews the lease for `ttl_ms`. A renewal in time keeps the generation. Any other
    /// take raises it, even by the same holder: somebody else may have held it meanwhile.
    ///
    /// # Errors
    /// Somebody else holds it and it has not expired.
    pub fn take(current: Option<&Self>, holder: &str, now_us: i64, ttl_ms: i64) -> Result<Self, LeaseHeld> {
        let until_us = now_us + Millis(ttl_ms).to_micros().0;
        let (holder, next) = (holder.to_owned(), current.map_or(1, |lease| lease.generation + 1));
        match current {
            Some(lease) if now_us < lease.until_us && lease.holder == holder => {
                Ok(Self { holder, generation: lease.generation, until_us: until_us.max(lease.until_us) })
            }
            Some(Self { holder, generation, until_us }) if now_us < *until_us => {
                Err(LeaseHeld { holder: holder.clone(), generation: *generation, until_us: *until_us })
            }
            _ => Ok(Self { holder, generation: next, until_us }),
        }
    }
}
