//! Confounders: what happens in every job and is nobody's fault. Alarms about any of it are wrong.
//!
//! Rates and sizes are those of the specification: Python's garbage collection, checkpoint pauses,
//! curriculum changes, the time of day (1 to 2 %, Llama 3), short bursts of a rank or of the
//! network. Two are added here: devices wander by 0.4 % over tens of minutes, and the first two
//! steps of an attempt are slow (compilation, cold caches).

use rand::Rng;
use rand_chacha::ChaCha8Rng;

use super::plan::{PER_NODE, Plan};
use crate::straggler::random::{child, exponential, normal, poisson};

const GC_PER_RANK_STEP: f64 = 1.0 / 300.0;
const BURSTS_PER_RANK_S: f64 = 1.0 / 86_400.0;
const COMM_BURSTS_PER_S: f64 = 4.0 / 3600.0;
const WANDER_EVERY_S: f64 = 60.0;

/// Confounders of a step as a whole.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Weather {
    /// Factor on all computing.
    pub(crate) compute: f64,
    /// Factor on the tokens of all ranks.
    pub(crate) tokens: f64,
    /// Factor on the transfer.
    pub(crate) transfer: f64,
    /// Pause for a checkpoint, seconds.
    pub(crate) pause_s: f64,
}

#[derive(Debug)]
struct CommBurst {
    start_s: f64,
    end_s: f64,
    size: f64,
    /// Node whose network counters show it; `None` if none does.
    node: Option<usize>,
    marks: f64,
}

#[derive(Debug)]
pub(crate) struct Confounders {
    rng: ChaCha8Rng,
    checkpoint_s: f64,
    curriculum: Option<(f64, f64)>,
    diurnal: (f64, f64),
    comm: CommBurst,
    /// By rank: steps left and size.
    bursts: Vec<(u32, f64)>,
    /// By device.
    wander: Vec<f64>,
    wandered_s: f64,
    /// Rank-steps until the next collection.
    gc_in: f64,
    warm: u32,
}

impl Confounders {
    pub(crate) fn new(plan: &Plan) -> Self {
        let mut rng = child(plan.seed, plan.regime.letter(), "confounders");
        let curriculum = rng
            .random_bool(0.15)
            .then(|| (plan.length_s * rng.random_range(0.1..0.95), rng.random_range(0.8..1.3)));
        let mut it = Self {
            checkpoint_s: rng.random_range(0.0..3600.0),
            curriculum,
            diurnal: (rng.random_range(0.01..0.02), rng.random_range(0.0..std::f64::consts::TAU)),
            comm: CommBurst { start_s: 0.0, end_s: 0.0, size: 0.0, node: None, marks: 1.0 },
            bursts: vec![(0, 0.0); plan.ranks()],
            wander: vec![0.0; (plan.nodes + 1) * PER_NODE],
            wandered_s: 0.0,
            gc_in: 0.0,
            warm: 2,
            rng,
        };
        it.gc_in = it.until_gc();
        it.next_comm_burst(0.0, plan.nodes);
        it
    }

    fn until_gc(&mut self) -> f64 {
        exponential(&mut self.rng, GC_PER_RANK_STEP)
    }

    fn next_comm_burst(&mut self, now_s: f64, nodes: usize) {
        let rng = &mut self.rng;
        let start_s = now_s + exponential(rng, COMM_BURSTS_PER_S);
        let end_s = start_s + rng.random_range(5.0..30.0);
        let node = rng.random_bool(0.5).then(|| rng.random_range(0..nodes));
        self.comm = CommBurst {
            start_s,
            end_s,
            size: rng.random_range(0.5..2.0),
            node,
            marks: rng.random_range(2.0..8.0),
        };
    }

    /// A new attempt starts cold.
    pub(crate) fn restarted(&mut self) {
        self.warm = 2;
        self.bursts.fill((0, 0.0));
    }

    /// Draws the step that starts now and takes about `step_s`.
    pub(crate) fn step(&mut self, plan: &Plan, now_s: f64, step_s: f64) -> Weather {
        self.start_bursts(plan, step_s);
        self.let_wander(now_s);
        while self.comm.end_s < now_s {
            self.next_comm_burst(now_s, plan.nodes);
        }
        let overlap = (self.comm.end_s.min(now_s + step_s) - self.comm.start_s.max(now_s)).max(0.0) / step_s;
        let mut pause_s = 0.0;
        if now_s >= self.checkpoint_s {
            self.checkpoint_s = now_s + self.rng.random_range(1800.0..3600.0);
            pause_s = self.rng.random_range(20.0..90.0);
        }
        let change = self.curriculum.map_or(1.0, |(at_s, factor)| if now_s >= at_s { factor } else { 1.0 });
        let day = 1.0 + self.diurnal.0 * (std::f64::consts::TAU * now_s / 86_400.0 + self.diurnal.1).sin();
        let cold = if self.warm > 0 { self.rng.random_range(1.5..3.0) } else { 1.0 };
        self.warm = self.warm.saturating_sub(1);
        Weather {
            compute: change * day * cold,
            tokens: change,
            transfer: 1.0 + self.comm.size * overlap,
            pause_s,
        }
    }

    fn start_bursts(&mut self, plan: &Plan, step_s: f64) {
        for burst in &mut self.bursts {
            burst.0 = burst.0.saturating_sub(1);
        }
        for _ in 0..poisson(&mut self.rng, plan.ranks() as f64 * step_s * BURSTS_PER_RANK_S) {
            let rank = self.rng.random_range(0..plan.ranks());
            // Two to five steps, at most 30 s.
            let steps = self.rng.random_range(2..=5_u32).min((30.0 / step_s) as u32).max(1);
            self.bursts[rank] = (steps, self.rng.random_range(0.1..0.6));
        }
    }

    fn let_wander(&mut self, now_s: f64) {
        const KEEP: f64 = 0.95;
        const SIGMA: f64 = 0.004;
        while self.wandered_s <= now_s {
            self.wandered_s += WANDER_EVERY_S;
            for device in &mut self.wander {
                *device = KEEP * *device + SIGMA * (1.0 - KEEP * KEEP).sqrt() * normal(&mut self.rng);
            }
        }
    }

    /// Factor on a rank's computing in this step.
    pub(crate) fn rank(&self, rank: usize, device: usize) -> f64 {
        let (left, size) = self.bursts[rank];
        (1.0 + self.wander[device]) * if left > 0 { 1.0 + size } else { 1.0 }
    }

    /// Garbage collection of a rank in this step, seconds: 0.1 to 0.5, once in 300 rank-steps. To
    /// be called once per rank and step.
    pub(crate) fn gc_s(&mut self) -> f64 {
        self.gc_in -= 1.0;
        if self.gc_in > 0.0 {
            return 0.0;
        }
        self.gc_in = self.until_gc();
        self.rng.random_range(0.1..0.5)
    }

    /// Factor on a node's network marks in a window.
    pub(crate) fn marks(&self, node: usize, start_s: f64, end_s: f64) -> f64 {
        let overlaps = self.comm.start_s < end_s && start_s < self.comm.end_s;
        if overlaps && self.comm.node == Some(node) { self.comm.marks } else { 1.0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::straggler::scene::Regime;

    #[test]
    fn rates_are_the_specified_ones() {
        let mut plan = Plan::draw(3, Regime::A, Some(24.0));
        plan.step_s = 2.0;
        let mut it = Confounders::new(&plan);
        let (mut gc, mut pauses, mut bursts, mut comm) = (0_u32, 0_u32, 0_u32, 0_u32);
        let steps = 43_200;
        let mut comm_before = false;
        for step in 0..steps {
            let weather = it.step(&plan, f64::from(step) * 2.0, 2.0);
            pauses += u32::from(weather.pause_s > 0.0);
            comm += u32::from(weather.transfer > 1.0 && !comm_before);
            comm_before = weather.transfer > 1.0;
            bursts += it.bursts.iter().filter(|burst| burst.0 > 0).count() as u32;
            gc += (0..plan.ranks()).filter(|_| it.gc_s() > 0.0).count() as u32;
        }
        let rank_steps = f64::from(steps) * plan.ranks() as f64;
        let near = |got: f64, want: f64, by: f64| assert!((got / want - 1.0).abs() < by, "{got} for {want}");
        near(f64::from(gc) / rank_steps, 1.0 / 300.0, 0.05);
        assert!((24..=48).contains(&pauses), "{pauses}");
        assert!((70..=122).contains(&comm), "{comm}");
        // One per rank-day, of 3.5 steps in the mean.
        near(f64::from(bursts), 3.5 * plan.ranks() as f64, 0.5);
    }
}
