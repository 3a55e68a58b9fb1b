//! A device's place among the ticks, and what becomes of a tick that it does not answer.

use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::ask::Call;
use super::tell::Teller;
use crate::reading::{Device, Metric, MissingReason, Reading, Value};
use crate::ticker::{Clock, Tick};

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

    /// Goes on for the slot of the same device in the session before: whether it is still to be
    /// told that it answers.
    pub(super) fn follow(&self, before: &Self) {
        let stale = before.state().stale;
        self.state().stale = stale;
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

    /// Whether the thread that read a tick may tell of it: not if the watchdog has done so. A
    /// device that was stale answers.
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
