//! Amdahl's law, for families seen at few sizes: `x(k) = x(1) k / (1 + s (k - 1))` with a serial
//! share s.

use serde::{Deserialize, Serialize};

use super::{Point, Size};

/// Prior of the serial share (half of linear speed-up at 21 GPUs), and its weight.
const PRIOR_SHARE: f64 = 0.05;
const PRIOR_WEIGHT: f64 = 1e-3;
/// Shares tried. The fit has one parameter, so a grid search is safe.
const GRID: u32 = 1_000;

/// Amdahl's law for one local batch: with k GPUs a step of k batches takes `(1 + s (k - 1))` times
/// that of one GPU.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Amdahl {
    /// Seconds per sample on one GPU.
    pub sample_s: f64,
    /// Serial share, 0 to 1.
    pub serial: f64,
}

impl Amdahl {
    /// Seconds of a step.
    pub fn step_s(&self, size: Size) -> f64 {
        let more = f64::from(size.gpus.saturating_sub(1));
        self.sample_s * f64::from(size.local_batch) * (1.0 + self.serial * more)
    }

    /// Least squares on the logarithm of step times. `points` is not empty.
    pub(super) fn fit(points: &[Point]) -> Self {
        let mut best = (f64::INFINITY, Self { sample_s: 1.0, serial: PRIOR_SHARE });
        for k in 0..=GRID {
            // Small shares matter most for many GPUs, so the grid is denser there.
            let serial = (f64::from(k) / f64::from(GRID)).powi(3);
            let shape = Self { sample_s: 1.0, serial };
            let gaps: Vec<f64> =
                points.iter().map(|point| point.log_step - shape.step_s(point.size).ln()).collect();
            let weights: f64 = points.iter().map(|point| point.weight).sum();
            let level = gaps.iter().zip(points).map(|(gap, point)| point.weight * gap).sum::<f64>() / weights;
            let error: f64 =
                gaps.iter().zip(points).map(|(gap, point)| point.weight * (gap - level).powi(2)).sum();
            let far = ((serial + 1e-3) / (PRIOR_SHARE + 1e-3)).ln().powi(2);
            let loss = error + PRIOR_WEIGHT * far;
            if loss < best.0 {
                best = (loss, Self { sample_s: level.exp(), serial });
            }
        }
        best.1
    }
}
