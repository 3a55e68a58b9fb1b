//! Pace of repairs: how much event time a slice covers, and when the next one may run.

use std::time::{Duration, Instant};

use crate::window::MICROS_PER_DAY;

/// Event time that the first slice covers, µs.
const FIRST_US: i64 = 600_000_000;
/// The least and the most that a slice covers, µs: a minute and sixteen days. One event of 2010
/// adds some 6,200 days of which each has little: a slice a day took hours.
const SHORTEST_US: i64 = 60_000_000;
const LONGEST_US: i64 = 16 * MICROS_PER_DAY;
/// The most that the first slice after a rest covers, µs: what comes next may be full days.
const RESTED_US: i64 = MICROS_PER_DAY;
/// A slice that took less can be larger, and one that took more should be smaller.
const QUICK: Duration = Duration::from_secs(1);
const SLOW: Duration = Duration::from_secs(5);
/// While records wait to be read, repairs take at most one part in this many of the time.
const SHARE: u32 = 5;

/// How repairs went so far.
#[derive(Debug)]
pub(super) struct RepairPace {
    slice_us: i64,
    /// Event time and duration of the last slice, and when it ended.
    last: Option<(i64, Duration, Instant)>,
}

impl Default for RepairPace {
    fn default() -> Self {
        Self { slice_us: FIRST_US, last: None }
    }
}

impl RepairPace {
    /// Event time that the next slice covers, µs.
    pub fn slice_us(&self) -> i64 {
        self.slice_us
    }

    /// Whether a slice may run now. Records that wait to be read go first.
    pub fn is_due(&self, records_wait: bool, now: Instant) -> bool {
        let rested = |(_, took, ended): (i64, Duration, Instant)| {
            now.saturating_duration_since(ended) >= took * (SHARE - 1)
        };
        !records_wait || self.last.is_none_or(rested)
    }

    /// Nothing is left to repair.
    pub fn rest(&mut self) {
        self.slice_us = self.slice_us.min(RESTED_US);
    }

    /// Notes a slice. A slice of any size costs some time, more on a busy machine. If a smaller one
    /// did not take less, slices grow again: more of them would only cost more.
    pub fn record(&mut self, took: Duration, now: Instant) {
        let gained = |(before_us, before, _): (i64, Duration, Instant)| {
            before_us <= self.slice_us || took * 4 <= before * 3
        };
        let next = match took {
            took if took < QUICK => self.slice_us.saturating_mul(2),
            took if took < SLOW => self.slice_us,
            _ if self.last.is_none_or(gained) => self.slice_us / 2,
            _ => self.slice_us.saturating_mul(2),
        };
        self.last = Some((self.slice_us, took, now));
        self.slice_us = next.clamp(SHORTEST_US, LONGEST_US);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Slices in minutes, of slices that took so many seconds.
    fn slices(took: impl Fn(i64) -> u64, count: usize) -> Vec<i64> {
        let (mut pace, now) = (RepairPace::default(), Instant::now());
        let slice = |_| {
            let minutes = pace.slice_us() / 60_000_000;
            pace.record(Duration::from_secs(took(minutes)), now);
            minutes
        };
        (0..count).map(slice).collect()
    }

    #[test]
    fn a_slice_takes_one_to_five_seconds() {
        let quick = slices(|_| 0, 14);
        assert_eq!(quick[..9], [10, 20, 40, 80, 160, 320, 640, 1_280, 2_560]);
        assert_eq!(quick[11..], [20_480, 23_040, 23_040], "at most sixteen days");
        assert_eq!(slices(|minutes| minutes as u64, 6), [10, 5, 2, 2, 2, 2]);
        assert_eq!(slices(|minutes| 100 * minutes as u64, 5), [10, 5, 2, 1, 1], "at least a minute");
    }

    #[test]
    fn old_days_without_much_in_them_are_repaired_many_at_a_time() {
        // 6,200 days since 2010 of which each takes 60 ms, after a first slice of ten minutes.
        let (mut pace, now, mut left, mut took) = (RepairPace::default(), Instant::now(), 6_200 * 1_440, 0);
        while left > 0 {
            let minutes = (pace.slice_us() / 60_000_000).min(left);
            let slice = Duration::from_millis(60 * (minutes as u64).div_ceil(1_440));
            pace.record(slice, now);
            assert!(slice < SLOW, "live windows wait for {slice:?}");
            (left, took) = (left - minutes, took + 1);
        }
        assert!(took < 500, "{took} slices");
        pace.rest();
        assert_eq!(pace.slice_us(), RESTED_US, "what comes next may be a full month");
    }

    #[test]
    fn slices_do_not_shrink_if_that_saves_nothing() {
        let busy = slices(|_| 30, 12);
        assert!(busy.iter().all(|minutes| *minutes >= 5), "{busy:?}");
    }

    #[test]
    fn records_that_wait_go_first_but_not_for_ever() {
        let (mut pace, begun) = (RepairPace::default(), Instant::now());
        assert!(pace.is_due(true, begun));
        pace.record(Duration::from_secs(2), begun);
        assert!(pace.is_due(false, begun));
        assert!(!pace.is_due(true, begun + Duration::from_secs(7)));
        assert!(pace.is_due(true, begun + Duration::from_secs(8)));
    }
}
