//! Order statistics and intervals.

/// Median; the list is reordered. `None` for an empty one.
pub(crate) fn median(values: &mut [f64]) -> Option<f64> {
    if values.is_empty() {
        return None;
    }
    let middle = values.len() / 2;
    let (below, &mut upper, _) = values.select_nth_unstable_by(middle, f64::total_cmp);
    if !below.is_empty() && below.len() == middle && values.len().is_multiple_of(2) {
        let lower = values[..middle].iter().copied().fold(f64::NEG_INFINITY, f64::max);
        return Some((lower + upper) / 2.0);
    }
    Some(upper)
}

/// Quantile by the nearest rank of a sorted list.
pub(crate) fn quantile(sorted: &[f64], q: f64) -> Option<f64> {
    if sorted.is_empty() {
        return None;
    }
    let rank = (q * sorted.len() as f64).ceil().max(1.0) as usize - 1;
    sorted.get(rank.min(sorted.len() - 1)).copied()
}

/// Noise of logarithmic series, one per rank: the median over ranks of 1.4826 times the median
/// absolute deviation.
pub(crate) fn peer_noise(series: &mut [Vec<f64>]) -> f64 {
    let mut all: Vec<f64> = series
        .iter_mut()
        .filter_map(|values| {
            let middle = median(values)?;
            values.iter_mut().for_each(|value| *value = (*value - middle).abs());
            median(values)
        })
        .collect();
    1.4826 * median(&mut all).unwrap_or(f64::NAN)
}

/// Mean; `None` for an empty list.
pub(crate) fn mean(values: &[f64]) -> Option<f64> {
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
}

/// Wilson's 95 % interval of a share.
pub(crate) fn wilson(hits: u64, of: u64) -> Option<(f64, f64)> {
    if of == 0 {
        return None;
    }
    let (n, p, z) = (of as f64, hits as f64 / of as f64, 1.959_964_f64);
    let centre = p + z * z / (2.0 * n);
    let half = z * (p * (1.0 - p) / n + z * z / (4.0 * n * n)).sqrt();
    let scale = 1.0 + z * z / n;
    Some((((centre - half) / scale).max(0.0), ((centre + half) / scale).min(1.0)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_quantiles_and_wilson() {
        assert_eq!(median(&mut []), None);
        assert_eq!(median(&mut [3.0]), Some(3.0));
        assert_eq!(median(&mut [4.0, 1.0, 3.0, 2.0]), Some(2.5));
        assert_eq!(median(&mut [5.0, 1.0, 3.0]), Some(3.0));
        let sorted: Vec<f64> = (1..=100).map(f64::from).collect();
        assert_eq!((quantile(&sorted, 0.5), quantile(&sorted, 0.95)), (Some(50.0), Some(95.0)));
        // 93 of 98, from the reference run of the prototype: 0.89 to 0.98.
        let (low, high) = wilson(93, 98).unwrap();
        assert!((low - 0.886).abs() < 0.002 && (high - 0.978).abs() < 0.002, "{low} {high}");
        assert_eq!(wilson(0, 0), None);
    }
}
