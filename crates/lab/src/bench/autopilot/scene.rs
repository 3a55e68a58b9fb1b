//! State of a large synthetic cluster: a tenth of the nodes serve and are lent out, jobs run on
//! all, some jobs wait, and one node in two hundred is bad.

use tidegate_autopilot::forecast::{DemandForecast, Series};
use tidegate_autopilot::state::{
    Checkpoint, ClusterState, CurvePoint, GrowBy, Health, Job, JobKind, JobState, Loan, Node, NodeState,
    Owner, Pool, ScalingCurve, Share, Writer,
};

/// The present, µs since 1970.
pub const NOW: i64 = 1_800_000_000_000_000;
/// One second in µs.
const S: i64 = 1_000_000;

/// A constant demand forecast.
pub struct Steady;

impl DemandForecast for Steady {
    fn highest_gpus(&self, _: Series<'_>, _: f64, _: i64) -> Option<f64> {
        Some(9_000.0)
    }

    fn typical_gpus(&self, _: Series<'_>, _: f64, _: i64) -> Option<f64> {
        Some(500.0)
    }

    fn coverage(&self, _: Series<'_>) -> Option<f64> {
        Some(0.95)
    }

    fn as_of_us(&self, _: Series<'_>) -> Option<i64> {
        Some(NOW)
    }
}

fn node(pool: &str, at: usize) -> Node {
    let health = Health { bad_ppm: Some(if at % 200 == 7 { 980_000 } else { 10_000 }), ..Health::default() };
    let families = if at % 200 == 7 { vec!["ecc".to_owned(), "xid".to_owned()] } else { Vec::new() };
    Node {
        pool: pool.to_owned(),
        rack: Some(format!("r{}", at / 16)),
        gpu_model: "H100".to_owned(),
        gpus: 8,
        state: NodeState::Up,
        health: Health { families, ..health },
        drain: None,
        do_not_disrupt: false,
    }
}

fn job(at: usize, nodes: &[String], gpus_each: u32) -> Job {
    let points = (0..5).map(|k| CurvePoint { gpus: 8 << k, rate_ppm: 8_000_000 * (17 * k + 10) / 10 });
    let kind = if at.is_multiple_of(2) {
        JobKind::Elastic { min_gpus: 8, max_gpus: 128, sizes: vec![8, 16, 32, 64, 128], grow: GrowBy::Resize }
    } else {
        JobKind::Gang
    };
    let state = if nodes.is_empty() {
        JobState::Pending { since_us: NOW - 7200 * S }
    } else {
        JobState::Running { since_us: NOW - 36_000 * S }
    };
    Job {
        owner: format!("team{}", at % 40),
        pool: "train".to_owned(),
        queue: None,
        priority: (at % 5) as i64,
        kind,
        gpus: 16,
        state,
        placement: nodes.iter().map(|node| (node.clone(), gpus_each)).collect(),
        anchor_node: nodes.first().cloned(),
        restarts: 0,
        loan: None,
        preemptible: !at.is_multiple_of(3),
        preemptions_24h: 0,
        checkpoint: Checkpoint {
            last_us: Some(NOW - (at % 90) as i64 * 60 * S),
            save_ms: Some(30_000),
            restart_ms: Some(120_000),
            requeue_ms: Some(0),
            resize_ms: Some(30_000),
            on_notice: at.is_multiple_of(4),
            step_us: None,
            resumes: None,
        },
        curve: ScalingCurve::new(points.collect()).ok(),
        remaining_work_ms: Some(1_000_000_000),
        expected_end_us: Some(NOW + 36_000 * S),
        end_within_us: None,
        resized_us: None,
        opt_in: true,
        do_not_disrupt: false,
    }
}

/// Builds the state.
pub fn cluster(nodes: usize, jobs: usize) -> ClusterState {
    let mut state = ClusterState { cluster: "large".to_owned(), at_us: NOW, ..ClusterState::default() };
    let serving = nodes / 10;
    let names: Vec<String> = (0..nodes).map(|at| format!("n{at:05}")).collect();
    for (at, name) in names.iter().enumerate() {
        state.nodes.insert(name.clone(), node(if at < serving { "serve" } else { "train" }, at));
    }
    let mut free = 0;
    for at in 0..jobs {
        let waits = at % 10 == 9;
        let count = if waits || free + 2 > nodes { 0 } else { 1 + at % 2 };
        let id = format!("j{at:05}");
        state.jobs.insert(id, job(at, &names[free..free + count], 8));
        free += count;
    }
    for pool in ["serve", "train"] {
        let pool_state = Pool { price_micros_per_gpu_hour: Some(2_000_000), ..Pool::default() };
        state.pools.insert(pool.to_owned(), pool_state);
    }
    let share = |quota, demand, lendable| Share {
        quota_gpus: quota,
        demand_gpus: Some(demand),
        lendable,
        ..Share::default()
    };
    let gpus = 8 * nodes as u32;
    let own =
        |pool: &str, share: Share| Owner { shares: [(pool.to_owned(), share)].into(), ..Owner::default() };
    let quota = 8 * serving as u32;
    state.owners.insert("serving".to_owned(), own("serve", share(quota, quota / 3, true)));
    for team in 0..40 {
        state.owners.insert(format!("team{team}"), own("train", share(gpus / 40, gpus / 40, true)));
    }
    for (at, chunk) in names[..serving].chunks(64).enumerate() {
        let loan = Loan {
            from: "serving".to_owned(),
            to: format!("team{}", at % 40),
            pool: "serve".to_owned(),
            gpus: 8 * chunk.len() as u32,
            nodes: chunk.iter().cloned().collect(),
            since_us: NOW - 1800 * S,
            expires_us: NOW + 3000 * S,
            reclaim_within_ms: 900_000,
            reclaiming_since_us: None,
            reclaiming_gpus: 0,
            reclaiming_nodes: [].into(),
            writer: Writer::Autopilot { generation: 1 },
            jobs: [].into(),
        };
        state.loans.insert(format!("lend-{at}"), loan);
    }
    state
}
