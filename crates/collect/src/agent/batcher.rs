//! Batches the readings of some seconds: devices × ticks.

use std::sync::Arc;

use tidegate_events::MAX_SAMPLES;
use tidegate_events::v1::GpuSampleBatch;
use tidegate_readings::columns;
use tidegate_readings::counters::LastCounters;

use crate::reading::{Device, Reading};

/// How long a batch waits for late devices, ms: longer than a source takes to report a device as
/// stale.
const GRACE_MS: i64 = 7_000;

/// The open batch, and readings that arrived early for the next one.
pub(super) struct Batcher {
    /// Upper bound on the time from the first to the last tick of a batch, ms.
    span_ms: i64,
    readings: Vec<Reading>,
    devices: Vec<DeviceProgress>,
    open: Option<OpenBatch>,
    /// Ticks before this one belong to closed batches.
    closed_until_ms: Option<i64>,
    counted: LastCounters,
    /// Readings dropped because their batch was closed or their tick did not advance.
    pub late: u64,
}

/// A device and its last tick.
struct DeviceProgress {
    device: Arc<Device>,
    last_ms: i64,
}

impl DeviceProgress {
    /// Whether it is the same hardware, whatever its number.
    fn is(&self, device: &Device) -> bool {
        (&self.device.uuid, &self.device.mig_uuid) == (&device.uuid, &device.mig_uuid)
    }
}

/// The open batch.
#[derive(Clone, Copy)]
struct OpenBatch {
    first_ms: i64,
    /// Readings from this tick on belong to the next batch.
    end_ms: i64,
    /// When to close it even if devices are missing, on the steady clock.
    due_ms: i64,
}

impl Batcher {
    pub fn new(span_ms: i64) -> Self {
        let (readings, devices) = (Vec::new(), Vec::new());
        Self {
            span_ms: span_ms.max(1),
            readings,
            devices,
            open: None,
            closed_until_ms: None,
            counted: LastCounters::default(),
            late: 0,
        }
    }

    /// Whether the tick goes backward, as after the clock was set back.
    pub fn is_backward(&self, reading: &Reading) -> bool {
        let known = self.devices.iter().find(|known| known.is(&reading.device));
        known.is_some_and(|known| reading.tick_ms <= known.last_ms)
            || self.closed_until_ms.is_some_and(|until| reading.tick_ms < until)
    }

    /// Adds a reading and returns the batch that it completes.
    pub fn add(&mut self, reading: Reading, steady_ms: i64) -> Option<GpuSampleBatch> {
        if self.is_backward(&reading) {
            self.late += 1;
            return None;
        }
        let tick_ms = reading.tick_ms;
        let mut open = self.open.unwrap_or_else(|| self.open_at(tick_ms, steady_ms));
        open.first_ms = open.first_ms.min(tick_ms);
        let known = self.devices.iter_mut().find(|known| known.is(&reading.device));
        let is_same = match known {
            Some(known) => {
                let is_same = *known.device == *reading.device && known.last_ms >= open.first_ms;
                *known = DeviceProgress { device: reading.device.clone(), last_ms: tick_ms };
                is_same
            }
            None => {
                self.devices.push(DeviceProgress { device: reading.device.clone(), last_ms: tick_ms });
                false
            }
        };
        if !is_same && tick_ms > open.first_ms && tick_ms < open.end_ms {
            // The set of devices changes at this tick, so the batch ends before it. Late readings
            // of earlier ticks still get their grace period.
            open.end_ms = tick_ms;
            open.due_ms = open.due_ms.min(steady_ms + GRACE_MS);
        }
        self.open = Some(open);
        self.readings.push(reading);
        let full = self.readings.len() >= MAX_SAMPLES / 4;
        if full || self.all_are_past(open) { self.close(steady_ms) } else { None }
    }

    fn open_at(&self, first_ms: i64, steady_ms: i64) -> OpenBatch {
        OpenBatch { first_ms, end_ms: first_ms + self.span_ms, due_ms: steady_ms + self.span_ms + GRACE_MS }
    }

    /// Whether every device of the batch has moved on to the next one.
    fn all_are_past(&self, open: OpenBatch) -> bool {
        let of_batch = self.devices.iter().filter(|known| known.last_ms >= open.first_ms);
        of_batch.map(|known| known.last_ms).min().is_some_and(|last_ms| last_ms >= open.end_ms)
    }

    /// When to call [`Batcher::close_due`], on the steady clock.
    pub fn due_ms(&self) -> Option<i64> {
        self.open.map(|open| open.due_ms)
    }

    /// Closes the batch if it has waited long enough for missing devices.
    pub fn close_due(&mut self, steady_ms: i64) -> Option<GpuSampleBatch> {
        if self.due_ms()? <= steady_ms { self.close(steady_ms) } else { None }
    }

    /// Closes everything, at the end or when the clock was set. Any tick may follow.
    pub fn close_all(&mut self, steady_ms: i64) -> Vec<GpuSampleBatch> {
        let mut closed = Vec::new();
        while !self.readings.is_empty() {
            closed.extend(self.close(steady_ms));
        }
        (self.open, self.closed_until_ms) = (None, None);
        self.devices.clear();
        closed
    }

    fn close(&mut self, steady_ms: i64) -> Option<GpuSampleBatch> {
        let open = self.open.take()?;
        let inside: Vec<_> = self.readings.extract_if(.., |reading| reading.tick_ms < open.end_ms).collect();
        self.closed_until_ms = Some(open.end_ms);
        self.devices.retain(|known| known.last_ms >= open.first_ms);
        let next_ms = self.readings.iter().map(|reading| reading.tick_ms).min();
        self.open = next_ms.map(|first_ms| self.open_at(first_ms, steady_ms));
        (!inside.is_empty()).then(|| columns::batch(inside, &mut self.counted))
    }
}

#[cfg(test)]
mod tests;
