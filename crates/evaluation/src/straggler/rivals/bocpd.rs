//! Bayesian online change point detection (Adams and MacKay 2007) on the job's step time, as
//! Greyhound runs it before it validates.
//!
//! Written out, because the crate `changepoint` (0.15) would bring 60 more (a linear algebra and an
//! optimiser among them).

use std::collections::VecDeque;

use super::frames::{Edges, Frames};
use crate::straggler::method::{Alarm, Method, Target};
use crate::straggler::scene::Message;
use crate::straggler::statistics::mean;

/// One change in 250 steps; run lengths beyond 400 steps are merged.
const HAZARD: f64 = 1.0 / 250.0;
const LONGEST: usize = 400;
/// A change is detected when this much probability lies on runs of at most `YOUNG` steps
/// (Greyhound: 0.9).
const SURE: f64 = 0.9;
const YOUNG: usize = 5;
/// Greyhound's verification: means before and after differ by more than 10 %.
const VERIFIED: f64 = 0.10;

/// Normal-gamma posterior of mean and variance for one run length.
#[derive(Debug, Clone, Copy)]
struct Run {
    mean: f64,
    kappa: f64,
    alpha: f64,
    beta: f64,
    log_p: f64,
}

impl Run {
    /// Log density of the Student's t predictive at x, without constant terms.
    fn predictive(&self, x: f64) -> f64 {
        let scale = self.beta * (self.kappa + 1.0) / (self.alpha * self.kappa);
        let nu = 2.0 * self.alpha;
        let z = (x - self.mean) * (x - self.mean) / scale;
        gamma_step(self.alpha) - 0.5 * (nu * scale).ln() - (nu + 1.0) / 2.0 * (1.0 + z / nu).ln()
    }

    fn with(&self, x: f64) -> Self {
        let kappa = self.kappa + 1.0;
        Self {
            mean: (self.kappa * self.mean + x) / kappa,
            kappa,
            alpha: self.alpha + 0.5,
            beta: self.beta + self.kappa * (x - self.mean).powi(2) / (2.0 * kappa),
            log_p: self.log_p,
        }
    }
}

/// ln gamma(a + 1/2) - ln gamma(a), to 1e-4 from a = 1 on (asymptotic series).
fn gamma_step(a: f64) -> f64 {
    0.5 * a.ln() - 1.0 / (8.0 * a) + 1.0 / (192.0 * a.powi(3))
}

/// Change points of the logarithm of the step time; upward ones alarm. Names no subject.
#[derive(Debug)]
pub struct Bocpd {
    verify: bool,
    frames: Frames,
    runs: Vec<Run>,
    prior: Option<(f64, f64)>,
    first: Vec<f64>,
    recent: VecDeque<f64>,
    edges: Edges,
}

impl Bocpd {
    /// With or without the verification.
    pub fn new(verify: bool) -> Self {
        Self {
            verify,
            frames: Frames::default(),
            runs: Vec::new(),
            prior: None,
            first: Vec::new(),
            recent: VecDeque::new(),
            edges: Edges::default(),
        }
    }

    fn fresh(&self, log_p: f64) -> Option<Run> {
        let (mean, variance) = self.prior?;
        Some(Run { mean, kappa: 0.1, alpha: 1.0, beta: variance, log_p })
    }

    /// Takes one step. Returns whether a change is detected.
    fn step(&mut self, x: f64) -> Option<bool> {
        if self.prior.is_none() {
            self.first.push(x);
            if self.first.len() < 20 {
                return None;
            }
            let middle = mean(&self.first)?;
            let variance =
                self.first.iter().map(|x| (x - middle).powi(2)).sum::<f64>() / self.first.len() as f64;
            self.prior = Some((middle, variance.max(1e-6)));
            self.runs = vec![self.fresh(0.0)?];
        }
        let joint_log_p: Vec<f64> = self.runs.iter().map(|run| run.log_p + run.predictive(x)).collect();
        let change = log_sum(&joint_log_p) + HAZARD.ln();
        let mut runs = vec![self.fresh(change)?];
        runs.extend(
            self.runs
                .iter()
                .zip(&joint_log_p)
                .map(|(run, log_p)| Run { log_p: log_p + (1.0 - HAZARD).ln(), ..run.with(x) }),
        );
        if runs.len() > LONGEST
            && let Some(oldest) = runs.pop()
            && let Some(last) = runs.last_mut()
        {
            last.log_p = log_sum(&[last.log_p, oldest.log_p]);
        }
        let all = log_sum(&runs.iter().map(|run| run.log_p).collect::<Vec<_>>());
        runs.iter_mut().for_each(|run| run.log_p -= all);
        self.runs = runs;
        let young: f64 = self.runs.iter().take(YOUNG + 1).map(|run| run.log_p.exp()).sum();
        Some(young > SURE && self.runs.len() > 4 * YOUNG)
    }
}

fn log_sum(logs: &[f64]) -> f64 {
    let top = logs.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    top + logs.iter().map(|log| (log - top).exp()).sum::<f64>().ln()
}

impl Method for Bocpd {
    fn name(&self) -> &'static str {
        if self.verify { "BOCPD, verified 10 %, job" } else { "BOCPD, job" }
    }

    fn observe(&mut self, message: &Message) {
        if self.frames.observe(message) {
            *self = Self {
                frames: std::mem::take(&mut self.frames),
                edges: std::mem::take(&mut self.edges),
                ..Self::new(self.verify)
            };
            self.edges.reset();
        }
    }

    fn advance(&mut self, watermark_us: i64) {
        while let Some(frame) = self.frames.next(watermark_us) {
            let Some(changed) = self.step(frame.duration_s.ln()) else { continue };
            self.recent.push_back(frame.duration_s);
            if self.recent.len() > 4 * YOUNG {
                self.recent.pop_front();
            }
            let recent: Vec<f64> = self.recent.iter().copied().collect();
            let split = recent.len().saturating_sub(YOUNG);
            let (before, after) = (mean(&recent[..split]), mean(&recent[split..]));
            let grown = before.zip(after).is_some_and(|(before, after)| {
                after > before * if self.verify { 1.0 + VERIFIED } else { 1.0 }
            });
            self.edges.set(0, changed && grown, Target::Job, frame.end_us);
        }
    }

    fn take(&mut self) -> Vec<Alarm> {
        self.edges.take()
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn gamma_step_is_near_the_true_one() {
        // ln gamma(1.5) - ln gamma(1) and ln gamma(10.5) - ln gamma(10).
        assert!((super::gamma_step(1.0) + 0.120_782).abs() < 2e-3);
        assert!((super::gamma_step(10.0) - 1.138_797).abs() < 1e-4);
    }
}
