//! Fitted scaling curve with its uncertainty.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::{AdviceError, Amdahl, Observations, Point, Pollux, Size, weighted};

/// Normal quantile of 90 %, for intervals from 10 % to 90 %.
const Z: f64 = 1.281_551_6;
/// Smallest relative error of a fit at sizes seen.
const FLOOR: f64 = 0.02;
/// Smallest error per doubling beyond the sizes seen, as a logarithm: extrapolation is not
/// interpolation.
const BEYOND: f64 = 0.05;

/// The form that was fitted.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Form {
    /// Pollux's model: at least three numbers of GPUs were seen, and it predicted the larger ones
    /// best from the smaller.
    Pollux(Pollux),
    /// Amdahl's.
    Amdahl(Amdahl),
}

/// An estimate with the interval from its 10 % to its 90 % quantile.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Estimate {
    /// Expected value.
    pub value: f64,
    /// 10 % quantile.
    pub low: f64,
    /// 90 % quantile.
    pub high: f64,
}

/// Throughput of a job family by size.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Curve {
    form: Form,
    /// Fits without one placement (GPUs and nodes) each, for the jackknife.
    without: Vec<Form>,
    /// Standard deviation of the logarithm of steps around the fit.
    residual: f64,
    /// Error of the form per doubling, as a logarithm.
    beyond: f64,
    /// Most GPUs seen.
    most_gpus: u32,
    /// Whether multi-GPU placements on one node, and over nodes, were seen.
    seen: [bool; 2],
}

impl Form {
    fn step_s(&self, size: Size) -> f64 {
        match self {
            Self::Pollux(fit) => fit.step_s(size),
            Self::Amdahl(fit) => fit.step_s(size),
        }
    }

    fn refit(&self, points: &[Point]) -> Result<Self, AdviceError> {
        match self {
            Self::Pollux(fit) => Pollux::fit(points, Some(fit)).map(Self::Pollux),
            Self::Amdahl(_) => Ok(Self::Amdahl(Amdahl::fit(points))),
        }
    }

    /// Root mean square of the error in the logarithm of a step.
    fn error(&self, points: &[Point]) -> f64 {
        let squares: f64 =
            points.iter().map(|point| (self.step_s(point.size).ln() - point.log_step).powi(2)).sum();
        (squares / points.len().max(1) as f64).sqrt()
    }

    /// Chooses the form, and its error on the larger half of the sizes when fitted on the smaller,
    /// which is how it will be used.
    fn choose(points: &[Point]) -> Result<(Self, f64), AdviceError> {
        let gpus: BTreeSet<u32> = points.iter().map(|point| point.size.gpus).collect();
        let amdahl = Self::Amdahl(Amdahl::fit(points));
        // Pollux has four parameters for one local batch on one node; with fewer than three sizes
        // only Amdahl's two can be fitted.
        if gpus.len() < 3 {
            return Ok((amdahl, BEYOND));
        }
        let pollux = Self::Pollux(Pollux::fit(points, None)?);
        let most = gpus.iter().next_back().copied().unwrap_or(1);
        let (small, large): (Vec<Point>, Vec<Point>) =
            points.iter().partition(|point| point.size.gpus <= most / 2);
        let sizes: BTreeSet<u32> = small.iter().map(|point| point.size.gpus).collect();
        if sizes.len() < 3 {
            return Ok((pollux, BEYOND));
        }
        let small = weighted(small);
        let errors = [pollux.refit(&small)?.error(&large), amdahl.refit(&small)?.error(&large)];
        let (form, error) = if errors[1] < errors[0] { (amdahl, errors[1]) } else { (pollux, errors[0]) };
        Ok((form, error.max(BEYOND)))
    }
}

impl Curve {
    /// Fits the observations; deterministic.
    ///
    /// # Errors
    /// Nothing observed; an optimiser that gives up.
    pub fn fit(observed: &Observations) -> Result<Self, AdviceError> {
        let points = observed.points();
        if points.is_empty() {
            return Err(AdviceError::Empty { what: "the observations" });
        }
        let (form, beyond) = Form::choose(&points)?;
        let placements: BTreeSet<(u32, u32)> =
            points.iter().map(|point| (point.size.gpus, point.size.nodes)).collect();
        let mut without = Vec::new();
        for &(gpus, nodes) in placements.iter().filter(|_| placements.len() > 1) {
            let kept: Vec<Point> = points
                .iter()
                .filter(|point| (point.size.gpus, point.size.nodes) != (gpus, nodes))
                .copied()
                .collect();
            without.push(form.refit(&weighted(kept))?);
        }
        Ok(Self {
            form,
            without,
            residual: form.error(&points).max(FLOOR),
            beyond,
            most_gpus: points.iter().map(|point| point.size.gpus).max().unwrap_or(1),
            seen: [false, true]
                .map(|over| points.iter().any(|point| point.size.gpus > 1 && (point.size.nodes > 1) == over)),
        })
    }

    /// The fitted form.
    pub fn form(&self) -> &Form {
        &self.form
    }

    /// Samples a second at `size`.
    ///
    /// # Errors
    /// A size without GPUs, batch or a sensible number of nodes.
    pub fn throughput(&self, size: Size) -> Result<Estimate, AdviceError> {
        size.check()?;
        let value = samples_s(&self.form, size);
        Ok(estimate(value, self.spread(size, |form| samples_s(form, size).ln(), value.ln())))
    }

    /// Throughput that `more` GPUs, over `nodes` nodes in all, add at `size`, samples a second; can
    /// be negative.
    ///
    /// # Errors
    /// As [`Self::throughput`], of either size.
    pub fn marginal(&self, size: Size, more: u32, nodes: u32) -> Result<Estimate, AdviceError> {
        let larger = Size { gpus: size.gpus.saturating_add(more), nodes, ..size }.check()?;
        size.check()?;
        let gain = |form: &Form| samples_s(form, larger) / samples_s(form, size);
        let (now, ratio) = (samples_s(&self.form, size), gain(&self.form));
        // The level is common to both sizes, so only their ratio is uncertain.
        let spread = self.spread(larger, |form| gain(form).ln(), ratio.ln());
        let estimate = estimate(ratio, spread);
        let added = |ratio: f64| now * (ratio - 1.0);
        Ok(Estimate { value: added(estimate.value), low: added(estimate.low), high: added(estimate.high) })
    }

    /// Standard deviation of the logarithm of an estimate, from the jackknife, the residual, and
    /// the distance from the sizes seen.
    fn spread(&self, size: Size, of: impl Fn(&Form) -> f64, at: f64) -> f64 {
        let n = self.without.len() as f64;
        let jackknife: f64 = self.without.iter().map(|form| (of(form) - at).powi(2)).sum::<f64>()
            * (n - 1.0).max(0.0)
            / n.max(1.0);
        let doublings = (f64::from(size.gpus) / f64::from(self.most_gpus)).log2().max(0.0);
        // A kind of link never seen counts as two doublings.
        let strange = if size.gpus > 1 && !self.seen[usize::from(size.nodes > 1)] { 2.0 } else { 0.0 };
        let alone = if self.without.is_empty() && size.gpus > 1 { 2.0 } else { 0.0 };
        let beyond = self.beyond * (doublings + strange + alone);
        (jackknife + self.residual.powi(2) + beyond.powi(2)).sqrt()
    }
}

fn samples_s(form: &Form, size: Size) -> f64 {
    f64::from(size.gpus) * f64::from(size.local_batch) / form.step_s(size)
}

fn estimate(value: f64, spread: f64) -> Estimate {
    let factor = (Z * spread).exp();
    Estimate { value, low: value / factor, high: value * factor }
}
