//! Marks of when records were written, for retention.
//!
//! Retention must not go by the time a record claims: one record dated years ahead would keep a
//! partition for ever, and one of 1970 would be dropped at once. So each run of retention notes how
//! far the partition reached at that moment. Whatever lies below such a mark was written then or
//! earlier. This needs nothing of the records, costs a few hundred bytes per partition, and errs on
//! one side only: a record counts as written up to one spacing later than it was.

use serde::{Deserialize, Serialize};

use crate::Extent;

/// Marks per period of retention: a record is kept at most one part of it too long.
const MARKS: u64 = 64;
/// Start of 2026, ms since the epoch. An earlier clock is wrong and would date new records as old.
const CLOCK_MIN_MS: i64 = 1_767_225_600_000;

/// Marks of one partition: (ms since the epoch, the partition's end then). Both grow.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct Written(Vec<(i64, u64)>);

impl Written {
    /// Marks the partition's end at `now_ms`. Returns whether the marks changed.
    pub fn note(&mut self, now_ms: i64, extent: Extent, retain_ms: u64) -> bool {
        if !is_plausible(now_ms) {
            return false;
        }
        let before = self.clone();
        self.0.retain(|(_, end)| *end > extent.start);
        // The clock ran ahead and was set right since: what it dated was written by now.
        self.0.iter_mut().for_each(|(at_ms, _)| *at_ms = now_ms.min(*at_ms));
        let is_due = self
            .0
            .last()
            .is_none_or(|(at_ms, end)| extent.end > *end && now_ms.abs_diff(*at_ms) >= retain_ms / MARKS);
        if is_due && extent.end > extent.start {
            self.0.push((now_ms, extent.end));
        }
        *self != before
    }

    /// End of what was written at `oldest_ms` or earlier; 0 if nothing is known to be that old.
    pub fn up_to(&self, oldest_ms: i64) -> u64 {
        self.0.iter().rev().find(|(at_ms, _)| *at_ms <= oldest_ms).map_or(0, |(_, end)| *end)
    }
}

/// Whether a clock can be right.
fn is_plausible(now_ms: i64) -> bool {
    if now_ms < CLOCK_MIN_MS {
        tracing::warn!(
            now_ms,
            "the clock stands before 2026; retention of the log waits until it is set right"
        );
    }
    now_ms >= CLOCK_MIN_MS
}

#[cfg(test)]
mod tests {
    use super::*;

    const T0: i64 = CLOCK_MIN_MS + 1_000_000_000;
    const RETAIN: u64 = 64_000;

    fn up_to(end: u64) -> Extent {
        Extent { start: 0, end }
    }

    #[test]
    fn records_below_a_mark_are_as_old_as_the_mark() {
        let mut written = Written::default();
        assert!(written.note(T0, up_to(10), RETAIN));
        assert!(!written.note(T0 + 500, up_to(20), RETAIN), "marks stand a spacing apart");
        assert!(written.note(T0 + 1_000, up_to(30), RETAIN));
        assert!(!written.note(T0 + 9_000, up_to(30), RETAIN), "nothing came");
        assert_eq!([T0 - 1, T0, T0 + 999, T0 + 1_000].map(|at| written.up_to(at)), [0, 10, 10, 30]);
        assert!(
            written.note(T0 + 9_000, Extent { start: 10, end: 30 }, RETAIN),
            "what was dropped is forgotten"
        );
        assert_eq!(written.up_to(T0), 0);
    }

    #[test]
    fn marks_do_not_pile_up() {
        let mut written = Written::default();
        for i in 0..100_000 {
            let now_ms = T0 + i * 100;
            written.note(
                now_ms,
                Extent { start: written.up_to(now_ms - RETAIN as i64), end: i as u64 },
                RETAIN,
            );
            assert!(written.0.len() <= MARKS as usize + 2, "{}", written.0.len());
        }
    }

    #[test]
    fn a_wrong_clock_neither_drops_early_nor_stops_retention() {
        let mut written = Written::default();
        assert!(!written.note(0, up_to(10), RETAIN), "1970 is not now");
        let ahead = T0 + 40 * 365 * 86_400_000;
        assert!(written.note(ahead, up_to(10), RETAIN));
        assert!(written.note(T0, up_to(20), RETAIN), "set right");
        assert_eq!([T0 - 1, T0].map(|at| written.up_to(at)), [0, 10]);
    }
}
