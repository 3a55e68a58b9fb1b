//! How fast a job goes with how many GPUs.

use crate::SimError;

/// Speed of an elastic job by its number of GPUs, in millionths of the speed with one GPU.
///
/// Between two points the speed is interpolated in a straight line, beyond the last one it stays: more GPUs than were ever
/// measured are worth nothing more. Below the first point it goes in a straight line to nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Curve {
    points: Vec<(u32, u64)>,
}

impl Curve {
    /// A curve through measured points `(GPUs, speed in ppm of one GPU)`.
    ///
    /// # Errors
    /// [`SimError::Curve`] if there is no point, GPUs do not grow, or more GPUs are slower.
    pub fn new(points: Vec<(u32, u64)>) -> Result<Self, SimError> {
        let first_is_wrong = points.first().is_none_or(|p| p.0 == 0 || p.1 == 0);
        if first_is_wrong || points.windows(2).any(|w| w[0].0 >= w[1].0 || w[0].1 > w[1].1) {
            return Err(SimError::Curve { points });
        }
        Ok(Self { points })
    }

    /// The law of Amdahl, `x(w) = w / (1 + a (w - 1))`, at 1, 2, 4 ... `max_gpus` GPUs; `serial_ppm` is `a` in ppm.
    pub fn amdahl(serial_ppm: u32, max_gpus: u32) -> Self {
        let speed = |gpus: u32| {
            let divisor = 1_000_000 + u64::from(serial_ppm) * u64::from(gpus - 1);
            u64::from(gpus) * 1_000_000_000_000 / divisor
        };
        let mut points: Vec<(u32, u64)> = Vec::new();
        let mut gpus = 1;
        while gpus < max_gpus {
            points.push((gpus, speed(gpus)));
            gpus *= 2;
        }
        points.push((max_gpus.max(1), speed(max_gpus.max(1))));
        Self { points }
    }

    /// Speed with `gpus` GPUs, ppm of one GPU.
    pub fn speed_ppm(&self, gpus: u32) -> u64 {
        let mut below = (0, 0);
        for &(at, speed) in &self.points {
            if gpus <= at {
                let span = u64::from(at - below.0);
                return below.1 + (speed - below.1) * u64::from(gpus - below.0) / span;
            }
            below = (at, speed);
        }
        below.1
    }

    /// Speed with `gpus` GPUs against that with `asked` GPUs, in ppm.
    pub fn rate_ppm(&self, gpus: u32, asked: u32) -> u32 {
        (self.speed_ppm(gpus) * 1_000_000 / self.speed_ppm(asked).max(1)) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_curve_is_a_line_between_points_and_flat_behind_them() {
        let curve = Curve::new(vec![(2, 2_000_000), (4, 3_000_000)]).unwrap();
        let speeds: Vec<u64> = (0..6).map(|gpus| curve.speed_ppm(gpus)).collect();
        assert_eq!(speeds, [0, 1_000_000, 2_000_000, 2_500_000, 3_000_000, 3_000_000]);
        assert_eq!(curve.rate_ppm(4, 2), 1_500_000);
    }

    #[test]
    fn amdahl_at_known_sizes() {
        // a = 0.1: x(8) = 8 / 1.7.
        let curve = Curve::amdahl(100_000, 8);
        assert_eq!(curve.speed_ppm(1), 1_000_000);
        assert_eq!(curve.speed_ppm(8), 4_705_882);
    }

    #[test]
    fn a_curve_that_falls_is_refused() {
        assert!(Curve::new(vec![(1, 1_000_000), (2, 900_000)]).is_err());
        assert!(Curve::new(vec![]).is_err());
    }
}
