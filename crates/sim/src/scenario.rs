//! Scenario: the cluster, jobs, demand and faults that schedulers are compared on.

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
    /// Submission, µs from the beginning of the measured time.
    pub submit_us: i64,
    /// Run time, µs.
    pub work_us: i64,
    /// GPUs it asked for.
    pub gpus: u32,
    /// Its team or virtual cluster.
    pub team: String,
    /// What else the trace knows of it.
    pub terms: KnownTraits,
}

/// What a trace may know of a job beside its size and length. Unknown traits are drawn or take
/// defaults.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct KnownTraits {
    /// Run time stated by the user, µs.
    pub estimate_us: Option<i64>,
    /// Larger goes first.
    pub priority: Option<i32>,
    /// Required GPU model, index in [`ClusterSpec::models`].
    pub model: Option<u16>,
    /// Minimum and maximum GPUs it ran on; if given, the job is elastic between them.
    pub sizes: Option<(u32, u32)>,
    /// It was preempted and came back, so it may run on borrowed nodes.
    pub was_preempted: bool,
}

/// Traits that traces do not contain, drawn for each seed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DrawnTraits {
    /// Share of jobs of `elastic_from` GPUs and more that are elastic, between half and twice their
    /// size.
    pub elastic_ppm: u32,
    /// Smallest size of elastic jobs, GPUs.
    pub elastic_from: u32,
    /// Share of jobs that write checkpoints and may run on borrowed nodes.
    pub loan_ppm: u32,
    /// Share of those that write one on notice; the others lose work.
    pub notice_ppm: u32,
    /// Checkpoint interval: log-uniform between these two.
    pub checkpoint_every_us: (i64, i64),
    /// Duration of a checkpoint.
    pub checkpoint_cost_us: i64,
    /// From start to the first step.
    pub restart_us: i64,
    /// Rate of node faults relative to the published one; 0 is none.
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

/// The cluster, jobs, demand and faults of one run.
#[derive(Debug, Clone)]
pub struct Scenario {
    /// The cluster.
    pub spec: ClusterSpec,
    /// The jobs, sorted by submission.
    pub jobs: Vec<JobSpec>,
    /// The services with their demand.
    pub services: Vec<ServiceSpec>,
    /// Demand of each service in the steps before the beginning, oldest first: the history of the
    /// forecast. Services beyond its end have no history.
    pub past_gpus: Vec<Vec<u32>>,
    /// Failures of nodes.
    pub faults: Vec<Fault>,
    /// Measured time.
    pub span_us: i64,
    /// Time after it in which jobs may finish.
    pub drain_us: i64,
    /// Price of a GPU-hour, millionths of the currency; `None` if unknown.
    pub price_micros: Option<i64>,
}

impl Scenario {
    /// A scenario of traced jobs and services' demand.
    ///
    /// Jobs that pool 0 could never hold, or that took no time, are left out. Traits that the trace
    /// lacks ([`KnownTraits`]) are drawn from the seed: which jobs are elastic and by which curve
    /// of `spec`, which may run on borrowed nodes, and how often they write checkpoints. Teams are
    /// those of the trace, all in pool 0, with the quotas of equally named teams in `spec`.
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

    /// Without faults, history and price; jobs may take as long again to finish.
    fn bare(spec: ClusterSpec, jobs: Vec<JobSpec>, services: Vec<ServiceSpec>, span_us: i64) -> Self {
        let (past_gpus, faults) = (Vec::new(), Vec::new());
        Self { spec, jobs, services, past_gpus, faults, span_us, drain_us: span_us, price_micros: None }
    }

    /// Turns the first `past_us` of the demand into history for forecasts.
    pub fn after(mut self, past_us: i64) -> Self {
        let cut = |service: &mut ServiceSpec| {
            let steps = usize::try_from(past_us / service.step_us.max(1)).unwrap_or(0);
            let rest = service.demand_gpus.split_off(steps.min(service.demand_gpus.len()));
            std::mem::replace(&mut service.demand_gpus, rest)
        };
        self.past_gpus = self.services.iter_mut().map(cut).collect();
        self
    }

    /// Synthetic jobs and load on `train` and `serve` nodes of 8 GPUs.
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

/// Draws a curve by which half of the GPUs do at most three quarters of the work: users do not ask
/// for GPUs that gain nothing. Any curve, if there is no such one.
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
