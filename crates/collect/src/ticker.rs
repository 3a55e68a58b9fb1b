//! Common ticks at which all devices of a node are read.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// A point in time at which all devices are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Tick {
    /// Grows by one per tick, whatever the wall clock does.
    pub number: u64,
    /// Wall clock, ms since the epoch; a multiple of the interval.
    pub ms: i64,
    pub at: Instant,
}

/// Wall clock, ms since the epoch.
pub(crate) fn wall_ms() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as i64
}

/// Publishes ticks to the device threads.
#[derive(Debug, Default)]
pub(crate) struct Clock {
    state: Mutex<Ticks>,
    /// Signalled for a new tick.
    changed: Condvar,
    /// Signalled for anything else that a thread may wait for.
    control: Condvar,
}

#[derive(Debug, Default)]
struct Ticks {
    recent: VecDeque<Tick>,
    last: u64,
    stop: bool,
}

impl Clock {
    fn ticks(&self) -> MutexGuard<'_, Ticks> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn stop(&self) {
        self.ticks().stop = true;
        self.changed.notify_all();
        self.control.notify_all();
    }

    /// Wakes all waiting threads, which then check their conditions again.
    pub(crate) fn wake(&self) {
        drop(self.ticks());
        self.changed.notify_all();
        self.control.notify_all();
    }

    /// Number of the last tick.
    pub(crate) fn last(&self) -> u64 {
        self.ticks().last
    }

    /// Waits until a time. Returns false if the clock stops.
    pub(crate) fn wait_until(&self, until: Instant) -> bool {
        let mut ticks = self.ticks();
        while !ticks.stop {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return true;
            }
            ticks = self.control.wait_timeout(ticks, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        false
    }

    /// Waits until `holds` is true, at most for `time`. Returns false if the clock stops.
    pub(crate) fn wait_for(&self, time: Duration, holds: impl Fn() -> bool) -> bool {
        let until = Instant::now().checked_add(time);
        let mut ticks = self.ticks();
        while !ticks.stop && !holds() {
            let left =
                until.map_or(Duration::from_secs(3600), |u| u.saturating_duration_since(Instant::now()));
            if left.is_zero() {
                return true;
            }
            ticks = self.control.wait_timeout(ticks, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        !ticks.stop
    }

    /// Waits for a tick after `last` and returns the newest. `None` when the session or the clock
    /// ends.
    pub(crate) fn wait_after(&self, last: u64, over: &AtomicBool) -> Option<Tick> {
        let mut ticks = self.ticks();
        loop {
            if ticks.stop || over.load(Ordering::Acquire) {
                return None;
            }
            if let Some(tick) = ticks.recent.back()
                && tick.number > last
            {
                return Some(*tick);
            }
            ticks = self.changed.wait(ticks).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Publishes a tick. Ticks older than `keep` are forgotten.
    fn publish(&self, ms: i64, keep: Duration) {
        let mut ticks = self.ticks();
        ticks.last += 1;
        let tick = Tick { number: ticks.last, ms, at: Instant::now() };
        while ticks.recent.front().is_some_and(|old| tick.at.saturating_duration_since(old.at) > keep) {
            ticks.recent.pop_front();
        }
        ticks.recent.push_back(tick);
        drop(ticks);
        self.changed.notify_all();
    }

    /// Ticks after a number, up to a time, oldest first.
    pub(crate) fn between(&self, after: u64, until: Option<Instant>) -> Vec<Tick> {
        let ticks = self.ticks();
        let wanted = |t: &&Tick| t.number > after && until.is_none_or(|until| t.at <= until);
        ticks.recent.iter().filter(wanted).copied().collect()
    }

    /// Publishes ticks at multiples of the interval on the wall clock until it is stopped, and
    /// calls `each` after every tick and at least once a second. After a step of the clock, ticks
    /// continue at the new time. If this thread is late by more than an interval, ticks are skipped
    /// for all devices alike.
    pub(crate) fn run(&self, interval: Duration, keep: Duration, each: impl Fn(Instant)) {
        let step = i64::try_from(interval.as_millis()).unwrap_or(i64::MAX).max(1);
        let look = interval.min(Duration::from_secs(1));
        let mut last_ms = None;
        loop {
            let now = wall_ms();
            let mut due = now.div_euclid(step).saturating_add(1).saturating_mul(step);
            if last_ms == Some(due) {
                // The clock was slowed and this tick was already published.
                due += step;
            }
            let at = Instant::now() + Duration::from_millis((due - now).unsigned_abs());
            loop {
                let look_at = at.min(Instant::now() + look);
                if !self.wait_until(look_at) {
                    return;
                }
                if Instant::now() >= at {
                    break;
                }
                each(Instant::now());
            }
            // If the clock was set meanwhile, the tick bears the time it shows now.
            let shown = wall_ms();
            let ms = if (shown - due).abs() < step { due } else { shown.div_euclid(step) * step };
            last_ms = Some(ms);
            self.publish(ms, keep);
            each(Instant::now());
        }
    }
}
