//! Steps of a synchronous job: what each rank does, and how long all of them take.

use rand_chacha::ChaCha8Rng;
use tidegate_insight::straggler::Class;

use super::confounders::{Confounders, Weather};
use super::faults::{Injected, Place};
use super::plan::{PER_NODE, Pause, Plan};
use crate::straggler::random::{STUDENT3_NOISE, child, normal, student3};

/// Times of one step, seconds; lists by rank.
#[derive(Debug, Default)]
pub(crate) struct Step {
    /// Work: slowest path and transfer.
    pub(crate) work_s: f64,
    /// Duration of the step, including a pause inside it.
    pub(crate) total_s: f64,
    /// Whether a checkpoint was written.
    pub(crate) checkpoint: bool,
    /// Pause after it that no report shows.
    pub(crate) gap_s: f64,
    pub(crate) compute_s: Vec<f64>,
    pub(crate) data_s: Vec<f64>,
    pub(crate) comm_s: Vec<f64>,
    /// Work relative to the mean rank, as tokens and squared lengths show it.
    pub(crate) bias: Vec<f64>,
    pub(crate) sequence: Vec<f64>,
    /// Factor on the tokens of all ranks.
    pub(crate) tokens: f64,
    /// Faults active in this step: index, and the duration without it.
    pub(crate) without: Vec<(usize, f64)>,
}

/// Runs the steps of one job.
#[derive(Debug)]
pub(crate) struct Steps {
    noise: ChaCha8Rng,
    sequences: ChaCha8Rng,
    transfers: ChaCha8Rng,
    transfer_noise: f64,
    pub(crate) confounders: Confounders,
    pub(crate) step: Step,
}

impl Steps {
    pub(crate) fn new(plan: &Plan) -> Self {
        let stream = |purpose| child(plan.seed, plan.regime.letter(), purpose);
        let n = plan.ranks();
        let zeros = || vec![0.0; n];
        Self {
            noise: stream("noise"),
            sequences: stream("sequences"),
            transfers: stream("transfers"),
            transfer_noise: if plan.regime.letter() == 'A' { 0.02 } else { 0.04 } / STUDENT3_NOISE,
            confounders: Confounders::new(plan),
            step: Step {
                compute_s: zeros(),
                data_s: zeros(),
                comm_s: zeros(),
                bias: zeros(),
                sequence: vec![0.0; plan.data_parallel()],
                ..Step::default()
            },
        }
    }

    /// Runs the step that starts now. `order`: node index of each block of eight ranks.
    pub(crate) fn run(&mut self, plan: &Plan, faults: &[Injected], order: &[usize], now_s: f64) -> &Step {
        let weather = self.confounders.step(plan, now_s, plan.step_s);
        self.healthy(plan, order, weather);
        let active: Vec<usize> = (0..faults.len()).filter(|&i| faults[i].active(now_s)).collect();
        for &i in &active {
            apply(plan, &faults[i], order, &mut self.step, 1.0);
        }
        let noise = 1.0 + (self.transfer_noise * student3(&mut self.transfers)).clamp(-0.5, 1.0);
        let transfer = |left_out: Option<usize>| {
            // The slowest link decides, not the product of all slow ones.
            let slowest = active
                .iter()
                .filter(|&&i| Some(i) != left_out && faults[i].of_transfer())
                .map(|&i| 1.0 + faults[i].size)
                .fold(weather.transfer, f64::max);
            plan.transfer_s * noise * slowest
        };
        let work_s = slowest_path(plan, &self.step) + transfer(None);
        self.step.without.clear();
        for &i in &active {
            apply(plan, &faults[i], order, &mut self.step, -1.0);
            let without_s = slowest_path(plan, &self.step) + transfer(Some(i));
            apply(plan, &faults[i], order, &mut self.step, 1.0);
            self.step.without.push((i, without_s));
        }
        self.wait(plan, work_s, weather.pause_s);
        &self.step
    }

    fn healthy(&mut self, plan: &Plan, order: &[usize], weather: Weather) {
        let dp = plan.data_parallel();
        let sigma = plan.regime.sequence_noise();
        for d in 0..dp {
            self.step.sequence[d] = match sigma > 0.0 {
                // A batch is never empty, nor longer than its budget.
                true => (sigma * normal(&mut self.sequences)).clamp(-0.6, 0.9).exp(),
                false => 1.0,
            };
        }
        let scale = plan.regime.step_noise();
        for rank in 0..plan.ranks() {
            let (stage, d) = (plan.stage(rank), rank % dp);
            let device = order[rank / PER_NODE] * PER_NODE + rank % PER_NODE;
            let noise = 1.0 + (scale * student3(&mut self.noise)).clamp(-0.5, 1.0);
            let mean =
                plan.compute_s * plan.stage_factor[stage] * plan.device_factor[device] * weather.compute;
            let work = plan.token_bias[d] * self.step.sequence[d] * self.confounders.rank(rank, device);
            self.step.compute_s[rank] = mean * work * noise + self.confounders.gc_s();
            self.step.data_s[rank] = plan.data_s * (1.0 + 0.1 * student3(&mut self.noise)).clamp(0.3, 5.0);
            self.step.bias[rank] = plan.token_bias[d];
        }
        self.step.tokens = weather.tokens;
    }

    /// Sets what each rank waited, so that all ranks end together.
    fn wait(&mut self, plan: &Plan, work_s: f64, pause_s: f64) {
        let step = &mut self.step;
        let inside = if plan.pause == Pause::Between { 0.0 } else { pause_s };
        step.work_s = work_s;
        step.checkpoint = pause_s > 0.0;
        step.total_s = work_s + inside;
        step.gap_s = pause_s - inside;
        for rank in 0..plan.ranks() {
            let waited = if plan.pause == Pause::Barrier && rank > 0 { pause_s } else { 0.0 };
            step.comm_s[rank] = (work_s - step.compute_s[rank] - step.data_s[rank]).max(0.0) + waited;
        }
    }
}

/// Applies a fault's slowdown to the ranks it affects (`sign` 1) or removes it (-1). Transfers are
/// left to the caller.
fn apply(plan: &Plan, fault: &Injected, order: &[usize], step: &mut Step, sign: f64) {
    if fault.of_transfer() {
        return;
    }
    let (node, slots) = match fault.place {
        Place::Device(device) => (device / PER_NODE, device % PER_NODE..device % PER_NODE + 1),
        Place::Node(node) => (node, 0..PER_NODE),
        Place::Fabric => return,
    };
    let Some(position) = order.iter().position(|&at| at == node) else { return };
    for rank in slots.map(|slot| position * PER_NODE + slot) {
        match fault.class {
            Class::Data if plan.stage(rank) == 0 => step.data_s[rank] += sign * fault.size * plan.step_s,
            Class::Data => {}
            _ if sign > 0.0 => step.compute_s[rank] *= 1.0 + fault.size,
            _ => step.compute_s[rank] /= 1.0 + fault.size,
        }
    }
}

/// Time of the slowest data-parallel pipeline without transfers: its input, one micro-batch through
/// all stages, and the others at the pace of its slowest stage.
fn slowest_path(plan: &Plan, step: &Step) -> f64 {
    let (dp, batches) = (plan.data_parallel(), plan.micro_batches as f64);
    (0..dp)
        .map(|d| {
            let stages = (0..plan.stages).map(|stage| step.compute_s[stage * dp + d] / batches);
            let (sum, slowest) = stages.fold((0.0, 0.0_f64), |(sum, slow), tau| (sum + tau, slow.max(tau)));
            step.data_s[d] + sum + (batches - 1.0) * slowest
        })
        .fold(0.0, f64::max)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::straggler::scene::Regime;
    use crate::straggler::statistics::{median, peer_noise};

    fn plan(seed: u64, regime: Regime) -> Plan {
        Plan { restarts_s: Vec::new(), ..Plan::draw(seed, regime, Some(1.0)) }
    }

    /// With and without the fault a job draws the same random numbers, so the ratio of the two
    /// shows the fault alone.
    #[test]
    fn a_fault_slows_only_its_ranks_by_its_size() {
        let plan = plan(11, Regime::A);
        let order: Vec<usize> = (0..plan.nodes).collect();
        let fault = Injected {
            class: Class::ComputeSilent,
            place: Place::Device(9),
            start_s: 0.0,
            end_s: 1e9,
            size: 0.3,
            evidence: false,
        };
        let (mut with, mut without) = (Steps::new(&plan), Steps::new(&plan));
        for step in 0..200 {
            let now_s = f64::from(step) * plan.step_s;
            let clean_s = without.run(&plan, &[], &order, now_s).work_s;
            let slow = with.run(&plan, &[fault], &order, now_s);
            for rank in 0..plan.ranks() {
                let ratio = slow.compute_s[rank] / without.step.compute_s[rank];
                assert!((ratio - if rank == 9 { 1.3 } else { 1.0 }).abs() < 1e-9, "{rank} {ratio}");
                let (own, waited) = (slow.compute_s[rank] + slow.data_s[rank], slow.comm_s[rank]);
                assert!(slow.checkpoint || (own + waited - slow.total_s).abs() < 1e-9);
            }
            assert!((slow.without[0].1 - clean_s).abs() < 1e-9);
            assert!(slow.work_s >= clean_s);
        }
    }

    #[test]
    fn noise_is_the_regimes() {
        for (regime, want) in [(Regime::A, 0.004), (Regime::B, 0.11), (Regime::C, 0.03)] {
            let plan =
                (0..).map(|seed| plan(seed, regime)).find(|p| p.stages == 1 && p.ranks() >= 64).unwrap();
            let order: Vec<usize> = (0..plan.nodes).collect();
            let mut steps = Steps::new(&plan);
            let mut rows = vec![Vec::new(); plan.ranks()];
            for step in 0..200 {
                let it = steps.run(&plan, &[], &order, f64::from(step) * plan.step_s);
                let middle = median(&mut it.compute_s.clone()).unwrap();
                for (rank, row) in rows.iter_mut().enumerate() {
                    row.push((it.compute_s[rank] / middle).ln());
                }
            }
            let got = peer_noise(&mut rows);
            assert!((got / want - 1.0).abs() < 0.15, "{regime:?}: {got}");
        }
    }
}
