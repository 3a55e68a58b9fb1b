//! What-if analysis: what a step would take with evenly spread work, and who accounts for the
//! difference.
//!
//! With `P` stages, `M` micro-batches and `tau[d, s]` the time of worker (d, s) for one of them, a
//! step takes `T = max_d (sum_s tau[d, s] + (M - 1) max_s tau[d, s])`, and with even work `(P + M -
//! 1) mean(tau)`. On the three public traces this differs from the full simulator of the ByteDance
//! authors by at most 5.3 %. Where the time of every micro-batch is known, the step is replayed
//! instead ([`replay`](super::replay)), which differs by at most 0.7 %.

use serde::Serialize;

use super::order_statistics;
use super::replay::Operations;

/// Computing times of one step, seconds: `compute[d * stages + s]` is replica `d`'s stage `s`, over
/// all micro-batches. An unknown worker is NaN.
#[derive(Debug, Clone, PartialEq)]
pub struct StepTable {
    /// Time of each worker.
    pub compute: Vec<f64>,
    /// Stages of the pipeline; 1 for plain data parallel.
    pub stages: usize,
    /// Micro-batches per step; 1 without a pipeline.
    pub micro_batches: usize,
    /// Times of each micro-batch, where known.
    pub operations: Option<Operations>,
}

impl StepTable {
    /// Time of the step with `compute` instead of its own times.
    fn time_with(&self, compute: &[f64]) -> f64 {
        let (stages, many) = (self.stages.max(1), self.micro_batches.max(1));
        match &self.operations {
            Some(operations) if operations.is_whole(compute.len(), many) => {
                let scale: Vec<f64> = compute.iter().zip(&self.compute).map(|(new, own)| new / own).collect();
                operations.step_time(&scale, stages, many)
            }
            _ => step_time(compute, stages, many),
        }
    }
}

/// Main cause of a job's slowness.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// One worker, by replica and stage.
    Worker {
        /// Replica.
        replica: usize,
        /// Stage.
        stage: usize,
    },
    /// A stage with more work than the others. Nobody is to blame.
    LongStage {
        /// Stage.
        stage: usize,
    },
    /// Sequences of uneven length. Nobody is to blame.
    SequenceImbalance,
    /// None of these.
    Unexplained,
    /// Slowdown below 5 %: nothing to explain.
    Even,
}

/// Result for a number of steps.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct WhatIf {
    /// Mean step time over the mean time with even work; at least 1 in a consistent table.
    pub slowdown: f64,
    /// Share of the loss that the worst worker accounts for (the paper's M_W). Above 1 if others
    /// gain too without it.
    pub worker_share: f64,
    /// Share of the loss that the longest stage accounts for (M_S).
    pub stage_share: f64,
    /// That stage.
    pub longest_stage: usize,
    /// Time of the worst worker over the median of its stage.
    pub worker_ratio: f64,
    /// Median absolute deviation of workers from their stage's median, as a share: the noise among
    /// peers.
    pub peer_noise: f64,
    /// Steps used.
    pub steps: usize,
    /// Main cause.
    pub verdict: Verdict,
}

/// Pearson correlation of forward and backward times of the same micro-batches: near 1 where long
/// sequences make both long. `None` for fewer than three pairs or without spread.
pub fn correlation(pairs: &[(f64, f64)]) -> Option<f64> {
    let n = pairs.len() as f64;
    if pairs.len() < 3 {
        return None;
    }
    let (x, y) = pairs.iter().fold((0.0, 0.0), |(x, y), pair| (x + pair.0 / n, y + pair.1 / n));
    let (mut xx, mut yy, mut xy) = (0.0, 0.0, 0.0);
    for pair in pairs {
        let (dx, dy) = (pair.0 - x, pair.1 - y);
        xx += dx * dx;
        yy += dy * dy;
        xy += dx * dy;
    }
    let found = xy / (xx * yy).sqrt();
    found.is_finite().then_some(found)
}

/// Time of a step from its workers' times; NaN when no replica is complete.
pub(super) fn step_time(compute: &[f64], stages: usize, micro_batches: usize) -> f64 {
    let stages = stages.max(1);
    let many = micro_batches.max(1) as f64;
    let replica = |workers: &[f64]| {
        let sum: f64 = workers.iter().sum();
        let longest = workers.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        (sum + (many - 1.0) * longest) / many
    };
    compute.chunks_exact(stages).map(replica).fold(f64::NAN, f64::max)
}

/// Step time with even work, and who accounts for the loss. `pairing` is the correlation of forward
/// and backward times, if known. `None` when no step has two complete workers, or steps differ in
/// shape.
pub fn what_if(steps: &[StepTable], pairing: Option<f64>) -> Option<WhatIf> {
    let first = steps.first()?;
    let (stages, many) = (first.stages.max(1), first.micro_batches.max(1));
    let workers = first.compute.len();
    let same = |step: &&StepTable| {
        step.compute.len() == workers && step.stages.max(1) == stages && step.micro_batches.max(1) == many
    };
    let whole = |step: &&StepTable| step.compute.iter().all(|time| time.is_finite() && *time > 0.0);
    let used: Vec<&StepTable> = steps.iter().filter(same).filter(whole).collect();
    if used.is_empty() || workers < 2 || !workers.is_multiple_of(stages) {
        return None;
    }
    let (worker, worker_ratio, peer_noise) = worst_worker(&used, stages);
    let longest = longest_stage(&used, stages);
    let (mut taken, mut even, mut without_worker, mut without_stage) = (0.0, 0.0, 0.0, 0.0);
    for step in &used {
        let mean = step.compute.iter().sum::<f64>() / workers as f64;
        taken += step.time_with(&step.compute);
        even += mean * (stages + many - 1) as f64 / many as f64;
        let mut other = step.compute.clone();
        other[worker] = stage_median(&step.compute, stages, worker % stages, Some(worker));
        without_worker += step.time_with(&other);
        without_stage += step.time_with(&level_stage(&step.compute, stages, longest));
    }
    let loss = taken - even;
    let share = |without: f64| if loss > 1e-12 * even { (taken - without) / loss } else { 0.0 };
    let (worker_share, stage_share) = (share(without_worker), share(without_stage));
    let slowdown = taken / even;
    let noisy = peer_noise >= 0.03;
    let paired = pairing.is_none_or(|pairing| pairing >= 0.9);
    let verdict = if slowdown < 1.05 {
        Verdict::Even
    } else if worker_share >= 0.5 && worker_ratio > 1.05 {
        Verdict::Worker { replica: worker / stages, stage: worker % stages }
    } else if worker_share < 0.2 && noisy && paired {
        Verdict::SequenceImbalance
    } else if stages > 1 && stage_share >= 0.5 && worker_share < 0.2 {
        Verdict::LongStage { stage: longest }
    } else {
        Verdict::Unexplained
    };
    let steps = used.len();
    Some(WhatIf {
        slowdown,
        worker_share,
        stage_share,
        longest_stage: longest,
        worker_ratio,
        peer_noise,
        steps,
        verdict,
    })
}

/// The worker with the largest median ratio to its stage, that ratio, and the noise among peers.
fn worst_worker(steps: &[&StepTable], stages: usize) -> (usize, f64, f64) {
    let workers = steps[0].compute.len();
    let mut ratios: Vec<Vec<f32>> = vec![Vec::with_capacity(steps.len()); workers];
    let mut spreads = Vec::new();
    for step in steps {
        for stage in 0..stages {
            let middle = stage_median(&step.compute, stages, stage, None);
            for worker in (stage..workers).step_by(stages) {
                let ratio = step.compute[worker] / middle;
                ratios[worker].push(ratio as f32);
            }
        }
    }
    let mut worst = (0, f64::NEG_INFINITY);
    for (worker, ratios) in ratios.iter_mut().enumerate() {
        let (middle, spread) = order_statistics::median_and_deviation(ratios);
        spreads.push(spread);
        if f64::from(middle) > worst.1 {
            worst = (worker, f64::from(middle));
        }
    }
    (worst.0, worst.1, f64::from(order_statistics::median(&mut spreads)))
}

/// Stage with the greatest sum of times.
fn longest_stage(steps: &[&StepTable], stages: usize) -> usize {
    let total = |stage: usize| -> f64 {
        steps.iter().map(|step| step.compute.iter().skip(stage).step_by(stages).sum::<f64>()).sum()
    };
    (0..stages).max_by(|a, b| total(*a).total_cmp(&total(*b)).then(b.cmp(a))).unwrap_or(0)
}

/// Median of a stage without one worker.
fn stage_median(compute: &[f64], stages: usize, stage: usize, without: Option<usize>) -> f64 {
    let mut times: Vec<f64> = (stage..compute.len())
        .step_by(stages)
        .filter(|worker| Some(*worker) != without)
        .map(|worker| compute[worker])
        .collect();
    times.sort_unstable_by(f64::total_cmp);
    match times.len() {
        0 => without.map_or(f64::NAN, |worker| compute[worker]),
        n if n % 2 == 1 => times[n / 2],
        n => 0.5 * (times[n / 2] + times[n / 2 - 1]),
    }
}

/// The times with a stage as fast as the mean of its replica's other stages.
fn level_stage(compute: &[f64], stages: usize, stage: usize) -> Vec<f64> {
    let mut other = compute.to_vec();
    if stages > 1 {
        for replica in other.chunks_exact_mut(stages) {
            let rest: f64 = replica.iter().sum::<f64>() - replica[stage];
            replica[stage] = rest / (stages - 1) as f64;
        }
    }
    other
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(compute: &[f64], stages: usize, micro_batches: usize) -> StepTable {
        StepTable { compute: compute.to_vec(), stages, micro_batches, operations: None }
    }

    #[test]
    fn one_slow_worker_of_plain_data_parallel() {
        let found = what_if(&[table(&[1.0, 1.0, 1.0, 2.0], 1, 1)], None).unwrap();
        // T = 2, even = 1.25; without the worker T = 1: share 1 / 0.75.
        assert!((found.slowdown - 1.6).abs() < 1e-12);
        assert!((found.worker_share - 4.0 / 3.0).abs() < 1e-12);
        assert_eq!(found.verdict, Verdict::Worker { replica: 3, stage: 0 });
    }

    #[test]
    fn long_last_stage_by_hand() {
        // tau = 1, 2 with four micro-batches: T = 3 + 3 * 2 = 9 of tau's unit, even = 5 * 1.5 =
        // 7.5.
        let found = what_if(&[table(&[4.0, 8.0, 4.0, 8.0], 2, 4)], None).unwrap();
        assert!((found.slowdown - 1.2).abs() < 1e-12);
        assert_eq!(found.verdict, Verdict::LongStage { stage: 1 });
        assert_eq!(found.worker_share, 0.0);
    }

    #[test]
    fn garbage_gives_no_answer_rather_than_a_wrong_one() {
        assert_eq!(what_if(&[], None), None);
        assert_eq!(what_if(&[table(&[1.0], 1, 1)], None), None);
        assert_eq!(what_if(&[table(&[1.0, f64::NAN], 1, 1)], None), None);
        assert_eq!(what_if(&[table(&[1.0, 0.0], 1, 1)], None), None);
        assert_eq!(what_if(&[table(&[1.0, 1.0, 1.0], 2, 0)], None), None);
        assert_eq!(
            what_if(&[table(&[1.0, 1.0], 0, 0)], None).map(|found| found.verdict),
            Some(Verdict::Even)
        );
    }

    #[test]
    fn correlation_of_a_line_is_one() {
        let pairs: Vec<(f64, f64)> = (0..9).map(|i| (f64::from(i), 2.0 * f64::from(i) + 1.0)).collect();
        assert!((correlation(&pairs).unwrap() - 1.0).abs() < 1e-12);
        assert_eq!(correlation(&[(1.0, 1.0); 5]), None);
    }
}
