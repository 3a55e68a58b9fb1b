//! When values are read, and what becomes of a tick that a device does not answer.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use super::ask::Call;
use super::tell::Teller;
use crate::reading::{Device, Metric, MissingReason, Reading, Value};

/// One point in time at which all devices are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Tick {
    /// Grows by one, whatever the wall clock does.
    pub number: u64,
    /// Wall clock, ms since the epoch, a whole multiple of the interval.
    pub ms: i64,
    pub at: Instant,
}

/// Wall clock, ms since the epoch.
pub(super) fn wall_ms() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as i64
}

/// Gives ticks to the threads of the devices.
#[derive(Debug, Default)]
pub(super) struct Clock {
    state: Mutex<Ticks>,
    /// There is a new tick.
    changed: Condvar,
    /// Something else happened that someone may wait for.
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

    pub(super) fn stop(&self) {
        self.ticks().stop = true;
        self.changed.notify_all();
        self.control.notify_all();
    }

    /// Lets those that wait look again at what they wait for.
    pub(super) fn wake(&self) {
        drop(self.ticks());
        self.changed.notify_all();
        self.control.notify_all();
    }

    /// Number of the last tick.
    pub(super) fn last(&self) -> u64 {
        self.ticks().last
    }

    /// Waits until a time; false when it is to stop.
    pub(super) fn wait_until(&self, until: Instant) -> bool {
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

    /// Waits until something holds, at most for a time; false when it is to stop.
    pub(super) fn wait_for(&self, time: Duration, holds: impl Fn() -> bool) -> bool {
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

    /// The newest tick after `last` as soon as there is one; None at the end of the session or of all.
    pub(super) fn wait_after(&self, last: u64, over: &AtomicBool) -> Option<Tick> {
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

    /// Makes a tick. `keep`: for how long ticks are remembered.
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

    /// Ticks after a number up to a time, oldest first.
    fn between(&self, after: u64, until: Option<Instant>) -> Vec<Tick> {
        let ticks = self.ticks();
        let wanted = |t: &&Tick| t.number > after && until.is_none_or(|until| t.at <= until);
        ticks.recent.iter().filter(wanted).copied().collect()
    }

    /// Makes ticks at whole intervals of the wall clock until it is to stop, and calls `each` after each and at least once a
    /// second. When the clock is set, ticks go on at its new time; when this thread comes late by more than an interval,
    /// ticks are left out, for all devices alike.
    pub(super) fn run(&self, interval: Duration, keep: Duration, each: impl Fn(Instant)) {
        let step = i64::try_from(interval.as_millis()).unwrap_or(i64::MAX).max(1);
        let look = interval.min(Duration::from_secs(1));
        let mut last_ms = None;
        loop {
            let now = wall_ms();
            let mut due = now.div_euclid(step).saturating_add(1).saturating_mul(step);
            if last_ms == Some(due) {
                // The clock was slowed down and this tick was made already.
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
            // Set back or forth meanwhile: the tick bears the time the clock shows now.
            let shown = wall_ms();
            let ms = if (shown - due).abs() < step { due } else { shown.div_euclid(step) * step };
            last_ms = Some(ms);
            self.publish(ms, keep);
            each(Instant::now());
        }
    }
}

/// A device's place: what its thread and the watchdog agree on.
#[derive(Debug)]
pub(super) struct Slot {
    pub gpu: Arc<Device>,
    /// As sysfs writes it.
    pub pci: String,
    doing: AtomicU8,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// MIG instances.
    instances: Vec<Arc<Device>>,
    /// All ticks up to this were told of.
    done: u64,
    /// First tick that was not answered, while none is.
    stale: Option<Tick>,
    /// No thread reads it: the driver is being started again.
    suspended: bool,
    lost: bool,
}

impl Slot {
    pub(super) fn new(gpu: Arc<Device>, pci: String) -> Self {
        let state = State { instances: Vec::new(), done: 0, stale: None, suspended: false, lost: false };
        Self { gpu, pci, doing: AtomicU8::new(Call::Idle as u8), state: Mutex::new(state) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Says which call is made next, for who asks what hangs.
    pub(super) fn doing(&self, call: Call) {
        self.doing.store(call as u8, Ordering::Relaxed);
    }

    pub(super) fn set_instances(&self, instances: Vec<Arc<Device>>) {
        self.state().instances = instances;
    }

    pub(super) fn set_lost(&self, lost: bool) {
        self.state().lost = lost;
    }

    pub(super) fn is_lost(&self) -> bool {
        self.state().lost
    }

    pub(super) fn is_stale(&self) -> bool {
        self.state().stale.is_some()
    }

    /// Ticks after this one are told of.
    pub(super) fn begin_after(&self, last: u64) {
        self.state().done = last;
    }

    /// Tells of all ticks up to `last` that were not told of: another slot has those after it.
    pub(super) fn close(&self, last: u64, clock: &Clock, teller: &Teller) {
        let mut state = self.state();
        state.suspended = true;
        let open: Vec<_> = clock.between(state.done, None).into_iter().filter(|t| t.number <= last).collect();
        state.done = state.done.max(last);
        let instances = state.instances.clone();
        drop(state);
        for tick in open {
            missing(&self.gpu, &instances, &tick, MissingReason::Stale)
                .into_iter()
                .for_each(|r| teller.reading(r));
        }
    }

    /// From now on the watchdog speaks for it, until it is replaced.
    pub(super) fn suspend(&self) {
        self.state().suspended = true;
    }

    /// Readings of the GPU and its instances that say of all values why they are missing.
    pub(super) fn missing(&self, tick: &Tick, reason: MissingReason) -> Vec<Reading> {
        let state = self.state();
        missing(&self.gpu, &state.instances, tick, reason)
    }

    /// Takes the ticks that came while the thread was busy with another: it cannot read the past.
    pub(super) fn skip(&self, tick: &Tick, clock: &Clock) -> Vec<Reading> {
        let mut state = self.state();
        let skipped: Vec<_> =
            clock.between(state.done, None).into_iter().filter(|t| t.number < tick.number).collect();
        state.done = state.done.max(tick.number - 1);
        let instances = &state.instances;
        skipped.iter().flat_map(|t| missing(&self.gpu, instances, t, MissingReason::Stale)).collect()
    }

    /// Whether the thread that read a tick may tell of it: not if the watchdog has done so. A device that was stale answers.
    pub(super) fn finish(&self, tick: &Tick, teller: &Teller) -> bool {
        self.doing(Call::Idle);
        let mut state = self.state();
        if state.suspended {
            return false;
        }
        let stale = state.stale.take();
        let first = state.done < tick.number;
        state.done = state.done.max(tick.number);
        drop(state);
        if let Some(since) = stale {
            teller.answers(self, &since);
        }
        first
    }

    /// Speaks in place of a thread that hangs: ticks older than `stale_after` are told of as stale.
    pub(super) fn watch(&self, now: Instant, stale_after: Duration, clock: &Clock, teller: &Teller) {
        let mut state = self.state();
        let until = if state.suspended { Some(now) } else { now.checked_sub(stale_after) };
        let Some(until) = until else { return };
        let overdue = clock.between(state.done, Some(until));
        let Some(last) = overdue.last() else { return };
        state.done = last.number;
        let begins = !state.suspended && state.stale.is_none();
        if begins {
            state.stale = overdue.first().copied();
        }
        let instances = state.instances.clone();
        drop(state);
        if begins {
            let call = Call::ALL.get(usize::from(self.doing.load(Ordering::Relaxed))).copied();
            teller.stale(self, &overdue[0], call.unwrap_or(Call::Idle));
        }
        for tick in overdue {
            missing(&self.gpu, &instances, &tick, MissingReason::Stale)
                .into_iter()
                .for_each(|r| teller.reading(r));
        }
    }
}

fn missing(gpu: &Arc<Device>, instances: &[Arc<Device>], tick: &Tick, reason: MissingReason) -> Vec<Reading> {
    let of = |device: &Arc<Device>, metrics: &[Metric]| {
        let mut reading = Reading::new(Arc::clone(device), tick.ms);
        metrics.iter().for_each(|metric| reading.set(*metric, Value::Missing(reason)));
        reading
    };
    let all = std::iter::once(of(gpu, super::GPU_METRICS));
    all.chain(instances.iter().map(|i| of(i, super::INSTANCE_METRICS))).collect()
}
