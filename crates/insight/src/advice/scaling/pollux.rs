//! Pollux's throughput model.
//!
//! `T_grad = a + b m` for a local batch of m. `T_sync` is 0 on one GPU, `a_l + b_l (k - 2)` for k
//! GPUs on one node, and `a_n + b_n (k - 2)` over nodes. They overlap: `T = (T_grad^g +
//! T_sync^g)^(1/g)`, from their sum at g = 1 to nearly the larger of them at g = 10.

use argmin::{
    core::{CostFunction, Executor, State},
    solver::neldermead::NelderMead,
};
use serde::{Deserialize, Serialize};

use super::{AdviceError, Point, Size};

const PARAMETERS: usize = 7;
/// Weight of a parameter's distance from its prior, relative to the summed squared errors: little
/// where points exist, all where none does.
const RIDGE: f64 = 1e-4;
/// Restarts of the simplex from where it stopped, because it can stop too early.
const RESTARTS: usize = 4;
const ITERATIONS: u64 = 1_500;
/// Bounds of the overlap exponent.
const OVERLAP: [f64; 2] = [1.0, 10.0];

/// Parameters in seconds; all 0 or more.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Pollux {
    /// Gradient: fixed time per step.
    pub grad_s: f64,
    /// Gradient: time per sample of the local batch.
    pub grad_sample_s: f64,
    /// Synchronisation of two GPUs on a node.
    pub local_s: f64,
    /// For each further GPU.
    pub local_gpu_s: f64,
    /// Synchronisation of two GPUs over nodes.
    pub node_s: f64,
    /// For each further GPU.
    pub node_gpu_s: f64,
    /// Overlap exponent, 1 to 10.
    pub overlap: f64,
}

impl Pollux {
    /// Seconds of a step.
    pub fn step_s(&self, size: Size) -> f64 {
        let grad = self.grad_s + self.grad_sample_s * f64::from(size.local_batch);
        let more = f64::from(size.gpus.saturating_sub(2));
        let sync = match (size.gpus, size.nodes) {
            (0 | 1, _) => return grad,
            (_, 0 | 1) => self.local_s + self.local_gpu_s * more,
            _ => self.node_s + self.node_gpu_s * more,
        };
        // Scaled by the larger term, so that no power overflows.
        let large = grad.max(sync).max(f64::MIN_POSITIVE);
        large
            * ((grad / large).powf(self.overlap) + (sync / large).powf(self.overlap)).powf(1.0 / self.overlap)
    }

    /// Least squares on the logarithm of step times, starting from `start` or from the fastest
    /// step.
    pub(super) fn fit(points: &[Point], start: Option<&Self>) -> Result<Self, AdviceError> {
        let fastest = points.iter().map(|point| point.log_step).fold(f64::INFINITY, f64::min).exp();
        let batch = points.iter().map(|point| f64::from(point.size.local_batch)).fold(1.0, f64::max);
        let scale = Scale { second: fastest, batch };
        // Prior: most of a step computes, some waits, and each GPU adds a little.
        let prior = [0.3f64.ln(), 0.7f64.ln(), 0.1f64.ln(), 0.01f64.ln(), 0.3f64.ln(), 0.02f64.ln(), -1.0];
        let mut best = start.map_or(prior, |start| scale.encode(start));
        for _ in 0..RESTARTS {
            best = descend(Loss { points, prior, scale }, &best)?;
        }
        Ok(scale.decode(&best))
    }
}

/// Units in which parameters are near 1.
#[derive(Debug, Clone, Copy)]
struct Scale {
    second: f64,
    batch: f64,
}

impl Scale {
    fn decode(self, encoded: &[f64]) -> Pollux {
        let seconds = |at: usize| encoded[at].clamp(-30.0, 30.0).exp() * self.second;
        let share = 1.0 / (1.0 + (-encoded[6]).exp());
        Pollux {
            grad_s: seconds(0),
            grad_sample_s: seconds(1) / self.batch,
            local_s: seconds(2),
            local_gpu_s: seconds(3),
            node_s: seconds(4),
            node_gpu_s: seconds(5),
            overlap: OVERLAP[0] + (OVERLAP[1] - OVERLAP[0]) * share,
        }
    }

    fn encode(self, fit: &Pollux) -> [f64; PARAMETERS] {
        let log = |seconds: f64| (seconds / self.second).ln().clamp(-30.0, 30.0);
        let share = ((fit.overlap - OVERLAP[0]) / (OVERLAP[1] - OVERLAP[0])).clamp(1e-6, 1.0 - 1e-6);
        [
            log(fit.grad_s),
            log(fit.grad_sample_s * self.batch),
            log(fit.local_s),
            log(fit.local_gpu_s),
            log(fit.node_s),
            log(fit.node_gpu_s),
            (share / (1.0 - share)).ln(),
        ]
    }
}

struct Loss<'a> {
    points: &'a [Point],
    prior: [f64; PARAMETERS],
    scale: Scale,
}

impl CostFunction for Loss<'_> {
    type Param = Vec<f64>;
    type Output = f64;

    fn cost(&self, encoded: &Vec<f64>) -> Result<f64, argmin::core::Error> {
        let fit = self.scale.decode(encoded);
        let error = |point: &Point| point.weight * (fit.step_s(point.size).ln() - point.log_step).powi(2);
        let far: f64 = encoded.iter().zip(&self.prior).map(|(at, prior)| (at - prior).powi(2)).sum();
        Ok(self.points.iter().map(error).sum::<f64>() + RIDGE * far)
    }
}

fn descend(loss: Loss<'_>, from: &[f64; PARAMETERS]) -> Result<[f64; PARAMETERS], AdviceError> {
    let gave_up =
        |error: argmin::core::Error| AdviceError::Optimiser { what: "the curve", reason: error.to_string() };
    let mut simplex = vec![from.to_vec()];
    for at in 0..PARAMETERS {
        let mut corner = from.to_vec();
        corner[at] += 0.7;
        simplex.push(corner);
    }
    let solver = NelderMead::new(simplex).with_sd_tolerance(1e-10).map_err(gave_up)?;
    let found =
        Executor::new(loss, solver).configure(|state| state.max_iters(ITERATIONS)).run().map_err(gave_up)?;
    let mut best = *from;
    if let Some(found) = found.state().get_best_param() {
        best.copy_from_slice(found);
    }
    Ok(best)
}
