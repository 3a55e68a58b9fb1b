//! Waiting that queries may cause to what records and serves.
//!
//! Short queries should be answered at once, long ones must not slow the recorder; and they look
//! alike when they begin. So all queries share an allowance of time that the threads of the serving
//! process wait for a processor while queries compute. While there is some left, workers run at
//! niceness 5; where it is used up, they run in the background ([`crate::background`]). On an idle
//! machine nobody waits, and queries run at full speed.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Part of the processors' time that the allowance grows by.
const SHARE: f64 = 0.01;
/// Seconds for each processor that the allowance holds at most.
const MOST_S: f64 = 2.0;
/// Shortest time between two measurements. Each reads one file per thread, and hundreds of short
/// queries may end in a second.
const MEASURE_EVERY: Duration = Duration::from_millis(100);
/// Longest time between two measurements for which queries are charged. After a longer one, no
/// query may have been running, and the waiting had other causes.
const CONTINUES_WITHIN: Duration = Duration::from_millis(500);

/// The allowance of all queries of a serving process.
#[derive(Debug)]
pub(super) struct Allowance {
    most_s: f64,
    level: Mutex<Level>,
}

#[derive(Debug)]
struct Level {
    left_s: f64,
    /// When it was measured.
    at: Instant,
    /// What the threads of this process had waited by then, seconds.
    waited_s: f64,
    /// CPU time that queries have used since, seconds.
    used_s: f64,
}

impl Allowance {
    /// A whole allowance, for queries that run on so many processors.
    pub(super) fn new(processors: usize) -> Self {
        let most_s = processors.max(1) as f64 * MOST_S;
        let level = Level { left_s: most_s, at: Instant::now(), waited_s: 0.0, used_s: 0.0 };
        Self { most_s, level: Mutex::new(level) }
    }

    /// Takes what this process waited while a query used so much CPU time; returns whether there is
    /// some left.
    pub(super) fn charge(&self, used: Duration) -> bool {
        self.left_s(used) > 0.0
    }

    /// Whether a quarter of the allowance is there, so that a new worker is worth its start.
    pub(super) fn has_recovered(&self) -> bool {
        self.left_s(Duration::ZERO) >= self.most_s / 4.0
    }

    fn left_s(&self, used: Duration) -> f64 {
        self.left_at(Instant::now(), used.as_secs_f64(), waited_s)
    }

    /// Seconds that are left, once queries have used so many more.
    fn left_at(&self, now: Instant, used_s: f64, waited_s: impl FnOnce() -> Option<f64>) -> f64 {
        let mut level = self.level.lock().unwrap_or_else(PoisonError::into_inner);
        level.used_s += used_s;
        if now.saturating_duration_since(level.at) >= MEASURE_EVERY {
            level.measure(now, waited_s(), self.most_s);
        }
        level.left_s
    }
}

impl Level {
    /// Deducts the time that this process waited because of queries: never more than the CPU time
    /// they used. Where the kernel does not count waiting, deducts that CPU time.
    fn measure(&mut self, now: Instant, waited_s: Option<f64>, most_s: f64) {
        let since = now.saturating_duration_since(self.at);
        let caused_s = match waited_s {
            Some(waited_s) if since <= CONTINUES_WITHIN => self.used_s.min(waited_s - self.waited_s),
            Some(_) => 0.0,
            None => self.used_s,
        };
        let grown_s = since.as_secs_f64() * SHARE * most_s / MOST_S;
        self.left_s = (self.left_s + grown_s - caused_s.max(0.0)).clamp(0.0, most_s);
        (self.at, self.used_s) = (now, 0.0);
        self.waited_s = waited_s.unwrap_or(self.waited_s);
    }
}

/// Time that the threads of this process, as far as they live, were ready to run and waited for a
/// processor, seconds: the second number of `/proc/self/task/*/schedstat`, in nanoseconds.
fn waited_s() -> Option<f64> {
    let mut total_ns = 0;
    for thread in std::fs::read_dir("/proc/self/task").ok()?.flatten() {
        // A thread may end meanwhile.
        let Ok(counted) = std::fs::read_to_string(thread.path().join("schedstat")) else { continue };
        total_ns += counted.split_whitespace().nth(1)?.parse::<u64>().ok()?;
    }
    (total_ns > 0).then_some(total_ns as f64 / 1e9)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries_pay_for_the_waiting_they_cause_and_the_allowance_grows_again() {
        let allowance = Allowance::new(2);
        let start = Instant::now();
        let measured = |ms: u64, used_s: f64, waited_s: Option<f64>| {
            allowance.left_at(start + Duration::from_millis(ms), used_s, || waited_s)
        };
        let left = |ms: u64, used_s: f64, waited_s: f64| measured(ms, used_s, Some(waited_s));
        let near = |found: f64, expected: f64| assert!((found - expected).abs() < 0.05, "{found} {expected}");
        near(left(1_000, 1.0, 100.0), 4.0); // what was waited before they ran is not theirs
        near(left(1_200, 0.4, 100.0), 4.0); // nobody waited
        near(left(1_400, 0.4, 101.0), 3.6); // more was waited than the query can have caused
        near(left(1_600, 9.0, 102.0), 2.6);
        near(left(1_800, 99.0, 199.0), 0.0); // nothing is owed
        near(left(51_800, 9.0, 300.0), 1.0); // a 50th of a second each second
        near(left(999_000, 0.0, 300.0), 4.0);
        near(measured(1_000_000, 1.5, None), 2.5);
    }

    #[test]
    fn queries_by_the_hundred_are_measured_ten_times_a_second_and_pay_for_all_they_used() {
        let allowance = Allowance::new(2);
        let (start, mut measurements) = (Instant::now(), 0);
        for ms in 0..=1_000 {
            allowance.left_at(start + Duration::from_millis(ms), 0.001, || {
                measurements += 1;
                Some(ms as f64)
            });
        }
        assert_eq!(measurements, 10);
        let left_s = allowance.level.lock().unwrap().left_s;
        assert!((3.0..3.1).contains(&left_s), "{left_s}");
    }

    #[test]
    fn the_kernel_counts_what_this_process_waits() {
        assert!(waited_s().is_some_and(|waited| waited > 0.0));
    }
}
