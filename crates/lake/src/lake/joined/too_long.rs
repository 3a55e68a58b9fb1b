//! Spans of windows that did not fit into memory. What a window takes depends on the fleet, which
//! changes slowly, so a span as long as one that failed is halved without another try. Each try
//! costs as much as the computation itself.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

/// The shortest span of each joined table that did not fit, µs, since the process started.
#[derive(Debug, Default)]
pub(in crate::lake) struct TooLong(Mutex<BTreeMap<String, i64>>);

impl TooLong {
    /// Whether a span of this table is as long as one that did not fit, µs.
    pub fn has(&self, table: &str, length: i64) -> bool {
        let shortest = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        shortest.get(table).is_some_and(|shortest| length >= *shortest)
    }

    /// Notes a span that did not fit, µs.
    pub fn note(&self, table: &str, length: i64) {
        let mut shortest = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let known = shortest.entry(table.to_owned()).or_insert(length);
        *known = length.min(*known);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shortest_that_failed_counts_for_its_table() {
        let too_long = TooLong::default();
        assert!(!too_long.has("a", i64::MAX));
        too_long.note("a", 8);
        too_long.note("a", 16);
        assert!(too_long.has("a", 8) && !too_long.has("a", 7) && !too_long.has("b", 8));
        too_long.note("a", 4);
        assert!(too_long.has("a", 4) && !too_long.has("a", 3));
    }
}
