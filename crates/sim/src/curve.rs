//! How fast a job goes with how many GPUs, where no measured curve is at hand.

use tidegate_autopilot::state::{CurvePoint, ScalingCurve};

/// The law of Amdahl, `x(w) = w / (1 + a (w - 1))`, at 1, 2, 4 ... `max_gpus` GPUs; `serial_ppm` is `a` in ppm.
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

/// Speed with `gpus` GPUs against that with `asked` GPUs, in ppm.
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
}
