//! Time on the node: what its clock says, and whether somebody set it.

use std::sync::Mutex;

use rustix::time::{ClockId, clock_gettime};

use super::lock;

/// A difference of the clock to itself from which on it counts as set, ms. What NTP mends by
/// running the clock faster or slower stays far below, from one look to the next.
const STEP_MS: i64 = 1_000;

/// The clocks of a node.
pub trait Clock: Send + Sync {
    /// What time the node says it is, ms since 1970; may be set at any moment.
    fn wall_ms(&self) -> i64;

    /// Time since some moment, ms; nobody can set it, and it goes on while the machine is
    /// suspended.
    fn steady_ms(&self) -> i64;
}

/// The clocks of the kernel.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn wall_ms(&self) -> i64 {
        read(ClockId::Realtime)
    }

    fn steady_ms(&self) -> i64 {
        read(ClockId::Boottime)
    }
}

fn read(clock: ClockId) -> i64 {
    let time = clock_gettime(clock);
    time.tv_sec * 1_000 + time.tv_nsec / 1_000_000
}

/// Notices when the wall clock was set.
#[derive(Debug)]
pub(super) struct StepWatch {
    /// Wall clock less steady clock, when last looked.
    offset_ms: Mutex<i64>,
}

impl StepWatch {
    pub fn new(clock: &dyn Clock) -> Self {
        Self { offset_ms: Mutex::new(clock.wall_ms() - clock.steady_ms()) }
    }

    /// By how much the clock was set since the last look, ms; to be asked about every second.
    pub fn stepped(&self, clock: &dyn Clock) -> Option<i64> {
        let now = clock.wall_ms() - clock.steady_ms();
        let before = std::mem::replace(&mut *lock(&self.offset_ms), now);
        Some(now - before).filter(|amount| amount.abs() > STEP_MS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Set(i64, i64);

    impl Clock for Set {
        fn wall_ms(&self) -> i64 {
            self.0
        }

        fn steady_ms(&self) -> i64 {
            self.1
        }
    }

    #[test]
    fn a_clock_that_runs_and_one_that_was_set_are_told_apart() {
        let watch = StepWatch::new(&Set(1_000_000, 50_000));
        assert_eq!(watch.stepped(&Set(1_001_000, 51_000)), None);
        // It runs a little slow, and the machine slept an hour.
        assert_eq!(watch.stepped(&Set(4_600_500, 3_651_000)), None);
        assert_eq!(watch.stepped(&Set(1_001_500, 3_652_000)), Some(-3_600_000));
        assert_eq!(watch.stepped(&Set(1_002_500, 3_653_000)), None, "told once");
    }

    #[test]
    fn the_clocks_of_this_machine_run() {
        let (wall, steady) = (SystemClock.wall_ms(), SystemClock.steady_ms());
        assert!(wall > 1_700_000_000_000 && SystemClock.steady_ms() >= steady);
    }
}
