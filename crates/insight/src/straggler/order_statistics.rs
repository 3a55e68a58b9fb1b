//! Order statistics over scratch slices. The slices are reordered; values must not be NaN.

/// Median; of an even count the mean of the middle two. NaN when empty.
pub(super) fn median(values: &mut [f32]) -> f32 {
    let half = values.len() / 2;
    if values.is_empty() {
        return f32::NAN;
    }
    let even = values.len().is_multiple_of(2);
    let (below, &mut upper, _) = values.select_nth_unstable_by(half, f32::total_cmp);
    if even { 0.5 * (upper + below.iter().copied().fold(f32::NEG_INFINITY, f32::max)) } else { upper }
}

/// Median and median absolute deviation from it (not scaled).
pub(super) fn median_and_deviation(values: &mut [f32]) -> (f32, f32) {
    let middle = median(values);
    for value in values.iter_mut() {
        *value = (*value - middle).abs();
    }
    (middle, median(values))
}

/// Value below which a share `q` of the values lies, without interpolation. NaN when empty.
pub(super) fn quantile(values: &mut [f32], q: f64) -> f32 {
    if values.is_empty() {
        return f32::NAN;
    }
    let at = ((values.len() - 1) as f64 * q.clamp(0.0, 1.0)) as usize;
    *values.select_nth_unstable_by(at, f32::total_cmp).1
}

/// Median of times; the upper one of an even count. `None` when empty.
pub(super) fn median_time(values: &mut [i64]) -> Option<i64> {
    let half = values.len() / 2;
    (!values.is_empty()).then(|| *values.select_nth_unstable(half).1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn middle_values() {
        assert_eq!(median(&mut [3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&mut [4.0, 1.0, 2.0, 3.0]), 2.5);
        assert!(median(&mut []).is_nan());
        assert_eq!(median_and_deviation(&mut [1.0, 2.0, 4.0, 8.0, 100.0]), (4.0, 3.0));
        assert_eq!(quantile(&mut [5.0, 1.0, 2.0, 3.0, 4.0], 0.25), 2.0);
        assert_eq!(median_time(&mut [3, 1, 2]), Some(2));
        assert_eq!(median_time(&mut []), None);
    }
}
