//! Scaling curves: a job's throughput by number of GPUs, in integers.

use serde::{Deserialize, Serialize};

/// Throughput at one size.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct CurvePoint {
    /// GPUs.
    pub gpus: u32,
    /// Useful work at this size, millionths of one GPU's.
    pub rate_ppm: u64,
}

/// Throughput by size: proportional below the first point, linear between points, flat beyond the
/// last.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Vec<CurvePoint>", into = "Vec<CurvePoint>")]
pub struct ScalingCurve {
    points: Vec<CurvePoint>,
}

/// Points that do not form a curve.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "a scaling curve needs points of 1 GPU or more with rising GPUs; point {at} is not: give each size once, smallest first"
)]
pub struct CurveError {
    /// Index of the first bad point; 0 if there are no points.
    pub at: usize,
}

impl ScalingCurve {
    /// Builds a curve through `points`.
    ///
    /// # Errors
    /// No points, a size of 0, or sizes that do not rise.
    pub fn new(points: Vec<CurvePoint>) -> Result<Self, CurveError> {
        if points.first().is_none_or(|point| point.gpus == 0) {
            return Err(CurveError { at: 0 });
        }
        match points.windows(2).position(|pair| pair[1].gpus <= pair[0].gpus) {
            Some(at) => Err(CurveError { at: at + 1 }),
            None => Ok(Self { points }),
        }
    }

    /// Points, smallest size first.
    pub fn points(&self) -> &[CurvePoint] {
        &self.points
    }

    /// Useful work with `gpus` GPUs, millionths of one GPU's.
    pub fn rate_ppm(&self, gpus: u32) -> u64 {
        let after = self.points.partition_point(|point| point.gpus < gpus);
        let Some(right) = self.points.get(after) else {
            return self.points.last().map_or(0, |point| point.rate_ppm);
        };
        let left = match after.checked_sub(1) {
            Some(before) => self.points[before],
            None => CurvePoint { gpus: 0, rate_ppm: 0 },
        };
        let span = u128::from(right.gpus - left.gpus);
        let along = u128::from(gpus - left.gpus);
        let (low, high) = (u128::from(left.rate_ppm), u128::from(right.rate_ppm));
        // A weighted mean of two u64 fits in one.
        ((low * (span - along) + high * along) / span) as u64
    }
}

impl TryFrom<Vec<CurvePoint>> for ScalingCurve {
    type Error = CurveError;

    fn try_from(points: Vec<CurvePoint>) -> Result<Self, CurveError> {
        Self::new(points)
    }
}

impl From<ScalingCurve> for Vec<CurvePoint> {
    fn from(curve: ScalingCurve) -> Self {
        curve.points
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn curve(points: &[(u32, u64)]) -> Result<ScalingCurve, CurveError> {
        ScalingCurve::new(points.iter().map(|&(gpus, rate_ppm)| CurvePoint { gpus, rate_ppm }).collect())
    }

    #[test]
    fn rates_are_linear_between_points_and_flat_beyond() {
        let curve = curve(&[(2, 1_800_000), (4, 3_000_000)]).unwrap();
        let rates = [0, 1, 2, 3, 4, 9].map(|gpus| curve.rate_ppm(gpus));
        assert_eq!(rates, [0, 900_000, 1_800_000, 2_400_000, 3_000_000, 3_000_000]);
    }

    #[test]
    fn points_that_do_not_rise_are_refused_by_place() {
        assert_eq!(curve(&[]).unwrap_err().at, 0);
        assert_eq!(curve(&[(0, 1)]).unwrap_err().at, 0);
        assert_eq!(curve(&[(1, 1), (4, 2), (4, 3)]).unwrap_err().at, 2);
        let read =
            serde_json::from_str::<ScalingCurve>(r#"[{"gpus":4,"rate_ppm":1},{"gpus":2,"rate_ppm":1}]"#);
        assert!(read.unwrap_err().to_string().contains("point 1"));
    }
}
