//! Remembers how long a span of windows may not be. A span that does not fit into memory is halved,
//! and each failed try costs as much as the computation. What a window takes depends on the fleet,
//! so for an hour a span as long as one that failed is halved without another try. Not for ever:
//! other queries may have held the memory at that moment.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How long a failure counts.
const COUNTS_FOR: Duration = Duration::from_secs(3600);

/// Per joined table: the shortest span that did not fit, µs, and when it failed.
#[derive(Debug, Default)]
pub(in crate::lake) struct TooLong(Mutex<BTreeMap<String, (i64, Instant)>>);

impl TooLong {
    /// Whether a span of this table is as long as one that did not fit lately, µs.
    pub fn has(&self, table: &str, length: i64, now: Instant) -> bool {
        let shortest = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let lately = |failed: &Instant| now.saturating_duration_since(*failed) < COUNTS_FOR;
        shortest.get(table).is_some_and(|(shortest, failed)| length >= *shortest && lately(failed))
    }

    /// Notes a span that did not fit, µs.
    pub fn note(&self, table: &str, length: i64, now: Instant) {
        let mut shortest = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        shortest.insert(table.to_owned(), (length, now));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_counts_for_its_table_for_an_hour() {
        let (too_long, now) = (TooLong::default(), Instant::now());
        assert!(!too_long.has("a", i64::MAX, now));
        too_long.note("a", 16, now);
        too_long.note("a", 8, now);
        assert!(too_long.has("a", 8, now) && !too_long.has("a", 7, now) && !too_long.has("b", 8, now));
        assert!(!too_long.has("a", 8, now + COUNTS_FOR), "tried again");
        too_long.note("a", 32, now + COUNTS_FOR);
        assert!(!too_long.has("a", 16, now + COUNTS_FOR), "the fleet has shrunk");
    }
}
