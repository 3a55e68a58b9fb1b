//! Scaling: how much faster a job runs on more GPUs, learnt from its step times.
//!
//! [`Observations`] keep one cell per size of a job family. [`Curve::fit`] fits Pollux's model
//! (OSDI '21) where there are enough cells and Amdahl's law otherwise, and estimates its error by
//! leaving out each size in turn. [`FamilyCurve`] decides when a family is fitted anew.

mod amdahl;
mod curve;
mod family;
mod pollux;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{AdviceError, error::parameter};
pub use amdahl::Amdahl;
pub use curve::{Curve, Estimate, Form};
pub use family::{FamilyCurve, FamilyPoint, StepWindow};
pub use pollux::Pollux;

/// Size of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Size {
    /// GPUs, one replica each.
    pub gpus: u32,
    /// Nodes they are spread over: at least 1, at most `gpus`.
    pub nodes: u32,
    /// Samples per GPU and step.
    pub local_batch: u32,
}

impl Size {
    pub(super) fn check(self) -> Result<Self, AdviceError> {
        parameter("GPUs of a size", f64::from(self.gpus), "1 or more", |gpus| gpus >= 1.0)?;
        parameter("the local batch", f64::from(self.local_batch), "1 or more", |batch| batch >= 1.0)?;
        let range = "at least 1 and at most the GPUs";
        parameter("nodes of a size", f64::from(self.nodes), range, |nodes| {
            nodes >= 1.0 && nodes <= f64::from(self.gpus)
        })?;
        Ok(self)
    }
}

/// Steps seen at one size.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
struct Cell {
    /// Steps behind the mean; faded ones count in part.
    steps: f64,
    /// Mean of the logarithm of step seconds; single slow steps move it less than the mean.
    log_mean: f64,
}

/// Steps of one job family by size. Memory grows with sizes, not with steps.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Observations {
    cells: BTreeMap<Size, Cell>,
}

/// A size and the duration of its steps.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Point {
    size: Size,
    log_step: f64,
    /// Square of the GPUs over the most seen. Predictions are made beyond the largest size, and no
    /// form holds at all sizes.
    weight: f64,
}

impl Observations {
    /// Adds `steps` steps at `size` of `step_s` seconds each.
    ///
    /// # Errors
    /// A size without GPUs, batch or a sensible number of nodes; a time that is not above 0; no
    /// steps.
    pub fn add(&mut self, size: Size, step_s: f64, steps: u64) -> Result<(), AdviceError> {
        self.add_fading(size, step_s, steps, 1.0)
    }

    /// As [`add`](Self::add), with earlier observations of this size weighed by `keep` (0 to 1).
    ///
    /// # Errors
    /// As [`add`](Self::add), and of a `keep` outside its range.
    pub fn add_fading(&mut self, size: Size, step_s: f64, steps: u64, keep: f64) -> Result<(), AdviceError> {
        size.check()?;
        parameter("a step in seconds", step_s, "above 0 and at most a year", |step| {
            step > 0.0 && step < 3.2e7
        })?;
        parameter("the number of steps", steps as f64, "1 or more", |steps| steps >= 1.0)?;
        parameter("the share that is kept", keep, "0 to 1", |keep| (0.0..=1.0).contains(&keep))?;
        let cell = self.cells.entry(size).or_insert(Cell { steps: 0.0, log_mean: 0.0 });
        cell.steps = cell.steps * keep + steps as f64;
        cell.log_mean += (step_s.ln() - cell.log_mean) * (steps as f64 / cell.steps);
        Ok(())
    }

    /// Sizes seen.
    pub fn sizes(&self) -> impl Iterator<Item = Size> {
        self.cells.keys().copied()
    }

    fn points(&self) -> Vec<Point> {
        let points =
            self.cells.iter().map(|(&size, cell)| Point { size, log_step: cell.log_mean, weight: 1.0 });
        weighted(points.collect())
    }
}

/// Weighs points by their size relative to the largest.
fn weighted(mut points: Vec<Point>) -> Vec<Point> {
    let most = points.iter().map(|point| point.size.gpus).max().unwrap_or(1);
    for point in &mut points {
        point.weight = (f64::from(point.size.gpus) / f64::from(most)).powi(2);
    }
    points
}

#[cfg(test)]
mod tests;
