//! Device samples in windows of ten seconds: means of gauges, sums of counter growth.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use tidegate_events::Millis;
use tidegate_events::v1::GpuSampleBatch;
use tidegate_events::v1::gpu_sample_batch::{Column, DeviceInfo};

use crate::budget;

/// Length of a window, µs.
pub const WINDOW_US: i64 = 10_000_000;
/// Longest span of a batch, ms; agents send one every ten seconds. Later samples are left out.
const MAX_SPAN_MS: i64 = 3_600_000;
/// Below this utilisation the clock shows the load, not the health of the device.
const BUSY_PPM: i64 = 100_000;
/// Bits of nvmlClocksEventReasons: hardware slowdown, thermal slowdown by driver or hardware, power
/// brake of the node.
const SLOWDOWN_BITS: i64 = 0x8 | 0x20 | 0x40 | 0x80;
/// The driver holds the device at its power limit.
const POWER_CAP_BIT: i64 = 0x4;

/// Statistics of a device over one window. `None`: not measured.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct WindowStats {
    /// Start of the window, µs since 1970; [`WINDOW_US`] long.
    pub start_us: i64,
    /// Index of the device in its node.
    pub index: u32,
    /// Mean SM clock while busy, MHz.
    pub sm_clock_mhz: Option<f64>,
    /// Share of the samples in which heat, hardware or a power brake lowered the clocks.
    pub slowdown_share: Option<f64>,
    /// Share of the samples at the power limit.
    pub power_cap_share: Option<f64>,
    /// Mean power while busy, W.
    pub power_w: Option<f64>,
    /// Replays and errors on PCIe and NVLink.
    pub link_retries: Option<u64>,
    /// Memory errors that ECC could not correct.
    pub uncorrectable_errors: Option<u64>,
    /// Rows await remapping.
    pub remap_pending: Option<bool>,
    /// A row could not be remapped.
    pub remap_failed: Option<bool>,
}

#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
struct WindowSums {
    index: u32,
    clock: (i64, u32),
    power_mw: (i64, u32),
    slowed: u32,
    capped: u32,
    reasons: u32,
    retries: Option<u64>,
    errors: Option<u64>,
    pending: Option<bool>,
    failed: Option<bool>,
}

/// Open windows of one node's devices, by start and UUID.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct DeviceWindows {
    open: BTreeMap<(i64, String), WindowSums>,
}

impl DeviceWindows {
    /// Memory of an open window.
    pub const BYTES: usize = size_of::<WindowSums>() + 2 * budget::NAME_BYTES;

    /// Adds a batch. Samples of windows that ended by `closed_us` are too late and dropped. MIG
    /// slices are dropped too, because they have no clocks of their own. An inconsistent batch
    /// changes nothing.
    pub fn add(&mut self, batch: &GpuSampleBatch, closed_us: i64) {
        let ticks = ticks(batch);
        let column = |name: &str| {
            let column = batch.columns.iter().find(|column| column.name == name)?;
            values(column, batch.devices.len(), ticks.len())
        };
        let util = column("gpu_util_ppm");
        let clock = column("sm_clock_mhz");
        let power = column("power_mw");
        let reasons = column("throttle_reasons_bits");
        let counters = ["pcie_replay_count", "nvlink_error_count", "ecc_uncorrected_count"];
        let growths = counters.map(|name| {
            let column = batch.columns.iter().find(|column| column.name == name)?;
            growths(column, batch.devices.len(), ticks.len())
        });
        let pending = column("remapped_rows_pending_count");
        let failed = column("remapped_rows_failed_count");
        for (device, DeviceInfo { uuid, index, mig_uuid, .. }) in batch.devices.iter().enumerate() {
            for (tick, at_ms) in ticks.iter().enumerate() {
                let start_us = Millis(*at_ms).to_micros().0.div_euclid(WINDOW_US).saturating_mul(WINDOW_US);
                let is_far = at_ms.saturating_sub(batch.first_tick_ms) > MAX_SPAN_MS;
                if mig_uuid.is_some() || is_far || start_us.saturating_add(WINDOW_US) <= closed_us {
                    continue;
                }
                let at = device * ticks.len() + tick;
                let read = |values: &Option<Vec<Option<i64>>>| values.as_ref().and_then(|values| values[at]);
                let sums = self.open.entry((start_us, uuid.clone())).or_default();
                sums.index = *index;
                let is_busy = read(&util).is_none_or(|util| util >= BUSY_PPM);
                for (sum, level) in [(&mut sums.clock, &clock), (&mut sums.power_mw, &power)] {
                    if let Some(value) = read(level).filter(|_| is_busy) {
                        *sum = (sum.0.saturating_add(value), sum.1 + 1);
                    }
                }
                if let Some(bits) = read(&reasons) {
                    sums.reasons += 1;
                    sums.slowed += u32::from(bits & SLOWDOWN_BITS != 0);
                    sums.capped += u32::from(bits & POWER_CAP_BIT != 0);
                }
                let grew = |growth: &Option<Vec<Option<i64>>>| {
                    read(growth).and_then(|count| u64::try_from(count).ok())
                };
                for growth in &growths[..2] {
                    sums.retries = add_known(sums.retries, grew(growth));
                }
                sums.errors = add_known(sums.errors, grew(&growths[2]));
                sums.pending = or_positive(sums.pending, read(&pending));
                sums.failed = or_positive(sums.failed, read(&failed));
            }
        }
    }

    /// Hands over the windows that ended by `until_us`, in order of time and UUID.
    pub fn close(&mut self, until_us: i64) -> Vec<(String, WindowStats)> {
        let mut closed = Vec::new();
        while let Some(entry) = self.open.first_entry() {
            let start_us = entry.key().0;
            if start_us.saturating_add(WINDOW_US) > until_us {
                break;
            }
            let ((_, uuid), sums) = entry.remove_entry();
            let share = |count: u32| (sums.reasons > 0).then(|| f64::from(count) / f64::from(sums.reasons));
            let mean = |(sum, count): (i64, u32)| (count > 0).then(|| sum as f64 / f64::from(count));
            closed.push((
                uuid,
                WindowStats {
                    start_us,
                    index: sums.index,
                    sm_clock_mhz: mean(sums.clock),
                    power_w: mean(sums.power_mw).map(|mw| mw / 1e3),
                    slowdown_share: share(sums.slowed),
                    power_cap_share: share(sums.capped),
                    link_retries: sums.retries,
                    uncorrectable_errors: sums.errors,
                    remap_pending: sums.pending,
                    remap_failed: sums.failed,
                },
            ));
        }
        closed
    }

    /// Open windows.
    pub fn len(&self) -> usize {
        self.open.len()
    }

    pub fn is_empty(&self) -> bool {
        self.open.is_empty()
    }
}

fn add_known(sum: Option<u64>, more: Option<u64>) -> Option<u64> {
    match more {
        Some(more) => Some(sum.unwrap_or(0).saturating_add(more)),
        None => sum,
    }
}

fn or_positive(known: Option<bool>, count: Option<i64>) -> Option<bool> {
    count.map_or(known, |count| Some(known.unwrap_or(false) || count > 0))
}

/// Sample times, ms since 1970.
fn ticks(batch: &GpuSampleBatch) -> Vec<i64> {
    let mut at_ms = batch.first_tick_ms;
    let later = batch.tick_delta_ms.iter().map(|delta| {
        at_ms = at_ms.saturating_add(*delta);
        at_ms
    });
    std::iter::once(batch.first_tick_ms).chain(later).collect()
}

/// Values of a column by device and tick; `None` if its length does not fit.
fn values(column: &Column, devices: usize, ticks: usize) -> Option<Vec<Option<i64>>> {
    if column.value_delta.len() != devices * ticks {
        return None;
    }
    let mut values = Vec::with_capacity(column.value_delta.len());
    for device in column.value_delta.chunks(ticks) {
        let mut value = 0_i64;
        values.extend(device.iter().map(|delta| {
            value = value.wrapping_add(*delta);
            Some(value)
        }));
    }
    for missing in &column.missing {
        let first = missing.first as usize;
        let end = first.saturating_add(missing.count as usize).min(values.len());
        values[first.min(end)..end].fill(None);
    }
    Some(values)
}

/// Growth of a counter since the sample before; `None` where it is unknown or the counter was
/// reset.
fn growths(column: &Column, devices: usize, ticks: usize) -> Option<Vec<Option<i64>>> {
    let values = values(column, devices, ticks)?;
    let growth = |at: usize| {
        let (device, tick) = (at / ticks, at % ticks);
        let grew = match tick {
            0 => column.first_growth.get(device).copied(),
            _ => values[at].zip(values[at - 1]).map(|(now, before)| now.wrapping_sub(before)),
        };
        grew.filter(|grew| *grew >= 0)
    };
    Some((0..values.len()).map(growth).collect())
}

#[cfg(test)]
mod tests {
    use tidegate_events::v1::gpu_sample_batch::Missing;

    use super::*;

    fn column(name: &str, value_delta: &[i64], first_growth: &[i64]) -> Column {
        Column {
            name: name.into(),
            value_delta: value_delta.to_vec(),
            missing: Vec::new(),
            first_growth: first_growth.to_vec(),
        }
    }

    /// One device, sampled at 0, 4, 8 and 12 s.
    fn batch(columns: Vec<Column>) -> GpuSampleBatch {
        GpuSampleBatch {
            node: "n".into(),
            devices: vec![DeviceInfo { uuid: "GPU-a".into(), index: 3, ..DeviceInfo::default() }],
            tick_delta_ms: vec![4_000; 3],
            columns,
            ..GpuSampleBatch::default()
        }
    }

    #[test]
    fn levels_are_averaged_and_growths_added_by_window() {
        let mut windows = DeviceWindows::default();
        windows.add(
            &batch(vec![
                // 1500, 1200, 900 | 1400; idle in the third sample, which does not count.
                column("sm_clock_mhz", &[1500, -300, -300, 500], &[]),
                column("gpu_util_ppm", &[900_000, 0, -900_000, 900_000], &[]),
                // 0x4, 0x44, 0x40 | 0.
                column("throttle_reasons_bits", &[0x4, 0x40, -0x4, -0x40], &[]),
                // The first sample grew by 2, then by 3; after a reset, by 1.
                column("pcie_replay_count", &[10, 3, -13, 1], &[2]),
            ]),
            0,
        );
        let closed = windows.close(10_000_000);
        assert_eq!(closed.len(), 1);
        let (uuid, shown) = &closed[0];
        assert_eq!((uuid.as_str(), shown.start_us, shown.index), ("GPU-a", 0, 3));
        assert_eq!(shown.sm_clock_mhz, Some(1350.0));
        assert_eq!((shown.slowdown_share, shown.power_cap_share), (Some(2.0 / 3.0), Some(2.0 / 3.0)));
        assert_eq!((shown.link_retries, shown.uncorrectable_errors), (Some(5), None));
        let (_, next) = windows.close(20_000_000)[0].clone();
        assert_eq!(
            (next.start_us, next.sm_clock_mhz, next.link_retries),
            (10_000_000, Some(1400.0), Some(1))
        );
        assert!(windows.is_empty());
    }

    #[test]
    fn unread_columns_are_unknown_and_late_samples_dropped() {
        let mut clock = column("sm_clock_mhz", &[1500, 0, 0, 0], &[]);
        clock.missing = vec![Missing { first: 0, count: 9, reason: 1 }];
        let mut windows = DeviceWindows::default();
        windows.add(&batch(vec![clock, column("throttle_reasons_bits", &[1], &[])]), 10_000_000);
        let closed = windows.close(i64::MAX);
        assert_eq!(closed.len(), 1, "the first window was over");
        let nothing = WindowStats { start_us: 10_000_000, index: 3, ..WindowStats::default() };
        assert_eq!(closed[0].1, nothing);
    }
}
