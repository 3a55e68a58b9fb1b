//! Validation of a batch of GPU samples: each of its values has one device, one time and one
//! meaning.

use crate::invalid::{InvalidEvent, filled};
use crate::v1::GpuSampleBatch;
use crate::v1::gpu_sample_batch::{Column, Process};
use crate::wire::MAX_SAMPLES;

/// Longest name of a metric, bytes.
const MAX_NAME_BYTES: usize = 64;
/// The years 1 to 9999, ms since the epoch: what tables and their readers can write down.
const TIMES_MS: std::ops::RangeInclusive<i64> = -62_135_596_800_000..=253_402_300_799_999;

/// Readers index columns by device and tick, and add up differences; they can do so unchecked after
/// this.
pub(super) fn fits(batch: &GpuSampleBatch) -> Result<(), InvalidEvent> {
    let (devices, ticks) = (batch.devices.len(), batch.tick_delta_ms.len() + 1);
    if devices == 0 {
        return Err(InvalidEvent::MissingField { field: "devices" });
    }
    if devices.saturating_mul(ticks) > MAX_SAMPLES {
        return Err(InvalidEvent::TooManySamples { devices, ticks });
    }
    ticks_are_times(batch)?;
    devices_differ(batch)?;
    names_differ(batch)?;
    batch.columns.iter().try_for_each(|column| column_fits(column, devices, ticks))?;
    processes_fit(batch, devices, ticks)
}

fn processes_fit(batch: &GpuSampleBatch, devices: usize, ticks: usize) -> Result<(), InvalidEvent> {
    let inside = |p: &&Process| {
        (p.device as usize) < devices && p.first_tick <= p.last_tick && (p.last_tick as usize) < ticks
    };
    match batch.processes.iter().find(|process| !inside(process)) {
        Some(process) => Err(InvalidEvent::ProcessOutside { pid: process.pid }),
        None => Ok(()),
    }
}

fn ticks_are_times(batch: &GpuSampleBatch) -> Result<(), InvalidEvent> {
    let mut at_ms = batch.first_tick_ms;
    let deltas = std::iter::once(0).chain(batch.tick_delta_ms.iter().copied());
    for (tick, delta) in deltas.enumerate() {
        at_ms = at_ms.saturating_add(delta);
        if !TIMES_MS.contains(&at_ms) {
            return Err(InvalidEvent::TickOutOfRange { tick, at_ms });
        }
    }
    Ok(())
}

fn devices_differ(batch: &GpuSampleBatch) -> Result<(), InvalidEvent> {
    let mut ids = Vec::with_capacity(batch.devices.len());
    for device in &batch.devices {
        filled("devices.uuid", &device.uuid)?;
        ids.push((device.uuid.as_str(), device.mig_uuid.as_deref()));
    }
    ids.sort_unstable();
    match ids.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(pair) => {
            let device = pair[0].1.unwrap_or(pair[0].0).to_owned();
            Err(InvalidEvent::DeviceTwice { device })
        }
        None => Ok(()),
    }
}

fn names_differ(batch: &GpuSampleBatch) -> Result<(), InvalidEvent> {
    let mut names: Vec<&str> = batch.columns.iter().map(|column| column.name.as_str()).collect();
    let plain = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit() || c == b'_';
    if let Some(name) =
        names.iter().find(|n| n.is_empty() || n.len() > MAX_NAME_BYTES || !n.bytes().all(plain))
    {
        return Err(InvalidEvent::ColumnName { name: name.chars().take(MAX_NAME_BYTES).collect() });
    }
    names.sort_unstable();
    match names.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(pair) => Err(InvalidEvent::ColumnTwice { column: pair[0].to_owned() }),
        None => Ok(()),
    }
}

fn column_fits(column: &Column, devices: usize, ticks: usize) -> Result<(), InvalidEvent> {
    let values = column.value_delta.len();
    let name = || column.name.clone();
    if values != 0 && values != devices * ticks {
        return Err(InvalidEvent::ColumnLength { column: name(), values, devices, ticks });
    }
    if ![0, devices].contains(&column.first_growth.len()) {
        return Err(InvalidEvent::GrowthLength {
            column: name(),
            values: column.first_growth.len(),
            devices,
        });
    }
    let mut runs = Vec::with_capacity(column.missing.len());
    for missing in &column.missing {
        let (first, end) = (u64::from(missing.first), u64::from(missing.first) + u64::from(missing.count));
        if end > values as u64 {
            return Err(InvalidEvent::MissingOutOfRange { column: name(), first, end, values });
        }
        let (first, end) = (first as usize, end as usize);
        if let Some(at) = column.value_delta[first..end].iter().position(|delta| *delta != 0) {
            return Err(InvalidEvent::MissingHasValue { column: name(), at: first + at });
        }
        if first < end {
            runs.push((first, end));
        }
    }
    runs.sort_unstable();
    match runs.windows(2).find(|pair| pair[1].0 < pair[0].1) {
        Some(pair) => Err(InvalidEvent::MissingTwice { column: name(), at: pair[1].0 }),
        None => Ok(()),
    }
}
