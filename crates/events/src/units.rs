//! GPU time as an integer.

/// One whole GPU in thousandths.
pub const GPU_MILLI: u64 = 1_000;

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
