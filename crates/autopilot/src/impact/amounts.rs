//! Rates and sums of GPU time, and their units.

use serde::{Deserialize, Serialize};

use crate::scorecard::Interval;

/// Rates of an action at one observation, thousandths of a GPU; or their sums, GPU-µs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Amounts {
    /// Useful GPU time gained.
    pub gained: i64,
    /// Useful GPU time that those went without who had to make room.
    pub forgone: i64,
    /// GPU time that stood idle although it was wanted.
    pub idle: i64,
}

impl Amounts {
    pub fn gained(milli: i64) -> Self {
        Self { gained: milli, ..Self::default() }
    }

    /// Sums of GPU-µs as GPUs × ms.
    pub fn gpu_ms(&self) -> Self {
        let ms = |us: i64| us.div_euclid(1_000);
        Self { gained: ms(self.gained), forgone: ms(self.forgone), idle: ms(self.idle) }
    }
}

/// Whole GPUs in thousandths.
pub(super) fn milli(gpus: u32) -> i64 {
    i64::from(gpus) * 1_000
}

/// `amount` times a factor in millionths.
pub(super) fn times_ppm(amount: i64, ppm: u64) -> i64 {
    let product = i128::from(amount) * i128::from(ppm) / 1_000_000;
    i64::try_from(product).unwrap_or(if amount < 0 { i64::MIN } else { i64::MAX })
}

/// GPUs × ms as GPU-hours in words.
pub(super) fn hours(gpu_ms: i64) -> String {
    format!("{:.1}", gpu_ms as f64 / 3.6e6)
}

/// GPU-hours of an interval, as text.
pub(super) fn range(interval: Interval) -> String {
    match interval.as_point() {
        Some(point) => format!("{} GPU-hours", hours(point)),
        None => format!("{} to {} GPU-hours", hours(interval.low_gpu_ms), hours(interval.high_gpu_ms)),
    }
}
