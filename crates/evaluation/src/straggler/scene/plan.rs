//! Plan of a job before it runs: its shape, the parts of a step, and its devices.

use rand::Rng;
use serde::Serialize;

use crate::straggler::random::{STUDENT3_NOISE, child, normal};

/// Devices per node, as in every published source used here.
pub(crate) const PER_NODE: usize = 8;

/// Noise regime of a job. Noise is that of the logarithm of a rank's time over its peers' median
/// from step to step: 1.4826 times the median absolute deviation. Measured so, the traces have
/// exactly the published figures (see [`real`](crate::straggler::real)).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub enum Regime {
    /// Fixed length: 0.4 % (ByteDance traces AR and ST: 0.43 and 0.34 %).
    A,
    /// Uneven sequence lengths: 11 % (trace SE: 10.9 %).
    B,
    /// Heterogeneous: ranks differ permanently by sigma 8 %, and by 3 % from step to step (Alibaba
    /// PAI: 3.7 and 1.8 %).
    C,
}

impl Regime {
    /// Its letter.
    pub fn letter(self) -> char {
        match self {
            Self::A => 'A',
            Self::B => 'B',
            Self::C => 'C',
        }
    }

    /// By letter.
    pub fn of(letter: char) -> Option<Self> {
        [Self::A, Self::B, Self::C].into_iter().find(|regime| regime.letter() == letter.to_ascii_uppercase())
    }

    /// Scale of a rank's Student-t step noise.
    pub(crate) fn step_noise(self) -> f64 {
        match self {
            Self::A | Self::B => 0.004 / STUDENT3_NOISE,
            Self::C => 0.03 / STUDENT3_NOISE,
        }
    }

    /// Sigma of the logarithm of a data-parallel rank's work in a step.
    pub(crate) fn sequence_noise(self) -> f64 {
        if self == Self::B { 0.11 } else { 0.0 }
    }
}

/// How reports show the pause for a checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum Pause {
    /// In the duration of the step alone.
    Outside,
    /// Rank 0 writes while the others wait in a collective.
    Barrier,
    /// Between two steps, in no report.
    Between,
}

/// Plan of a job, drawn from seed and regime. Times in seconds.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Plan {
    /// Seed it was drawn from.
    pub seed: u64,
    /// Noise regime.
    pub regime: Regime,
    /// Nodes in use; one more is spare.
    pub nodes: usize,
    /// Pipeline stages: 1, 2 or 4.
    pub stages: usize,
    /// Micro-batches per step; 1 without a pipeline.
    pub micro_batches: usize,
    /// Length of the job, restarts included.
    pub length_s: f64,
    /// Nominal step: log-uniform, 1 to 15 s.
    pub step_s: f64,
    /// Computing of a rank in a nominal step.
    pub compute_s: f64,
    /// Transfer in a nominal step, without waiting.
    pub transfer_s: f64,
    /// Waiting for input in a nominal step.
    pub data_s: f64,
    /// Work of each stage relative to the mean. The last is 1.1 to 1.63 times longer in 39.3 % of
    /// the pipelines (OSDI'25).
    pub stage_factor: Vec<f64>,
    /// Time factor of each device of each node, spare included.
    pub device_factor: Vec<f64>,
    /// Work of each data-parallel rank relative to the mean: a bias of 2 % where there is one.
    pub token_bias: Vec<f64>,
    /// Whether ranks report tokens.
    pub tokens: bool,
    /// Whether they report squared lengths too.
    pub squared_tokens: bool,
    /// Whether the nodes' network counters are read.
    pub network_counters: bool,
    /// How its checkpoints show.
    pub pause: Pause,
    /// Number of each node, spare last.
    pub node_ids: Vec<u32>,
    /// Each node's clock against true time, µs, at most 50 ms.
    pub skew_us: Vec<i64>,
    /// Times of restarts.
    pub restarts_s: Vec<f64>,
}

impl Plan {
    /// Draws a job. `hours` fixes its length; otherwise it is uniform from 2 to 4.6 h.
    pub fn draw(seed: u64, regime: Regime, hours: Option<f64>) -> Self {
        let rng = &mut child(seed, regime.letter(), "plan");
        let nodes = (2.0 * 32.0_f64.powf(rng.random::<f64>())).round() as usize;
        let stages = [1, 2, 4][rng.random_range(0..3)];
        let micro_batches = if stages == 1 { 1 } else { [4, 8, 16][rng.random_range(0..3)] };
        let length_s = 3600.0 * hours.unwrap_or(rng.random_range(2.0..4.6));
        let step_s = 15.0_f64.powf(rng.random::<f64>());
        let (transfer_share, data_share) = (rng.random_range(0.08..0.25), rng.random_range(0.005..0.03));
        let fill = micro_batches as f64 / (micro_batches + stages - 1) as f64;
        let mut stage_factor: Vec<f64> = (0..stages).map(|_| rng.random_range(0.98..1.02)).collect();
        if stages > 1 && rng.random_bool(0.393) {
            stage_factor[stages - 1] = rng.random_range(1.1..1.63);
        }
        let offset = if regime == Regime::C { 0.08 } else { 0.003 };
        let device_factor = (0..(nodes + 1) * PER_NODE).map(|_| (offset * normal(rng)).exp()).collect();
        let bias = if rng.random_bool(0.5) { 0.02 } else { 0.0 };
        let dp = nodes * PER_NODE / stages;
        let token_bias = (0..dp).map(|_| 1.0 + bias * normal(rng).clamp(-2.0, 2.0)).collect();
        let tokens = rng.random_bool(0.6);
        let squared_tokens = tokens && rng.random_bool(0.7);
        let network_counters = rng.random_bool(0.7);
        let pause = [Pause::Outside, Pause::Barrier, Pause::Between][rng.random_range(0..3)];
        let first = rng.random_range(0..10_000_u32);
        // Node numbers rise with gaps, as in an allocation.
        let node_ids = (0..=nodes as u32).map(|n| first + 3 * n + u32::from(rng.random_bool(0.5))).collect();
        let skew_us = (0..=nodes).map(|_| rng.random_range(-50_000..=50_000)).collect();
        let mut restarts_s = Vec::new();
        if rng.random_bool(0.3) {
            restarts_s.push(length_s * rng.random_range(0.2..0.8));
            if rng.random_bool(0.2) {
                restarts_s.push(restarts_s[0] + (length_s - restarts_s[0]) * rng.random_range(0.3..0.8));
            }
        }
        Self {
            seed,
            regime,
            nodes,
            stages,
            micro_batches,
            length_s,
            step_s,
            compute_s: step_s * (1.0 - transfer_share - data_share) * fill,
            transfer_s: step_s * transfer_share,
            data_s: step_s * data_share,
            stage_factor,
            device_factor,
            token_bias,
            tokens,
            squared_tokens,
            network_counters,
            pause,
            node_ids,
            skew_us,
            restarts_s,
        }
    }

    /// Ranks, one per device.
    pub fn ranks(&self) -> usize {
        self.nodes * PER_NODE
    }

    /// Data-parallel ranks of a stage. Rank = stage * this + data-parallel rank.
    pub fn data_parallel(&self) -> usize {
        self.ranks() / self.stages
    }

    /// Pipeline stage of a rank, its role.
    pub fn stage(&self, rank: usize) -> usize {
        rank / self.data_parallel()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn job_mix_is_the_published_one() {
        // Seeds from 1,000 on are for reports alone.
        let plans: Vec<Plan> = (0..1000).map(|seed| Plan::draw(seed, Regime::A, None)).collect();
        let share = |hit: &dyn Fn(&Plan) -> bool, of: &dyn Fn(&Plan) -> bool| {
            let all: Vec<&Plan> = plans.iter().filter(|plan| of(plan)).collect();
            all.iter().filter(|plan| hit(plan)).count() as f64 / all.len() as f64
        };
        assert!(plans.iter().all(|plan| (16..=512).contains(&plan.ranks()) && plan.data_parallel() >= 4));
        assert!(plans.iter().all(|plan| (1.0..=15.0).contains(&plan.step_s)));
        let long = share(&|p| p.stage_factor[p.stages - 1] >= 1.1, &|p| p.stages > 1);
        assert!((long - 0.393).abs() < 0.06, "{long}");
        // Log-uniform: half of the steps are below sqrt(15) s.
        let short = share(&|p| p.step_s < 15.0_f64.sqrt(), &|_| true);
        assert!((short - 0.5).abs() < 0.05, "{short}");
        let restarted = share(&|p| !p.restarts_s.is_empty(), &|_| true);
        assert!((restarted - 0.3).abs() < 0.05, "{restarted}");
        assert_eq!(Plan::draw(5, Regime::B, None), Plan::draw(5, Regime::B, None));
    }
}
