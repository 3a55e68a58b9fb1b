//! What a policy is tried on: a cluster with its jobs, demand and faults.

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use tidegate_autopilot::state::ScalingCurve;

use crate::{
    Checkpoint, ClusterSpec, Elastic, HOUR_US, JobSpec, PPM, SECOND_US, ServiceSpec, TeamSpec,
    generate::{self, Arrivals, Fault, Load},
    padded_estimate_us,
};

/// One job of a trace.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Arrival {
    /// When it was submitted, µs from the beginning of the time under test.
    pub submit_us: i64,
    /// How long it ran, µs.
    pub work_us: i64,
    pub gpus: u32,
    /// Its team or virtual cluster.
    pub team: String,
    /// What else is known of it.
    pub terms: KnownTraits,
}

/// What a trace may tell of a job beside its size and length. What is not known is drawn, or as
/// everybody's.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct KnownTraits {
    /// Run time that its user stated, µs.
    pub estimate_us: Option<i64>,
    /// Larger goes first.
    pub priority: Option<i32>,
    /// GPU model it must have, place in [`ClusterSpec::models`].
    pub model: Option<u16>,
    /// The least and the most GPUs that it was seen to run with, its size between them: it can be
    /// resized.
    pub sizes: Option<(u32, u32)>,
    /// It had to go for others and came back: it may run on borrowed nodes.
    pub was_preempted: bool,
}

/// What traces do not tell and is drawn for each seed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DrawnTraits {
    /// Share of jobs of `elastic_from` GPUs and more that are elastic, between half and twice their
    /// size.
    pub elastic_ppm: u32,
    pub elastic_from: u32,
    /// Share of jobs that write checkpoints and may run on borrowed nodes.
    pub loan_ppm: u32,
    /// Share of those that write one when they are told that they have to go; from the others work
    /// is lost.
    pub notice_ppm: u32,
    /// Between checkpoints: each job's is drawn from between these two, by its logarithm.
    pub checkpoint_every_us: (i64, i64),
    /// How long a checkpoint takes.
    pub checkpoint_cost_us: i64,
    /// From start to the first step.
    pub restart_us: i64,
    /// Node faults against those of the trace they are made after; 0 is none.
    pub faults_ppm: u32,
}

impl Default for DrawnTraits {
    fn default() -> Self {
        Self {
            elastic_ppm: 300_000,
            elastic_from: 8,
            loan_ppm: 800_000,
            notice_ppm: 700_000,
            checkpoint_every_us: (HOUR_US / 4, HOUR_US),
            checkpoint_cost_us: 20 * SECOND_US,
            restart_us: 30 * SECOND_US,
            faults_ppm: PPM,
        }
    }
}

/// What a policy is tried on.
#[derive(Debug, Clone)]
pub struct Scenario {
    pub spec: ClusterSpec,
    pub jobs: Vec<JobSpec>,
    pub services: Vec<ServiceSpec>,
    /// Demand of each service, in order, in the steps before the beginning, the last one right
    /// before it: what a forecast has seen. Of services beyond its end nobody has seen anything.
    pub past_gpus: Vec<Vec<u32>>,
    pub faults: Vec<Fault>,
    /// Time under test.
    pub span_us: i64,
    /// How long jobs may take beyond it until all are done.
    pub drain_us: i64,
    /// What a GPU costs an hour, millionths of the currency; `None` is not known.
    pub price_micros: Option<i64>,
}

impl Scenario {
    /// A trace of jobs beside services' demand. Jobs that the nodes of pool 0 could never hold, or
    /// that took no time, are left out; what the trace does not tell ([`Terms`]) is drawn from the
    /// seed: which jobs are elastic and by which of the curves of `spec`, which may run on borrowed
    /// nodes, and how often they write checkpoints. Teams are those of the trace, all in pool 0,
    /// with the quotas of those of the same names in `spec`.
    pub fn from_trace(
        spec: ClusterSpec,
        arrivals: &[Arrival],
        services: Vec<ServiceSpec>,
        unknowns: &DrawnTraits,
        span_us: i64,
        seed: u64,
    ) -> Self {
        let mut spec = spec;
        let most = spec.pool_gpus(0);
        let fits = |a: &&Arrival| {
            a.gpus > 0 && a.gpus <= most && a.work_us > 0 && (0..span_us).contains(&a.submit_us)
        };
        let taken: Vec<&Arrival> = arrivals.iter().filter(fits).collect();
        let mut teams: Vec<&String> = taken.iter().map(|a| &a.team).collect();
        teams.sort_unstable();
        teams.dedup();
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let mut jobs: Vec<JobSpec> = taken
            .iter()
            .map(|a| {
                let team = teams.binary_search(&&a.team).unwrap_or(0);
                draw(a, team, unknowns, (most, &spec.curves), &mut rng)
            })
            .collect();
        jobs.sort_by_key(|j| j.submit_us);
        let quota = |name: &str| spec.teams.iter().find(|t| t.name == name).and_then(|t| t.quota_gpus);
        let team = |name: &&String| TeamSpec { name: (*name).clone(), pool: 0, quota_gpus: quota(name) };
        let named: Vec<TeamSpec> = teams.iter().map(team).collect();
        if !named.is_empty() {
            spec.teams = named;
        }
        let faults = generate::faults(spec.nodes.len() as u32, span_us, unknowns.faults_ppm, seed);
        Self { faults, ..Self::bare(spec, jobs, services, span_us) }
    }

    /// Without faults, a past and a price, and as long again for jobs to end.
    fn bare(spec: ClusterSpec, jobs: Vec<JobSpec>, services: Vec<ServiceSpec>, span_us: i64) -> Self {
        let (past_gpus, faults) = (Vec::new(), Vec::new());
        Self { spec, jobs, services, past_gpus, faults, span_us, drain_us: span_us, price_micros: None }
    }

    /// The first `past_us` of the demand are before the beginning: forecasts have seen them, and
    /// what is tried begins behind them.
    pub fn after(mut self, past_us: i64) -> Self {
        let cut = |service: &mut ServiceSpec| {
            let steps = usize::try_from(past_us / service.step_us.max(1)).unwrap_or(0);
            let rest = service.demand_gpus.split_off(steps.min(service.demand_gpus.len()));
            std::mem::replace(&mut service.demand_gpus, rest)
        };
        self.past_gpus = self.services.iter_mut().map(cut).collect();
        self
    }

    /// Made-up jobs and load on `train` and `serve` nodes of 8 GPUs, for when there is no trace.
    pub fn synthetic(train: usize, serve: usize, arrivals: &Arrivals, load: &Load, seed: u64) -> Self {
        let spec = ClusterSpec::uniform(&[train, serve], 8);
        let most = spec.pool_gpus(0);
        let mut jobs = generate::arrivals(arrivals, seed);
        jobs.retain(|j| j.gpus <= most);
        let faults = generate::faults(spec.nodes.len() as u32, arrivals.span_us, PPM, seed);
        let services = vec![generate::load(load, 1, seed)];
        let span_us = arrivals.span_us;
        Self { faults, ..Self::bare(spec, jobs, services, span_us) }
    }
}

/// One of the curves by which half of the GPUs do at most three quarters of the work: nobody asks
/// for GPUs that gain him nothing. Any, where there is none of them.
fn draw_curve(gpus: u32, curves: &[ScalingCurve], rng: &mut ChaCha8Rng) -> usize {
    let pays = |i: &usize| curves[*i].rate_ppm(gpus / 2) * 4 <= curves[*i].rate_ppm(gpus) * 3;
    let paying: Vec<usize> = (0..curves.len()).filter(pays).collect();
    match paying.len() {
        0 => rng.random_range(0..curves.len().max(1)),
        n => paying[rng.random_range(0..n)],
    }
}

fn draw(
    a: &Arrival,
    team: usize,
    unknowns: &DrawnTraits,
    (most, curves): (u32, &[ScalingCurve]),
    rng: &mut ChaCha8Rng,
) -> JobSpec {
    let loan = rng.random_range(0..PPM) < unknowns.loan_ppm || a.terms.was_preempted;
    let elastic = a.gpus >= unknowns.elastic_from.max(2) && rng.random_range(0..PPM) < unknowns.elastic_ppm;
    let (least_us, most_us) = unknowns.checkpoint_every_us;
    let every_us = (least_us as f64 * (most_us as f64 / least_us as f64).powf(rng.random())) as i64;
    let cost_us = unknowns.checkpoint_cost_us;
    let on_notice = rng.random_range(0..PPM) < unknowns.notice_ppm;
    let curve = draw_curve(a.gpus, curves, rng);
    let drawn = elastic.then_some((a.gpus / 2, (a.gpus * 2).min(most)));
    let elastic = a.terms.sizes.or(drawn).map(|(min_gpus, max_gpus)| Elastic { min_gpus, max_gpus, curve });
    JobSpec {
        estimate_us: a.terms.estimate_us.unwrap_or_else(|| padded_estimate_us(a.work_us)),
        team,
        model: a.terms.model,
        priority: a.terms.priority.unwrap_or(0),
        loan,
        elastic,
        checkpoint: (loan || elastic.is_some()).then_some(Checkpoint { every_us, cost_us, on_notice }),
        restart_us: unknowns.restart_us,
        ..JobSpec::plain(a.submit_us, a.gpus, a.work_us)
    }
}
