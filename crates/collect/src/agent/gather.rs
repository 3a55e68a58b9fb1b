//! Readings of some seconds become one batch: devices × ticks.

use std::sync::Arc;

use tidegate_events::MAX_SAMPLES;
use tidegate_events::v1::GpuSampleBatch;

use super::columns;
use super::growth::Counted;
use crate::reading::{Device, Reading};

/// How long a batch waits for devices whose readings come late, ms: longer than a source takes to
/// say that a device is stale.
const GRACE_MS: i64 = 7_000;

/// Gathers the readings of a batch, and those that came early for the next one.
pub(super) struct Gatherer {
    /// Ticks of a batch span less than this, ms.
    span_ms: i64,
    readings: Vec<Reading>,
    devices: Vec<Known>,
    open: Option<Open>,
    /// Ticks before this one are of batches that were closed.
    closed_until_ms: Option<i64>,
    counted: Counted,
    /// Readings that were dropped, because their batch was closed or their tick was not after the
    /// one before.
    pub late: u64,
}

/// A device that was heard of, and its last tick.
struct Known {
    device: Arc<Device>,
    last_ms: i64,
}

impl Known {
    /// The same piece of hardware, whatever number it has now.
    fn is(&self, device: &Device) -> bool {
        (&self.device.uuid, &self.device.mig_uuid) == (&device.uuid, &device.mig_uuid)
    }
}

/// The batch that is being gathered.
#[derive(Clone, Copy)]
struct Open {
    first_ms: i64,
    /// Readings from this tick on are of the next batch.
    end_ms: i64,
    /// On the steady clock: closed then, whoever is missing.
    due_ms: i64,
}

impl Gatherer {
    pub fn new(span_ms: i64) -> Self {
        let (readings, devices) = (Vec::new(), Vec::new());
        Self {
            span_ms: span_ms.max(1),
            readings,
            devices,
            open: None,
            closed_until_ms: None,
            counted: Counted::default(),
            late: 0,
        }
    }

    /// Whether the tick is before one that was told already, as when the clock was set back.
    pub fn is_backward(&self, reading: &Reading) -> bool {
        let known = self.devices.iter().find(|known| known.is(&reading.device));
        known.is_some_and(|known| reading.tick_ms <= known.last_ms)
            || self.closed_until_ms.is_some_and(|until| reading.tick_ms < until)
    }

    /// Takes a reading; gives the batch that it completes.
    pub fn take(&mut self, reading: Reading, steady_ms: i64) -> Option<GpuSampleBatch> {
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
                *known = Known { device: reading.device.clone(), last_ms: tick_ms };
                is_same
            }
            None => {
                self.devices.push(Known { device: reading.device.clone(), last_ms: tick_ms });
                false
            }
        };
        if !is_same && tick_ms > open.first_ms && tick_ms < open.end_ms {
            // Another set of devices from this tick on. What the others still say of earlier ticks
            // is waited for.
            open.end_ms = tick_ms;
            open.due_ms = open.due_ms.min(steady_ms + GRACE_MS);
        }
        self.open = Some(open);
        self.readings.push(reading);
        let full = self.readings.len() >= MAX_SAMPLES / 4;
        if full || self.all_are_past(open) { self.close(steady_ms) } else { None }
    }

    fn open_at(&self, first_ms: i64, steady_ms: i64) -> Open {
        Open { first_ms, end_ms: first_ms + self.span_ms, due_ms: steady_ms + self.span_ms + GRACE_MS }
    }

    /// Whether every device of the batch has gone on to the next one.
    fn all_are_past(&self, open: Open) -> bool {
        let of_batch = self.devices.iter().filter(|known| known.last_ms >= open.first_ms);
        of_batch.map(|known| known.last_ms).min().is_some_and(|last_ms| last_ms >= open.end_ms)
    }

    /// When to ask [`Gatherer::close_due`], on the steady clock.
    pub fn due_ms(&self) -> Option<i64> {
        self.open.map(|open| open.due_ms)
    }

    /// The batch, if it has waited long enough for those that are missing.
    pub fn close_due(&mut self, steady_ms: i64) -> Option<GpuSampleBatch> {
        if self.due_ms()? <= steady_ms { self.close(steady_ms) } else { None }
    }

    /// All that was gathered, as at the end and when the clock was set: any tick may come after
    /// this.
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
