//! Scaling curves: speed of a job by number of GPUs, measured or by Amdahl's law.

use tidegate_autopilot::state::{CurvePoint, ScalingCurve};

const ONE_PPM: f64 = 1e6;

/// Amdahl's law, `x(w) = w / (1 + a (w - 1))`, at 1, 2, 4 ... `max_gpus` GPUs; `serial_ppm` is
/// `a` in ppm.
pub fn amdahl(serial_ppm: u32, max_gpus: u32) -> ScalingCurve {
    let max_gpus = max_gpus.max(1);
    let mut sizes: Vec<u32> = std::iter::successors(Some(1u32), |g| g.checked_mul(2)).collect();
    sizes.retain(|gpus| *gpus < max_gpus);
    sizes.push(max_gpus);
    let point = |gpus: u32| {
        let divisor = 1_000_000 + u128::from(serial_ppm) * u128::from(gpus - 1);
        let rate_ppm = (u128::from(gpus) * 1_000_000_000_000 / divisor) as u64;
        CurvePoint { gpus, rate_ppm }
    };
    ScalingCurve::new(sizes.into_iter().map(point).collect()).expect("sizes rise from 1")
}

/// A curve through measured throughputs: GPUs, rising, and work per time in any unit.
///
/// Speeds are relative to one GPU of the smallest size. Where a larger size was slower, the speed
/// of the smaller one is kept: a job may leave GPUs idle. Beyond the largest size the curve
/// continues at doubled sizes up to `max_gpus` with the log-log slope of the last two sizes,
/// clamped to 0..=1. That part is an assumption, not a measurement. `None` if there are fewer than
/// two sizes, they do not rise, or a throughput is not above 0.
pub fn measured(throughputs: &[(u32, f64)], max_gpus: u32) -> Option<ScalingCurve> {
    let usable = |(gpus, speed): &(u32, f64)| *gpus > 0 && speed.is_finite() && *speed > 0.0;
    let first = throughputs.first()?;
    if !throughputs.iter().all(usable) || throughputs.windows(2).any(|pair| pair[0].0 >= pair[1].0) {
        return None;
    }
    let mut points = throughputs.to_vec();
    for i in 1..points.len() {
        points[i].1 = points[i].1.max(points[i - 1].1);
    }
    let [.., before, last] = points[..] else { return None };
    let of_one = first.1 / f64::from(first.0);
    let slope = ((last.1 / before.1).ln() / (f64::from(last.0) / f64::from(before.0)).ln()).clamp(0.0, 1.0);
    while let Some((gpus, _)) = points.last().copied().filter(|(gpus, _)| *gpus < max_gpus) {
        let next = gpus.saturating_mul(2).min(max_gpus);
        points.push((next, last.1 * (f64::from(next) / f64::from(last.0)).powf(slope)));
    }
    let point = |(gpus, speed): (u32, f64)| CurvePoint { gpus, rate_ppm: (speed / of_one * ONE_PPM) as u64 };
    ScalingCurve::new(points.into_iter().map(point).collect()).ok()
}

/// Speed on `gpus` GPUs relative to that on `asked` GPUs, ppm.
pub(crate) fn relative_ppm(curve: &ScalingCurve, gpus: u32, asked: u32) -> u32 {
    let (now, then) = (u128::from(curve.rate_ppm(gpus)), u128::from(curve.rate_ppm(asked).max(1)));
    (now * 1_000_000 / then) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amdahl_at_known_sizes() {
        // a = 0.1: x(8) = 8 / 1.7.
        let curve = amdahl(100_000, 8);
        assert_eq!(curve.rate_ppm(1), 1_000_000);
        assert_eq!(curve.rate_ppm(8), 4_705_882);
        assert_eq!(relative_ppm(&curve, 8, 1), 4_705_882);
        assert_eq!(relative_ppm(&curve, 4, 8), 653_846);
    }

    #[test]
    fn a_measured_curve_goes_through_what_was_measured_and_on_with_its_last_slope() {
        // From 2 to 4 GPUs 1.5 times as fast: the slope is log2 1.5, so 8 GPUs are 1.5 times as
        // fast again.
        let curve = measured(&[(1, 50.0), (2, 80.0), (4, 120.0)], 8).unwrap();
        assert_eq!([1, 2, 4].map(|gpus| curve.rate_ppm(gpus)), [1_000_000, 1_600_000, 2_400_000]);
        assert!(curve.rate_ppm(8).abs_diff(3_600_000) <= 1, "{}", curve.rate_ppm(8));
        // What got slower stays as it was, what got faster than proportional goes on in proportion.
        assert_eq!(measured(&[(4, 8.0), (8, 6.0)], 16).unwrap().rate_ppm(16), 4_000_000);
        assert_eq!(measured(&[(1, 1.0), (2, 3.0)], 4).unwrap().rate_ppm(4), 6_000_000);
        for wrong in
            [&[(1, 1.0)][..], &[(1, 1.0), (2, f64::NAN)], &[(1, 1.0), (1, 2.0)], &[(1, 0.0), (2, 1.0)]]
        {
            assert_eq!(measured(wrong, 8), None, "{wrong:?}");
        }
    }
}
