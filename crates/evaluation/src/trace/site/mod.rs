//! A site's own history for the simulator: jobs, nodes and demand in the tables, within a period.
//!
//! Assumptions:
//! - **Jobs** are submitted as logged and ask for the logged GPUs (fractions count as one). Their
//!   work is the GPU time held in all runs over that size. It includes the cost of failures and
//!   preemptions, so no further failures are drawn. Jobs running at the start of the period are
//!   submitted then, with the rest of their work, before the jobs that wait; waits count from
//!   there.
//! - **Jobs that have not ended** at the end of the log run as long as another job of their size
//!   that ran at least as long, drawn by the seed. Jobs that left the queue without a start are
//!   dropped, because their length is unknown.
//! - **Priority** is the least logged (it grows with age), the **time limit** the user's. A resized
//!   job can be resized, between its sizes, by Amdahl's law; a preempted job that came back may run
//!   on borrowed nodes. For all others this is drawn, as are checkpoints, which the log does not
//!   show.
//! - **Nodes** are those usable at any time of the period, for all of it. If none are logged: nodes
//!   of 8 GPUs, enough for the most GPUs held at once.
//! - **Pools** named as serving are each a pool with a service; its demand per ten minutes is the
//!   maximum of what was held and waited for. All others form one pool for jobs; access to them is
//!   not checked. In a cluster with several GPU models, a job needs the one it ran on.
//! - **Before** the period, demand is that of the hourly tables, which forecasts have seen.
//! - A **quota** counts only if the team kept to it.

mod demand;
mod jobs;
mod rows;
#[cfg(test)]
mod tests;

use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use serde::Serialize;
use tidegate_sim::{
    ClusterSpec, HOUR_US, NodeSpec, PoolSpec, ServiceSpec, TeamSpec, amdahl,
    scenario::{DrawnTraits, Scenario},
};

pub use demand::DemandSource;
pub use jobs::Recorded;
pub use rows::{Attempt, History, Hour, Node, Quota, Sample};

use self::demand::STEP_US;
use self::jobs::{Jobs, whole};
use super::{RowCounts, TraceError};

const NODE_GPUS: u32 = 8;
/// Serial share of jobs without a known curve, ppm.
const SERIAL_PPM: u32 = 20_000;

/// Options beside the history.
#[derive(Debug, Clone, Default)]
pub struct SiteOptions {
    /// Pools that serve.
    pub serves: Vec<String>,
    /// Nodes of 8 GPUs for jobs, instead of the logged ones.
    pub train: Option<usize>,
    /// Price of a GPU-hour, instead of the logged one, millionths of the currency.
    pub price_micros: Option<i64>,
}

/// Source of the nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum CapacitySource {
    /// The log.
    Log,
    /// The most GPUs held or needed at once.
    Peak,
    /// The options.
    Asked,
}

/// A serving pool.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Service {
    /// Name.
    pub pool: String,
    /// Its nodes and their GPUs.
    pub nodes: usize,
    /// See `nodes`.
    pub gpus: u32,
    /// Source of the nodes.
    pub nodes_from: CapacitySource,
    /// Source of its demand.
    pub demand_from: DemandSource,
    /// Maximum demand, GPUs.
    pub peak_gpus: u32,
    /// Hours of known demand before the period, which forecasts have seen.
    pub seen_hours: usize,
}

/// Provenance of a simulation, for reports.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Provenance {
    /// The cluster.
    pub cluster: String,
    /// Start and end of the period, µs since 1970.
    pub from_us: i64,
    /// See `from_us`.
    pub to_us: i64,
    /// Jobs of the period by outcome.
    pub job_rows: RowCounts,
    /// Usable jobs running at the start of the period, and waiting then.
    pub ran_before: usize,
    /// See `ran_before`.
    pub waited_before: usize,
    /// Usable jobs that have not ended.
    pub open: usize,
    /// Nodes for jobs, and their GPUs.
    pub train_nodes: usize,
    /// See `train_nodes`.
    pub train_gpus: u32,
    /// Source of the nodes.
    pub nodes_from: CapacitySource,
    /// Serving pools.
    pub services: Vec<Service>,
    /// Teams with a quota that counts.
    pub quotas: usize,
    /// Teams whose quota was exceeded.
    pub exceeded_quotas: usize,
    /// What really happened.
    pub recorded: Recorded,
    /// Price of a GPU-hour, millionths of the currency; `None` if unknown.
    pub price_micros: Option<i64>,
}

/// A history prepared for the simulator.
#[derive(Debug)]
pub struct Site {
    jobs: Jobs,
    spec: ClusterSpec,
    services: Vec<ServiceSpec>,
    past_gpus: Vec<Vec<u32>>,
    about: Provenance,
}

impl Site {
    /// Prepares a history.
    ///
    /// # Errors
    /// [`TraceError::Shape`] if there is no usable job, or a serving pool has no demand.
    pub fn new(history: &History, wanted: &SiteOptions) -> Result<Self, TraceError> {
        let serves = |pool: &str| wanted.serves.iter().position(|name| name == pool);
        let mut spec = ClusterSpec {
            name: history.cluster.clone(),
            epoch_us: history.from_us,
            ..ClusterSpec::uniform(&[], NODE_GPUS)
        };
        spec.models = models(history);
        let (train, served) = nodes(history, wanted, &spec.models);
        let in_train = |model: &str, gpus: u32| {
            let model = spec.models.iter().position(|name| name == model)? as u16;
            let there: u32 = train.iter().filter(|n| n.model == model).map(|n| n.gpus).sum();
            (spec.models.len() > 1 && there >= gpus).then_some(model)
        };
        let rename = |team: &str| match serves(team) {
            // A service owns the name of its pool.
            Some(_) => format!("{team} (jobs)"),
            None => team.to_owned(),
        };
        let is_taken = |a: &Attempt| a.pool.as_deref().and_then(serves).is_none();
        let jobs = Jobs::from_history(history, &is_taken, &in_train, &rename);
        let mut about = Provenance {
            cluster: history.cluster.clone(),
            from_us: history.from_us,
            to_us: history.to_us,
            job_rows: jobs.rows.clone(),
            ran_before: jobs.ran_before,
            waited_before: jobs.waited_before,
            open: jobs.open(),
            train_nodes: 0,
            train_gpus: 0,
            nodes_from: if wanted.train.is_some() { CapacitySource::Asked } else { CapacitySource::Log },
            services: Vec::new(),
            quotas: 0,
            exceeded_quotas: 0,
            recorded: jobs.recorded,
            price_micros: wanted.price_micros.or(history.price_micros),
        };
        if jobs.recorded_jobs.is_empty() {
            let what = match jobs.rows == RowCounts::default() {
                true => "the log has no jobs in this period outside the serving pools".into(),
                false => format!("none of the jobs in this period can be used ({})", jobs.rows),
            };
            return Err(TraceError::Shape { what });
        }
        spec.pools = vec![PoolSpec { name: train_pool(history, wanted), floor_gpus: 0 }];
        spec.nodes = train;
        if spec.nodes.is_empty() {
            about.nodes_from = CapacitySource::Peak;
            // At least as many as the largest job needs, which may have waited all the time.
            let largest = jobs.recorded_jobs.iter().map(|entry| entry.arrival.gpus).max().unwrap_or(0);
            add_nodes(&mut spec, 0, jobs.recorded.most_gpus.max(largest));
        }
        (about.train_nodes, about.train_gpus) = (spec.nodes.len(), spec.pool_gpus(0));
        let (mut services, mut past_gpus) = (Vec::new(), Vec::new());
        for (pool, nodes) in wanted.serves.iter().zip(served) {
            let (service, summary) = serve(history, &mut spec, pool, nodes)?;
            services.push(service);
            past_gpus.push(demand::before(history, pool));
            about.services.push(summary);
        }
        spec.curves = vec![amdahl(SERIAL_PPM, about.train_gpus)];
        spec.teams.clear();
        for quota in &history.quotas {
            let (name, gpus) = (rename(&quota.owner), whole(quota.gpus_milli));
            let Some(most) = jobs.most_of_teams.get(&name) else { continue };
            let asked = jobs
                .recorded_jobs
                .iter()
                .filter(|entry| entry.arrival.team == name)
                .map(|entry| entry.arrival.gpus)
                .max();
            if *most <= gpus && asked <= Some(gpus) {
                about.quotas += 1;
                spec.teams.push(TeamSpec { name, pool: 0, quota_gpus: Some(gpus) });
            } else {
                about.exceeded_quotas += 1;
            }
        }
        let too_large =
            jobs.recorded_jobs.iter().filter(|entry| entry.arrival.gpus > about.train_gpus).count();
        about.job_rows.reclassify("used", "larger than all nodes for jobs together", too_large);
        Ok(Self { jobs, spec, services, past_gpus, about })
    }

    /// Input of a simulation for a seed: the same jobs, nodes and demand, with what the log lacks
    /// drawn.
    pub fn setting(&self, seed: u64) -> Scenario {
        let mut rng = ChaCha8Rng::seed_from_u64(seed ^ 0x0517_e105);
        let arrivals = self.jobs.arrivals(&mut rng);
        let unknowns = DrawnTraits { faults_ppm: 0, ..DrawnTraits::default() };
        let span_us = self.about.to_us - self.about.from_us;
        let setting = Scenario::from_trace(
            self.spec.clone(),
            &arrivals,
            self.services.clone(),
            &unknowns,
            span_us,
            seed,
        );
        Scenario { past_gpus: self.past_gpus.clone(), price_micros: self.about.price_micros, ..setting }
    }

    /// Provenance.
    pub fn about(&self) -> &Provenance {
        &self.about
    }
}

/// GPU models of the nodes, by name; one nameless model if none is known.
fn models(history: &History) -> Vec<String> {
    let mut models: Vec<String> = history.nodes.iter().filter_map(|n| n.gpu_model.clone()).collect();
    models.sort_unstable();
    models.dedup();
    if models.is_empty() || history.nodes.iter().any(|n| n.gpu_model.is_none()) {
        models.push("unknown".into());
    }
    models
}

/// The logged nodes, for jobs and for each serving pool. Fractions of a node's GPU are ignored.
fn nodes(history: &History, wanted: &SiteOptions, models: &[String]) -> (Vec<NodeSpec>, Vec<Vec<NodeSpec>>) {
    let mut train = Vec::new();
    let mut served = vec![Vec::new(); wanted.serves.len()];
    let mut listed: Vec<&Node> = history.nodes.iter().filter(|n| n.gpus_milli >= 1_000).collect();
    listed.sort_by(|a, b| a.node.cmp(&b.node));
    for (i, node) in listed.into_iter().enumerate() {
        let pools = node.pool.as_deref().unwrap_or("").split(',');
        let serves = pools.filter_map(|pool| wanted.serves.iter().position(|name| name == pool)).next();
        let model = node.gpu_model.as_deref().unwrap_or("unknown");
        let spec = NodeSpec {
            name: node.node.clone(),
            model: models.iter().position(|name| name == model).unwrap_or(0) as u16,
            gpus: (node.gpus_milli / 1_000) as u32,
            rack: (i / 16) as u32,
            pool: serves.map_or(0, |at| at + 1),
        };
        match serves {
            Some(at) => served[at].push(spec),
            None => train.push(spec),
        }
    }
    if let Some(count) = wanted.train {
        let node = |i| NodeSpec {
            name: format!("asked-{i:05}"),
            model: 0,
            gpus: NODE_GPUS,
            rack: (i / 16) as u32,
            pool: 0,
        };
        train = (0..count).map(node).collect();
    }
    (train, served)
}

/// Adds nodes of 8 GPUs with at least `gpus` in all.
fn add_nodes(spec: &mut ClusterSpec, pool: usize, gpus: u32) {
    let there = spec.nodes.len();
    let node = |i: usize| NodeSpec {
        name: format!("n{i:05}"),
        model: 0,
        gpus: NODE_GPUS,
        rack: (i / 16) as u32,
        pool,
    };
    spec.nodes.extend((there..there + gpus.div_ceil(NODE_GPUS).max(1) as usize).map(node));
}

/// Name of the pool for jobs; `train` if there are several.
fn train_pool(history: &History, wanted: &SiteOptions) -> String {
    let mut pools: Vec<&str> = history.attempts.iter().filter_map(|a| a.pool.as_deref()).collect();
    pools.retain(|pool| !wanted.serves.iter().any(|name| name == pool));
    pools.sort_unstable();
    pools.dedup();
    match pools[..] {
        [pool] => pool.to_owned(),
        _ => "train".into(),
    }
}

/// Adds a serving pool.
fn serve(
    history: &History,
    spec: &mut ClusterSpec,
    pool: &str,
    nodes: Vec<NodeSpec>,
) -> Result<(ServiceSpec, Service), TraceError> {
    let (demand_from, demand_gpus) = demand::demand(history, pool).ok_or_else(|| TraceError::Shape {
        what: format!("serving pool {pool} has neither jobs nor samples in this period; name another pool, or leave it out"),
    })?;
    let (at, peak_gpus) = (spec.pools.len(), demand_gpus.iter().copied().max().unwrap_or(0));
    spec.pools.push(PoolSpec { name: pool.to_owned(), floor_gpus: 0 });
    let nodes_from = if nodes.is_empty() { CapacitySource::Peak } else { CapacitySource::Log };
    match nodes.is_empty() {
        true => add_nodes(spec, at, peak_gpus),
        false => spec.nodes.extend(nodes),
    }
    let service = Service {
        pool: pool.to_owned(),
        nodes: spec.nodes.iter().filter(|n| n.pool == at).count(),
        gpus: spec.pool_gpus(at),
        nodes_from,
        demand_from,
        peak_gpus,
        seen_hours: demand::before(history, pool).len() * STEP_US as usize / HOUR_US as usize,
    };
    Ok((ServiceSpec { pool: at, demand_gpus, step_us: demand::STEP_US }, service))
}
