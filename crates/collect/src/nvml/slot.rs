//! A device's progress through the ticks, shared by its thread and the watchdog, so that every tick
//! has exactly one reading.

use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::driver_call::Call;
use super::emit::Emitter;
use super::gpu::LocatedGpu;
use super::metrics::{GPU_METRICS, INSTANCE_METRICS};
use crate::reading::{Device, Metric, MissingReason, Reading, Value};
use crate::ticker::{Clock, Tick};

/// Progress of one device.
#[derive(Debug)]
pub(super) struct Slot {
    pub gpu: LocatedGpu,
    doing: AtomicU8,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// MIG instances.
    instances: Vec<Arc<Device>>,
    /// Every tick up to this one has its reading.
    done: u64,
    /// First unanswered tick, while the device does not answer.
    stale: Option<Tick>,
    /// Whether no thread reads it, because the driver is restarting.
    suspended: bool,
    lost: bool,
}

impl Slot {
    pub(super) fn new(gpu: LocatedGpu) -> Self {
        let state = State { instances: Vec::new(), done: 0, stale: None, suspended: false, lost: false };
        Self { gpu, doing: AtomicU8::new(Call::Idle as u8), state: Mutex::new(state) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records the next driver call, to name it if it hangs.
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

    /// Sets the last tick that needs no reading.
    pub(super) fn begin_after(&self, last: u64) {
        self.state().done = last;
    }

    /// Takes over from the slot of the same device in the session before: whether `DEVICE_ANSWERS`
    /// is still due.
    pub(super) fn follow(&self, before: &Self) {
        let stale = before.state().stale;
        self.state().stale = stale;
    }

    /// Emits stale readings for all open ticks up to `last`. A new slot takes the ticks after it.
    pub(super) fn close(&self, last: u64, clock: &Clock, emitter: &Emitter) {
        let mut state = self.state();
        state.suspended = true;
        let open: Vec<_> = clock.between(state.done, None).into_iter().filter(|t| t.number <= last).collect();
        state.done = state.done.max(last);
        let instances = state.instances.clone();
        drop(state);
        for tick in open {
            missing(&self.gpu.device, &instances, &tick, MissingReason::Stale)
                .into_iter()
                .for_each(|r| emitter.reading(r));
        }
    }

    /// Leaves the device to the watchdog until it is replaced.
    pub(super) fn suspend(&self) {
        self.state().suspended = true;
    }

    /// Readings of the GPU and its instances in which all values are missing.
    pub(super) fn missing(&self, tick: &Tick, reason: MissingReason) -> Vec<Reading> {
        let state = self.state();
        missing(&self.gpu.device, &state.instances, tick, reason)
    }

    /// Skips ticks that passed while the thread was busy, and returns stale readings for them: the
    /// past cannot be read.
    pub(super) fn skip(&self, tick: &Tick, clock: &Clock) -> Vec<Reading> {
        let mut state = self.state();
        let skipped: Vec<_> =
            clock.between(state.done, None).into_iter().filter(|t| t.number < tick.number).collect();
        state.done = state.done.max(tick.number - 1);
        let instances = &state.instances;
        skipped.iter().flat_map(|t| missing(&self.gpu.device, instances, t, MissingReason::Stale)).collect()
    }

    /// Completes a tick. Returns whether the thread may emit its readings; it may not if the
    /// watchdog already did. A stale device answers again with this.
    pub(super) fn finish(&self, tick: &Tick, emitter: &Emitter) -> bool {
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
            emitter.answers(&self.gpu, &since);
        }
        first
    }

    /// Emits stale readings in place of a hanging thread, for ticks older than `stale_after`.
    pub(super) fn watch(&self, now: Instant, stale_after: Duration, clock: &Clock, emitter: &Emitter) {
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
            emitter.stale(&self.gpu, &overdue[0], call.unwrap_or(Call::Idle));
        }
        for tick in overdue {
            missing(&self.gpu.device, &instances, &tick, MissingReason::Stale)
                .into_iter()
                .for_each(|r| emitter.reading(r));
        }
    }
}

fn missing(gpu: &Arc<Device>, instances: &[Arc<Device>], tick: &Tick, reason: MissingReason) -> Vec<Reading> {
    let of = |device: &Arc<Device>, metrics: &[Metric]| {
        let mut reading = Reading::new(Arc::clone(device), tick.ms);
        metrics.iter().for_each(|metric| reading.set(*metric, Value::Missing(reason)));
        reading
    };
    let all = std::iter::once(of(gpu, GPU_METRICS));
    all.chain(instances.iter().map(|i| of(i, INSTANCE_METRICS))).collect()
}
