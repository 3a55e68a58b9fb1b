//! Pairing of a job trace with a demand trace, on a cluster sized for both.

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde::Serialize;
use tidegate_autopilot::state::ScalingCurve;
use tidegate_sim::{
    ClusterSpec, DAY_US, NodeSpec, ServiceSpec, TeamSpec,
    scenario::{Arrival, DrawnTraits, Scenario},
};

use super::{DemandTrace, JobTrace, TraceError};

const NODE_GPUS: u32 = 8;
/// The service's pool.
const SERVE: usize = 1;

/// Size of the cluster, and the parts of the traces that are simulated.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Shape {
    /// Days of arrivals; the window is drawn for each seed.
    pub days: i64,
    /// Days of demand before those, which forecasts have seen.
    pub history_days: i64,
    /// Nodes for jobs; `None`: as many as the trace's mean load fills to `load_ppm`.
    pub train: Option<usize>,
    /// Nodes of 8 GPUs for the service; `None`: as many GPUs as for jobs.
    pub serve: Option<usize>,
    /// Mean work of the whole trace relative to the GPUs for jobs.
    pub load_ppm: u32,
    /// Maximum demand of the whole trace relative to the service's GPUs.
    pub peak_ppm: u32,
    /// Price of a GPU-hour, millionths of the currency; `None` if unknown.
    pub price_micros: Option<i64>,
}

impl Default for Shape {
    fn default() -> Self {
        Self {
            days: 7,
            history_days: 0,
            train: None,
            serve: None,
            load_ppm: 900_000,
            peak_ppm: 900_000,
            price_micros: None,
        }
    }
}

/// Jobs and a service, and the cluster for both.
#[derive(Debug, Clone)]
pub struct Pairing {
    jobs: JobTrace,
    demand: Option<DemandTrace>,
    spec: ClusterSpec,
    shape: Shape,
    peak_gpus: u32,
}

/// Provenance of a pairing, for reports.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Provenance {
    /// File of the jobs, and its rows by outcome.
    pub jobs: &'static str,
    /// See `jobs`.
    pub job_rows: super::RowCounts,
    /// File of the demand, and its rows by outcome; `None` without a service.
    pub demand: Option<&'static str>,
    /// See `demand`.
    pub demand_rows: Option<super::RowCounts>,
    /// Nodes and GPUs for jobs and for the service.
    pub train_nodes: usize,
    /// See `train_nodes`.
    pub train_gpus: u32,
    /// See `train_nodes`.
    pub serve_nodes: usize,
    /// See `train_nodes`.
    pub serve_gpus: u32,
    /// Maximum demand of the service, GPUs.
    pub peak_gpus: u32,
    /// Days of the window.
    pub days: i64,
    /// Days of demand before it that forecasts have seen.
    pub history_days: i64,
    /// Scaling curves of elastic jobs.
    pub curves: usize,
}

impl Pairing {
    /// A cluster for a trace of jobs and optionally one of demand. Where the trace has node sizes,
    /// nodes are sampled evenly from its list; otherwise they have 8 GPUs. Without a service, teams
    /// have their quotas, and the cluster has as many GPUs as the quotas unless a size is given.
    ///
    /// # Errors
    /// [`TraceError::Shape`] if the trace is shorter than the window or a share is out of range.
    pub fn new(
        jobs: JobTrace,
        demand: Option<DemandTrace>,
        curves: Vec<ScalingCurve>,
        shape: Shape,
    ) -> Result<Self, TraceError> {
        if shape.days < 1 || shape.days * DAY_US > jobs.length_us {
            let what = format!(
                "{} has {:.1} days of jobs; ask for 1 to {} days",
                jobs.file,
                jobs.length_us as f64 / DAY_US as f64,
                jobs.length_us / DAY_US
            );
            return Err(TraceError::Shape { what });
        }
        if shape.load_ppm == 0 || shape.peak_ppm > 1_000_000 {
            let what = "the load must be above 0, and the peak at most all of the service's GPUs".into();
            return Err(TraceError::Shape { what });
        }
        if let Some(demand) = demand.as_ref().filter(|_| shape.history_days != 0) {
            let all_us = shape.history_days.saturating_add(shape.days).saturating_mul(DAY_US);
            if shape.history_days < 0 || all_us > demand.length_us() {
                let what = format!(
                    "{} has {:.1} days of demand, but {} days of history before {} days are needed; ask for fewer",
                    demand.file,
                    demand.length_us() as f64 / DAY_US as f64,
                    shape.history_days,
                    shape.days
                );
                return Err(TraceError::Shape { what });
            }
        }
        let train = train_nodes(&jobs, demand.is_none(), &shape);
        let train_gpus: u32 = train.iter().sum();
        let serve = match &demand {
            Some(_) => shape.serve.unwrap_or(train_gpus.div_ceil(NODE_GPUS) as usize),
            None => 0,
        };
        let mut spec = ClusterSpec::uniform(if demand.is_some() { &[0, 0] } else { &[0] }, NODE_GPUS);
        let sizes = train.into_iter().map(|gpus| (0, gpus));
        let sizes = sizes.chain(std::iter::repeat_n((SERVE, NODE_GPUS), serve));
        let node = |(i, (pool, gpus)): (usize, (usize, u32))| NodeSpec {
            name: format!("n{i:05}"),
            model: 0,
            gpus,
            rack: (i / 16) as u32,
            pool,
        };
        spec.nodes = sizes.enumerate().map(node).collect();
        if !curves.is_empty() {
            spec.curves = curves;
        }
        let quota = |(name, gpus): (&String, &u32)| TeamSpec {
            name: name.clone(),
            pool: 0,
            quota_gpus: Some(*gpus).filter(|_| demand.is_none()),
        };
        spec.teams.extend(jobs.quotas.iter().map(quota));
        let peak_gpus = (u64::from(spec.pool_gpus(SERVE)) * u64::from(shape.peak_ppm) / 1_000_000) as u32;
        Ok(Self { jobs, demand, spec, shape, peak_gpus })
    }

    /// Input of a simulation for a seed: windows of whole days of both traces, with what they lack
    /// drawn. A demand trace no longer than the window is rotated by whole days instead, except
    /// where it has earlier days that forecasts have seen.
    ///
    /// # Panics
    /// Never, because the shape was checked.
    pub fn setting(&self, seed: u64) -> Scenario {
        let mut rng = ChaCha8Rng::seed_from_u64(seed ^ 0x71de_0ff5);
        let span_us = self.shape.days * DAY_US;
        let mut from_us =
            |length_us: i64| rng.random_range(0..=((length_us - span_us) / DAY_US).max(0)) * DAY_US;
        let jobs_from_us = from_us(self.jobs.length_us);
        let past_us = self.shape.history_days * DAY_US;
        let (mut services, mut past_gpus) = (Vec::new(), Vec::new());
        if let Some(demand) = &self.demand {
            // A trace that is too short can start on each of its days.
            let length_us = demand.length_us() - past_us;
            let turns = past_us == 0 && length_us < span_us + DAY_US;
            let room_us = if turns { length_us - DAY_US + span_us } else { length_us };
            let from_us = past_us + from_us(room_us);
            let demand_gpus = demand.window(from_us, span_us, self.peak_gpus);
            services.push(ServiceSpec { pool: SERVE, demand_gpus, step_us: demand.step_us });
            past_gpus.push(demand.window(from_us - past_us, past_us, self.peak_gpus));
        }
        let arrivals = window(&self.jobs.arrivals, jobs_from_us, span_us);
        // For quotas alone the question is which team waits for which; the trace's run times
        // include the cost of failures.
        let faults_ppm = if self.demand.is_some() { DrawnTraits::default().faults_ppm } else { 0 };
        let unknowns = DrawnTraits { faults_ppm, ..DrawnTraits::default() };
        let setting = Scenario::from_trace(self.spec.clone(), &arrivals, services, &unknowns, span_us, seed);
        Scenario { past_gpus, price_micros: self.shape.price_micros, ..setting }
    }

    /// Provenance.
    pub fn about(&self) -> Provenance {
        let nodes = |pool| self.spec.nodes.iter().filter(|n| n.pool == pool).count();
        Provenance {
            jobs: self.jobs.file,
            job_rows: self.jobs.rows.clone(),
            demand: self.demand.as_ref().map(|d| d.file),
            demand_rows: self.demand.as_ref().map(|d| d.rows.clone()),
            train_nodes: nodes(0),
            train_gpus: self.spec.pool_gpus(0),
            serve_nodes: nodes(SERVE),
            serve_gpus: self.spec.pool_gpus(SERVE),
            peak_gpus: self.peak_gpus,
            days: self.shape.days,
            history_days: self.shape.history_days,
            curves: self.spec.curves.len(),
        }
    }
}

/// Jobs of `[from_us, from_us + span_us)`, with times from its start. A job that would still run
/// then, had it started at its submission, arrives at the start with the rest of its work, because
/// a cluster is not empty when observation begins.
fn window(arrivals: &[Arrival], from_us: i64, span_us: i64) -> Vec<Arrival> {
    let shifted = |a: &Arrival| {
        let submit_us = a.submit_us - from_us;
        let left_us = a.work_us + submit_us.min(0);
        (left_us > 0 && submit_us < span_us).then(|| Arrival {
            submit_us: submit_us.max(0),
            work_us: left_us,
            ..a.clone()
        })
    };
    arrivals.iter().filter_map(shifted).collect()
}

/// GPUs of each node for jobs; as many as all quotas where there is no service.
fn train_nodes(jobs: &JobTrace, alone: bool, shape: &Shape) -> Vec<u32> {
    let quotas: u32 = jobs.quotas.values().filter(|_| alone).sum();
    let wanted = match shape.train {
        None if quotas > 0 => quotas,
        None => (jobs.load_gpus() * 1e6 / f64::from(shape.load_ppm)).ceil() as u32,
        Some(nodes) => nodes as u32 * NODE_GPUS,
    };
    let largest = jobs.node_gpus.iter().copied().max().unwrap_or(NODE_GPUS);
    let listed = &jobs.node_gpus;
    let all: u32 = listed.iter().sum();
    if all <= wanted.max(largest) {
        return vec![NODE_GPUS; wanted.div_ceil(NODE_GPUS).max(1) as usize];
    }
    // Every n-th of the list, which keeps the mix.
    let count = (u64::from(wanted) * listed.len() as u64).div_ceil(u64::from(all)).max(1) as usize;
    (0..count).map(|i| listed[i * listed.len() / count]).collect()
}
