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
/// A slice should take less than this, because live windows wait for it.
const MOST: Duration = Duration::from_secs(5);
/// Slices are halved only if that saves at least this part of their duration.
const WORTH_HALVING: f64 = 0.25;
/// Slices are doubled if the longer one should take less than this part of [`MOST`].
const MARGIN: f64 = 0.8;
/// While records wait to be read, repairs take at most one part in this many of the time.
const SHARE: u32 = 5;

/// A slice that ran: the event time it covered, µs, and how long it took.
#[derive(Debug, Clone, Copy)]
struct Ran {
    slice_us: i64,
    took: Duration,
}

/// How repairs went so far.
#[derive(Debug)]
pub(super) struct RepairPace {
    slice_us: i64,
    /// The last slice, and when it ended.
    last: Option<(Ran, Instant)>,
    /// The last slice of another length.
    other: Option<Ran>,
}

impl Default for RepairPace {
    fn default() -> Self {
        Self { slice_us: FIRST_US, last: None, other: None }
    }
}

impl RepairPace {
    /// Event time that the next slice covers, µs.
    pub fn slice_us(&self) -> i64 {
        self.slice_us
    }

    /// Whether a slice may run now. Records that wait to be read go first.
    pub fn is_due(&self, records_wait: bool, now: Instant) -> bool {
        let rested =
            |(ran, ended): (Ran, Instant)| now.saturating_duration_since(ended) >= ran.took * (SHARE - 1);
        !records_wait || self.last.is_none_or(rested)
    }

    /// Nothing is left to repair.
    pub fn rest(&mut self) {
        self.slice_us = self.slice_us.min(RESTED_US);
    }

    /// Records a slice and chooses the length of the next one. Every slice has a fixed cost: on a
    /// slow machine, planning the tables takes seconds. Two slices of different lengths show how
    /// much time more event time adds, and the next slice should stay below [`MOST`]. If halving
    /// saves little, slices grow instead, since more slices would only repeat the fixed cost.
    pub fn record(&mut self, took: Duration, now: Instant) {
        let ran = Ran { slice_us: self.slice_us, took };
        if let Some((last, _)) = self.last.filter(|(last, _)| last.slice_us != ran.slice_us) {
            self.other = Some(last);
        }
        self.last = Some((ran, now));
        let took_s = took.as_secs_f64();
        let varies_s = self.other.map_or(took_s, |other| ran.part_that_grows_s(other));
        let is_short = took < MOST;
        let may_grow = self.other.is_none() || took_s + varies_s < MOST.as_secs_f64() * MARGIN;
        let saves = varies_s / 2.0 >= took_s * WORTH_HALVING;
        let next_us = match (is_short, saves) {
            (true, _) if may_grow => ran.slice_us.saturating_mul(2),
            (true, true) => ran.slice_us,
            (false, true) => ran.slice_us / 2,
            (_, false) => ran.slice_us.saturating_mul(2),
        };
        self.slice_us = next_us.clamp(SHORTEST_US, LONGEST_US);
    }
}

impl Ran {
    /// The part of this slice's duration that grows with its length, seconds, estimated from a
    /// slice of another length.
    fn part_that_grows_s(self, other: Self) -> f64 {
        let more_s = self.took.as_secs_f64() - other.took.as_secs_f64();
        let more_us = (self.slice_us - other.slice_us) as f64;
        (more_s / more_us * self.slice_us as f64).clamp(0.0, self.took.as_secs_f64())
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
    fn a_slice_takes_less_than_five_seconds() {
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
            assert!(slice < MOST, "live windows wait for {slice:?}");
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
    fn slices_grow_although_each_takes_seconds_to_plan() {
        assert_eq!(slices(|_| 3, 13).last(), Some(&23_040));
        // Three seconds, and one more for each day.
        let steady = slices(|minutes| 3 + minutes as u64 / 1_440, 40);
        assert!(steady[20..].iter().all(|minutes| (640..=2_560).contains(minutes)), "{steady:?}");
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
