//! Units of time, of GPUs and of GPU time, all integers.
//!
//! Fields and arguments are plain integers whose names end in their unit (`_ms`, `_us`,
//! `gpus_milli`), as in the schemas. [`Millis`], [`Micros`], [`MilliGpus`] and [`GpuMillis`]
//! convert them, so that each factor is written once. A conversion that loses something says in its
//! name how it rounds.
//!
//! ```
//! use tidegate_units::{Micros, MilliGpus, Millis};
//!
//! assert_eq!(Millis::from_secs(90).to_micros(), Micros(90_000_000));
//! assert_eq!(Micros(1_999_999).floor_secs(), 1);
//! assert_eq!(MilliGpus(500).whole_gpus(), None, "half a GPU is not none");
//! ```

#![warn(missing_docs)]

/// One whole GPU in thousandths.
pub const GPU_MILLI: u64 = 1_000;

const MS_PER_S: i64 = 1_000;
const MS_PER_MINUTE: i64 = 60_000;
const US_PER_MS: i64 = 1_000;
const US_PER_S: i64 = 1_000_000;
const US_PER_MINUTE: i64 = 60_000_000;

/// Milliseconds, since the epoch or of a duration: the unit of events.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Millis(pub i64);

/// Microseconds, since the epoch or of a duration: the unit of tables and of the control loop.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Micros(pub i64);

/// GPU time: one GPU for a millisecond, or two for half of one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GpuMillis(pub i64);

/// Thousandths of a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MilliGpus(pub u64);

impl Millis {
    /// Seconds as milliseconds; saturates at the ends of `i64`.
    pub const fn from_secs(s: i64) -> Self {
        Self(s.saturating_mul(MS_PER_S))
    }

    /// Minutes as milliseconds; saturates at the ends of `i64`.
    pub const fn from_minutes(minutes: i64) -> Self {
        Self(minutes.saturating_mul(MS_PER_MINUTE))
    }

    /// The same time in microseconds; saturates at the ends of `i64`.
    pub const fn to_micros(self) -> Micros {
        Micros(self.0.saturating_mul(US_PER_MS))
    }

    /// Whole seconds, rounded down, also before 1970: -1 ms is second -1.
    pub const fn floor_secs(self) -> i64 {
        self.0.div_euclid(MS_PER_S)
    }
}

impl Micros {
    /// Seconds as microseconds; saturates at the ends of `i64`.
    pub const fn from_secs(s: i64) -> Self {
        Self(s.saturating_mul(US_PER_S))
    }

    /// Whole milliseconds, rounded down, also before 1970: -1 µs is millisecond -1.
    pub const fn floor_millis(self) -> Millis {
        Millis(self.0.div_euclid(US_PER_MS))
    }

    /// Whole seconds, rounded down, also before 1970: -1 µs is second -1.
    pub const fn floor_secs(self) -> i64 {
        self.0.div_euclid(US_PER_S)
    }

    /// Whole minutes, rounded down, also before 1970: -1 µs is minute -1.
    pub const fn floor_minutes(self) -> i64 {
        self.0.div_euclid(US_PER_MINUTE)
    }
}

impl GpuMillis {
    /// Whole GPU seconds, rounded toward zero, for texts: a loss of half a second is 0, not -1.
    pub const fn trunc_gpu_secs(self) -> i64 {
        self.0 / MS_PER_S
    }
}

impl MilliGpus {
    /// Whole GPUs as thousandths; saturates at the end of `u64`.
    pub const fn from_gpus(gpus: u64) -> Self {
        Self(gpus.saturating_mul(GPU_MILLI))
    }

    /// A calculated number of GPUs, rounded to the nearest thousandth; none if it is negative or
    /// not a number.
    pub fn round_from_gpus(gpus: f64) -> Self {
        Self((gpus * GPU_MILLI as f64).round() as u64)
    }

    /// Whole GPUs, rounded down.
    pub const fn floor_gpus(self) -> u64 {
        self.0 / GPU_MILLI
    }

    /// Number of GPUs if it is whole; `None` for a fraction.
    pub const fn whole_gpus(self) -> Option<u64> {
        if self.0.is_multiple_of(GPU_MILLI) { Some(self.floor_gpus()) } else { None }
    }
}

/// GPU milliseconds that `gpus_milli` thousandths of a GPU make from `from_ms` to `to_ms`, rounded
/// down.
///
/// Half a GPU for a second is 500. Negative if `to_ms` is before `from_ms`; held at the ends of
/// `i64` beyond them.
pub fn gpu_ms(gpus_milli: u64, from_ms: i64, to_ms: i64) -> i64 {
    let span_ms = i128::from(to_ms) - i128::from(from_ms);
    // The product can take 129 bits. Held at the ends of i128 it still lies beyond those of i64.
    let gpu_ms = i128::from(gpus_milli).saturating_mul(span_ms).div_euclid(i128::from(GPU_MILLI));
    gpu_ms.clamp(i128::from(i64::MIN), i128::from(i64::MAX)) as i64
}

/// The share of an interval's GPU milliseconds that falls from `a_ms` to `b_ms`, for an interval
/// that began at `from_ms`.
///
/// A difference of totals since the beginning: however an interval is cut, its parts sum to exactly
/// the whole, where parts that are rounded on their own would lose up to a GPU millisecond each.
pub fn gpu_ms_between(gpus_milli: u64, from_ms: i64, a_ms: i64, b_ms: i64) -> i64 {
    gpu_ms(gpus_milli, from_ms, b_ms).saturating_sub(gpu_ms(gpus_milli, from_ms, a_ms))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn known_amounts() {
        assert_eq!(gpu_ms(500, 0, 1_000), 500);
        assert_eq!(gpu_ms(8_000, 10, 13), 24);
        assert_eq!(gpu_ms(333, 0, 1), 0);
        assert_eq!(gpu_ms(333, 0, 4), 1);
        assert_eq!(gpu_ms(1_000, 5, 3), -2);
        assert_eq!(gpu_ms(u64::MAX, i64::MIN, i64::MAX), i64::MAX);
        assert_eq!(gpu_ms(u64::MAX, i64::MAX, i64::MIN), i64::MIN);
    }

    #[test]
    fn conversions_round_down_and_saturate() {
        assert_eq!(Millis(-5).to_micros(), Micros(-5_000));
        assert_eq!([-1_001, -1, 0, 999, 1_000].map(|us| Micros(us).floor_millis().0), [-2, -1, 0, 0, 1]);
        assert_eq!([-1, 0, 999_999, 1_000_000].map(|us| Micros(us).floor_secs()), [-1, 0, 0, 1]);
        assert_eq!([-1, 999, 1_000].map(|ms| Millis(ms).floor_secs()), [-1, 0, 1]);
        assert_eq!([-1, 59_999_999, 60_000_000].map(|us| Micros(us).floor_minutes()), [-1, 0, 1]);
        assert_eq!([-1_500, -999, 999, 1_500].map(|ms| GpuMillis(ms).trunc_gpu_secs()), [-1, 0, 0, 1]);
        assert_eq!(
            (Millis::from_minutes(2), Millis::from_minutes(i64::MAX)),
            (Millis(120_000), Millis(i64::MAX))
        );
        assert_eq!(
            [0.5, 1.0004, 1.0006, -1.0, f64::NAN].map(|gpus| MilliGpus::round_from_gpus(gpus).0),
            [500, 1_000, 1_001, 0, 0]
        );
        assert_eq!((Millis::from_secs(2), Micros::from_secs(-2)), (Millis(2_000), Micros(-2_000_000)));
        assert_eq!(Millis(i64::MAX).to_micros(), Micros(i64::MAX));
        assert_eq!(Millis(i64::MIN).to_micros(), Micros(i64::MIN));
        assert_eq!(Micros::from_secs(i64::MIN), Micros(i64::MIN));
        assert_eq!(MilliGpus::from_gpus(8), MilliGpus(8_000));
        assert_eq!(MilliGpus::from_gpus(u64::MAX), MilliGpus(u64::MAX));
        assert_eq!([0, 500, 1_999].map(|milli| MilliGpus(milli).floor_gpus()), [0, 0, 1]);
        assert_eq!([0, 500, 2_000].map(|milli| MilliGpus(milli).whole_gpus()), [Some(0), None, Some(2)]);
    }

    #[test]
    fn rounding_each_part_would_lose_time() {
        let parts: i64 = (0..4).map(|ms| gpu_ms(333, ms, ms + 1)).sum();
        let cuts: i64 = (0..4).map(|ms| gpu_ms_between(333, 0, ms, ms + 1)).sum();
        assert_eq!((parts, cuts), (0, gpu_ms(333, 0, 4)));
    }

    proptest! {
        #[test]
        fn parts_sum_to_the_whole(
            gpus_milli in 0..100_000_000_u64,
            from_ms in -4_000_000_000_000..4_000_000_000_000_i64,
            steps_ms in prop::collection::vec(0..100_000_000_i64, 1..40),
        ) {
            let (mut at_ms, mut sum) = (from_ms, 0);
            for step_ms in steps_ms {
                let part = gpu_ms_between(gpus_milli, from_ms, at_ms, at_ms + step_ms);
                let exact = i128::from(gpus_milli) * i128::from(step_ms);
                prop_assert!((i128::from(part) * 1_000 - exact).abs() < 1_000, "each part is exact to a GPU millisecond");
                (at_ms, sum) = (at_ms + step_ms, sum + part);
            }
            prop_assert_eq!(sum, gpu_ms(gpus_milli, from_ms, at_ms));
        }
    }
}
