//! The node's clocks, and detection of steps of the wall clock.

use std::sync::Mutex;

use rustix::time::{ClockId, clock_gettime};

use super::lock;

/// A change of the offset between wall and steady clock beyond this is a step, ms. NTP slewing
/// stays far below between two checks.
const STEP_MS: i64 = 1_000;

/// The clocks of a node.
pub trait Clock: Send + Sync {
    /// Wall clock, ms since the epoch. It can be set at any moment.
    fn wall_ms(&self) -> i64;

    /// Steady clock, ms since an arbitrary moment. Nobody can set it, and it includes time
    /// suspended.
    fn steady_ms(&self) -> i64;
}

/// The kernel's clocks.
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

/// Detects steps of the wall clock.
#[derive(Debug)]
pub(super) struct ClockStepDetector {
    /// Wall clock minus steady clock at the last check.
    offset_ms: Mutex<i64>,
}

impl ClockStepDetector {
    pub fn new(clock: &dyn Clock) -> Self {
        Self { offset_ms: Mutex::new(clock.wall_ms() - clock.steady_ms()) }
    }

    /// The step since the last check, ms, if there was one. Call it about once a second.
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
    fn a_step_is_detected_and_drift_is_not() {
        let watch = ClockStepDetector::new(&Set(1_000_000, 50_000));
        assert_eq!(watch.stepped(&Set(1_001_000, 51_000)), None);
        // It runs a little slow, and the machine slept an hour.
        assert_eq!(watch.stepped(&Set(4_600_500, 3_651_000)), None);
        assert_eq!(watch.stepped(&Set(1_001_500, 3_652_000)), Some(-3_600_000));
        assert_eq!(watch.stepped(&Set(1_002_500, 3_653_000)), None, "reported once");
    }

    #[test]
    fn the_clocks_of_this_machine_run() {
        let (wall, steady) = (SystemClock.wall_ms(), SystemClock.steady_ms());
        assert!(wall > 1_700_000_000_000 && SystemClock.steady_ms() >= steady);
    }
}
