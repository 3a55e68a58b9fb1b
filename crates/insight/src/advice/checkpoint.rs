//! Checkpoint interval: how often a job should save its state.
//!
//! With `t` seconds of work, a save of `d` seconds, failures at rate `l`, and a restart of `r`
//! seconds that may fail too, the expected time of a segment is `e^{lr} (e^{l(t+d)} - 1) / l` (Daly
//! 2006). So the wasted share of time is `1 - t l e^{-lr} / (e^{l(t+d)} - 1)`. Young's `sqrt(2 d /
//! l)` and Daly's series are its limits for small `l d`. The optimum here is of the exact form,
//! which also holds when a save takes a good part of the time between failures. The rate has a
//! posterior, and the waste is averaged over it.

use argmin::{
    core::{CostFunction, Executor, State},
    solver::brent::BrentOpt,
};
use serde::Serialize;
use statrs::distribution::{ContinuousCDF, Gamma, Normal};

use super::{AdviceError, error::parameter};

/// Quantiles of the posterior over which the waste is averaged.
const RATES: usize = 64;
/// Bounds of intervals: the 10 % and 90 % quantiles.
const INTERVAL: [f64; 2] = [0.1, 0.9];
/// Intervals tried before the best is refined, evenly spaced in the logarithm.
const GRID: u32 = 128;

/// Failure rate of a node class, a Gamma over failures per node-hour: a prior plus counts.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct FailurePosterior {
    shape: f64,
    node_hours: f64,
}

impl FailurePosterior {
    /// Published fleets: 4 failures per 1,000 node-days (RSC-1 6.5, RSC-2 2.3, Llama 3 3.8), worth
    /// half a failure, so that a class's own counts soon outweigh it.
    pub fn published() -> Self {
        let shape = 0.5;
        Self { shape, node_hours: shape / (4.0 / 24_000.0) }
    }

    /// The posterior after `failures` more in `node_hours` more (Gamma and Poisson are conjugate).
    ///
    /// # Errors
    /// Node-hours that are negative or not finite.
    pub fn update(self, failures: u64, node_hours: f64) -> Result<Self, AdviceError> {
        parameter("node-hours", node_hours, "0 or more", |hours| hours >= 0.0)?;
        Ok(Self { shape: self.shape + failures as f64, node_hours: self.node_hours + node_hours })
    }

    /// Expected failures per node-hour.
    pub fn mean(&self) -> f64 {
        self.shape / self.node_hours
    }

    /// Failure rate per second of a job on `nodes` nodes that is also stopped `other_per_hour`
    /// times an hour at a known rate (preemption, resizing): a Gamma with the mean and variance of
    /// the sum.
    fn for_job(&self, nodes: u32, other_per_hour: f64) -> Result<JobRate, AdviceError> {
        let nodes = parameter("nodes of the job", f64::from(nodes), "1 or more", |nodes| nodes >= 1.0)?;
        parameter("other stops per hour", other_per_hour, "0 or more", |rate| rate >= 0.0)?;
        let mean = (nodes * self.mean() + other_per_hour) / 3600.0;
        let variance = self.shape * (nodes / self.node_hours / 3600.0).powi(2);
        Ok(JobRate { shape: mean * mean / variance, scale: variance / mean })
    }
}

/// Failures of a job per second: Gamma.
#[derive(Debug, Clone, Copy)]
struct JobRate {
    shape: f64,
    scale: f64,
}

impl JobRate {
    fn quantile(&self, level: f64) -> Result<f64, AdviceError> {
        let gave_up = |reason: String| AdviceError::Optimiser { what: "the failure rate", reason };
        // For large shapes Wilson and Hilferty's cube root is exact enough. For small ones the
        // library's inverse does not converge where the density is unbounded at 0, so its
        // distribution function is bisected over logarithms.
        let unit = if self.shape < 200.0 {
            let gamma = Gamma::new(self.shape, 1.0).map_err(|error| gave_up(error.to_string()))?;
            let (mut low, mut high) = (-700.0f64, (self.shape * 20.0 + 50.0).ln());
            for _ in 0..60 {
                let middle = f64::midpoint(low, high);
                if gamma.cdf(middle.exp()) < level { low = middle } else { high = middle }
            }
            high.exp()
        } else {
            let ninth = 1.0 / (9.0 * self.shape);
            self.shape * (1.0 - ninth + Normal::standard().inverse_cdf(level) * ninth.sqrt()).powi(3)
        };
        let quantile = unit * self.scale;
        if quantile.is_finite() {
            Ok(quantile)
        } else {
            Err(gave_up(format!("no quantile at shape {}", self.shape)))
        }
    }
}

/// Cost of saving and restarting, seconds without steps.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct CheckpointCost {
    /// Pause for a save; above 0.
    pub save_s: f64,
    /// Time from a failure to the first new step: detection, waiting for nodes, loading.
    pub restart_s: f64,
}

/// A value with the interval from its 10 % to its 90 % quantile.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Range {
    /// Expected value.
    pub value: f64,
    /// 10 % quantile.
    pub low: f64,
    /// 90 % quantile.
    pub high: f64,
}

/// Advice on a job's checkpoint interval.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct CheckpointAdvice {
    /// Seconds of work between saves that waste least over the posterior; the bounds are the optima
    /// at a known rate.
    pub best_interval_s: Range,
    /// Wasted share of time at that interval.
    pub best_waste: Range,
    /// The same at the present interval; `None` if none is known.
    pub waste_now: Option<Range>,
    /// Saving by the change: present less best.
    pub gain: Option<f64>,
    /// Expected hours between failures: one over the expected rate.
    pub failure_hours: f64,
    /// Young's interval at the expected rate, for comparison.
    pub young_s: f64,
}

/// Young's interval for a save of `save_s` seconds and a rate of failures per second: `sqrt(2 d /
/// l)`.
pub fn young(save_s: f64, rate: f64) -> f64 {
    (2.0 * save_s / rate).sqrt()
}

/// Wasted share of time, exact for failures at a constant `rate` per second; 0 to 1.
pub fn daly_waste(interval_s: f64, cost: CheckpointCost, rate: f64) -> f64 {
    let exponent = rate * (interval_s + cost.save_s);
    if exponent < 1e-12 {
        return cost.save_s / (interval_s + cost.save_s);
    }
    let kept = interval_s * rate * (-rate * cost.restart_s).exp() / exponent.exp_m1();
    (1.0 - kept).clamp(0.0, 1.0)
}

/// Advice for a job of `nodes` nodes whose class fails by `posterior`, stopped by other causes
/// `other_per_hour` times an hour. `interval_s` is the present work between saves, if the job
/// saves.
///
/// # Errors
/// Costs that are negative, a save of 0 (saving without a pause cannot be too frequent), no nodes,
/// an interval of 0.
pub fn checkpoint_advice(
    posterior: &FailurePosterior,
    nodes: u32,
    other_per_hour: f64,
    cost: CheckpointCost,
    interval_s: Option<f64>,
) -> Result<CheckpointAdvice, AdviceError> {
    parameter("the pause of a save in seconds", cost.save_s, "above 0 and at most a year", |s| {
        s > 0.0 && s < 3.2e7
    })?;
    parameter("the time to start again in seconds", cost.restart_s, "0 or more and at most a year", |s| {
        (0.0..3.2e7).contains(&s)
    })?;
    if let Some(interval) = interval_s {
        parameter("the interval between saves in seconds", interval, "above 0", |s| s > 0.0)?;
    }
    let rate = posterior.for_job(nodes, other_per_hour)?;
    let rates = (0..RATES)
        .map(|k| rate.quantile((k as f64 + 0.5) / RATES as f64))
        .collect::<Result<Vec<f64>, AdviceError>>()?;
    let ends = [rate.quantile(INTERVAL[0])?, rate.quantile(INTERVAL[1])?];
    let waste = |interval: f64| Range {
        value: rates.iter().map(|&rate| daly_waste(interval, cost, rate)).sum::<f64>() / rates.len() as f64,
        low: daly_waste(interval, cost, ends[0]),
        high: daly_waste(interval, cost, ends[1]),
    };
    let best = best_interval(cost, &rates)?;
    let best_waste = waste(best);
    let waste_now = interval_s.map(waste);
    let mean = (f64::from(nodes) * posterior.mean() + other_per_hour) / 3600.0;
    Ok(CheckpointAdvice {
        // A larger rate gives a shorter interval.
        best_interval_s: Range {
            value: best,
            low: best_interval(cost, &ends[1..])?,
            high: best_interval(cost, &ends[..1])?,
        },
        best_waste,
        waste_now,
        gain: waste_now.map(|now| (now.value - best_waste.value).max(0.0)),
        failure_hours: 1.0 / mean / 3600.0,
        young_s: young(cost.save_s, mean),
    })
}

/// Mean waste over the rates, as a function of the logarithm of the interval.
struct Waste<'a> {
    cost: CheckpointCost,
    rates: &'a [f64],
}

impl CostFunction for Waste<'_> {
    type Param = f64;
    type Output = f64;

    fn cost(&self, log_interval: &f64) -> Result<f64, argmin::core::Error> {
        let interval = log_interval.exp();
        Ok(self.rates.iter().map(|&rate| daly_waste(interval, self.cost, rate)).sum::<f64>()
            / self.rates.len() as f64)
    }
}

fn best_interval(cost: CheckpointCost, rates: &[f64]) -> Result<f64, AdviceError> {
    let gave_up = |error: argmin::core::Error| AdviceError::Optimiser {
        what: "the interval",
        reason: error.to_string(),
    };
    let problem = Waste { cost, rates };
    // From a hundredth of a save to three times Young's interval at the smallest rate; the exact
    // optimum is below Young's.
    let least = rates.iter().copied().fold(f64::INFINITY, f64::min).max(1e-14);
    let (low, high) = ((cost.save_s / 100.0).ln(), (3.0 * young(cost.save_s, least)).max(cost.save_s).ln());
    let width = (high - low) / f64::from(GRID);
    // A mean over many rates may have several minima: a grid finds the lowest, Brent's method
    // refines it.
    let mut floor = (f64::INFINITY, low);
    for k in 0..=GRID {
        let at = low + width * f64::from(k);
        let waste = problem.cost(&at).map_err(gave_up)?;
        if waste < floor.0 {
            floor = (waste, at);
        }
    }
    let solver = BrentOpt::new(floor.1 - width, floor.1 + width).set_tolerance(1e-9, 1e-9);
    let found =
        Executor::new(problem, solver).configure(|state| state.max_iters(100)).run().map_err(gave_up)?;
    Ok(found.state().get_best_param().copied().unwrap_or(floor.1).exp())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn known(failures_per_hour: f64) -> FailurePosterior {
        // A million counted failures leave no doubt about the rate.
        FailurePosterior { shape: 1e6, node_hours: 1e6 / failures_per_hour }
    }

    #[test]
    fn counting_moves_the_rate() {
        let prior = FailurePosterior::published();
        assert!((prior.mean() * 24_000.0 - 4.0).abs() < 1e-9);
        // 333 faults of 400 nodes over 200 days.
        let counted = prior.update(333, 400.0 * 200.0 * 24.0).unwrap();
        assert!((counted.mean() * 24_000.0 - 4.16).abs() < 0.01);
        assert!(prior.update(1, f64::NAN).is_err());
    }

    #[test]
    fn quantiles_are_those_of_a_gamma() {
        for shape in [0.5, 3.0, 150.0, 250.0, 1e6] {
            let rate = JobRate { shape, scale: 1e-8 };
            let mean = (0..1000).map(|k| rate.quantile((f64::from(k) + 0.5) / 1000.0).unwrap()).sum::<f64>()
                / 1000.0;
            assert!((mean / (shape * 1e-8) - 1.0).abs() < 0.01, "{shape}: {mean}");
        }
        // Half a chi-square of one degree: its median is 0.4549 / 2.
        let half = JobRate { shape: 0.5, scale: 1.0 }.quantile(0.5).unwrap();
        assert!((half - 0.227_468).abs() < 1e-4, "{half}");
    }

    #[test]
    fn for_rare_failures_it_is_youngs() {
        // One failure in 6,000 s, a save of 10 s: sqrt(2 x 10 x 6000) = 346 s, about 6 minutes,
        // less a save.
        let cost = CheckpointCost { save_s: 10.0, restart_s: 600.0 };
        let advice = checkpoint_advice(&known(0.6), 1, 0.0, cost, Some(3600.0)).unwrap();
        assert!((advice.young_s - 346.4).abs() < 0.1);
        assert!((advice.best_interval_s.value - 340.0).abs() < 5.0, "{advice:?}");
        assert!(advice.gain.unwrap() > 0.1);
        // To first order 10 / 340 + 340 / 12000 + 600 / 6000 = 0.157; the exact form counts failed
        // restarts.
        assert!((advice.best_waste.value - 0.146).abs() < 0.01, "{advice:?}");
    }

    #[test]
    fn for_saves_as_long_as_failures_are_apart_it_is_the_exact_optimum() {
        // The optimum solves e^{-l(t+d)} = 1 - l t. For d = M = 1000 s it is t = 841.4 s; Young
        // gives 1414.
        let cost = CheckpointCost { save_s: 1000.0, restart_s: 0.0 };
        let advice = checkpoint_advice(&known(3.6), 1, 0.0, cost, None).unwrap();
        let best = advice.best_interval_s.value / 1000.0;
        assert!(((-(best + 1.0)).exp() - (1.0 - best)).abs() < 1e-3, "{best}");
    }

    #[test]
    fn doubt_widens_the_interval() {
        let cost = CheckpointCost { save_s: 30.0, restart_s: 300.0 };
        let advice = |posterior| checkpoint_advice(&posterior, 64, 0.0, cost, Some(1800.0)).unwrap();
        let (new, counted) = (advice(FailurePosterior::published()), advice(known(4.0 / 24_000.0)));
        let width = |advice: &CheckpointAdvice| advice.best_interval_s.high / advice.best_interval_s.low;
        assert!(width(&new) > 3.0 * width(&counted));
        let now = new.waste_now.unwrap();
        assert!(now.low < now.value && now.value < now.high);
    }

    #[test]
    fn a_simulation_agrees() {
        use rand::{Rng, SeedableRng};
        let mut random = rand_chacha::ChaCha8Rng::seed_from_u64(3);
        let (interval, cost, rate) =
            (500.0, CheckpointCost { save_s: 100.0, restart_s: 200.0 }, 1.0 / 1000.0);
        let mut failure = || -(1.0 - random.random::<f64>()).ln() / rate;
        let (mut time, mut kept) = (0.0, 0.0);
        for _ in 0..40_000 {
            loop {
                let next: f64 = failure();
                if next >= interval + cost.save_s {
                    time += interval + cost.save_s;
                    kept += interval;
                    break;
                }
                time += next;
                loop {
                    let again: f64 = failure();
                    time += again.min(cost.restart_s);
                    if again >= cost.restart_s {
                        break;
                    }
                }
            }
        }
        let waste = 1.0 - kept / time;
        assert!((daly_waste(interval, cost, rate) - waste).abs() < 0.005, "{waste}");
    }

    #[test]
    fn nonsense_is_refused() {
        let posterior = FailurePosterior::published();
        let advice = |nodes, save_s, restart_s, interval| {
            checkpoint_advice(&posterior, nodes, 0.0, CheckpointCost { save_s, restart_s }, interval)
        };
        assert!(advice(0, 1.0, 1.0, None).is_err());
        assert!(advice(1, 0.0, 1.0, None).is_err());
        assert!(advice(1, 1.0, -1.0, None).is_err());
        assert!(advice(1, f64::NAN, 1.0, None).is_err());
        assert!(advice(1, 1.0, 1.0, Some(0.0)).unwrap_err().to_string().contains("interval"));
    }

    proptest! {
        #[test]
        fn no_interval_wastes_less(save in 0.1f64..3000.0, restart in 0.0f64..3000.0, hours in 0.1f64..1e5, other in 1.0f64..1e6) {
            let cost = CheckpointCost { save_s: save, restart_s: restart };
            let advice = checkpoint_advice(&known(1.0 / hours), 1, 0.0, cost, Some(other)).unwrap();
            prop_assert!(advice.best_waste.value <= advice.waste_now.unwrap().value + 1e-9);
        }
    }
}
