//! Test states: a serving owner with nodes of its own, and a team that trains.

use crate::action::Change;
use crate::forecast::{DemandForecast, Series};
use crate::state::{
    Checkpoint, ClusterState, CurvePoint, Job, JobKind, JobState, Loan, Node, NodeState, Owner, Pool,
    ScalingCurve, Share, Source, Writer,
};

pub(crate) const S: i64 = 1_000_000;
pub(crate) const NOW: i64 = 1_800_000_000 * S;

/// A forecast with fixed answers.
pub(crate) struct FixedForecast {
    pub(crate) highest: Option<f64>,
    pub(crate) typical: Option<f64>,
    pub(crate) coverage: Option<f64>,
    pub(crate) as_of_us: Option<i64>,
}

impl FixedForecast {
    pub(crate) fn highest(gpus: f64) -> Self {
        Self { highest: Some(gpus), typical: None, coverage: Some(0.95), as_of_us: Some(NOW) }
    }
}

impl DemandForecast for FixedForecast {
    fn highest_gpus(&self, _: Series<'_>, _: f64, _: i64) -> Option<f64> {
        self.highest
    }

    fn typical_gpus(&self, _: Series<'_>, _: f64, _: i64) -> Option<f64> {
        self.typical
    }

    fn coverage(&self, _: Series<'_>) -> Option<f64> {
        self.coverage
    }

    fn as_of_us(&self, _: Series<'_>) -> Option<i64> {
        self.as_of_us
    }
}

pub(crate) fn node(pool: &str, rack: &str) -> Node {
    Node {
        pool: pool.into(),
        rack: Some(rack.into()),
        gpu_model: "H100".into(),
        gpus: 8,
        state: NodeState::Up,
        health: crate::state::Health::default(),
        drain: None,
        do_not_disrupt: false,
    }
}

/// Lends node s00 to research for an hour.
pub(crate) fn lend() -> Change {
    Change::Lend {
        from: "serving".into(),
        to: "research".into(),
        pool: "serve".into(),
        gpus: 8,
        nodes: ["s00".to_owned()].into(),
        extends: None,
        expires_us: NOW + 3_600 * S,
        reclaim_within_ms: 900_000,
    }
}

/// A running gang that opted in, with 8 GPUs on each of `nodes` and a checkpoint ten minutes ago.
pub(crate) fn gang(nodes: &[&str]) -> Job {
    let gpus = 8 * nodes.len() as u32;
    Job {
        owner: "research".into(),
        pool: "train".into(),
        queue: None,
        priority: 0,
        kind: JobKind::Gang,
        gpus,
        state: JobState::Running { since_us: NOW - 7_200 * S },
        placement: nodes.iter().map(|node| ((*node).into(), 8)).collect(),
        anchor_node: None,
        restarts: 0,
        loan: None,
        preemptible: true,
        preemptions_24h: 0,
        checkpoint: Checkpoint {
            last_us: Some(NOW - 600 * S),
            save_ms: Some(30_000),
            restart_ms: Some(60_000),
            requeue_ms: Some(0),
            resize_ms: Some(20_000),
            on_notice: false,
            step_us: None,
            resumes: None,
        },
        curve: None,
        remaining_work_ms: None,
        expected_end_us: None,
        end_within_us: None,
        resized_us: None,
        opt_in: true,
        do_not_disrupt: false,
    }
}

/// The same, elastic from one to sixteen nodes; each node beyond the first adds `share_ppm` of what
/// it would do alone.
pub(crate) fn elastic(nodes: &[&str], share_ppm: u64) -> Job {
    let points = (1..=16u32).map(|nodes| CurvePoint {
        gpus: 8 * nodes,
        rate_ppm: 8 * (1_000_000 + u64::from(nodes - 1) * share_ppm),
    });
    let kind = JobKind::Elastic {
        min_gpus: 8,
        max_gpus: 128,
        sizes: (1..=16).map(|nodes| 8 * nodes).collect(),
        grow: crate::state::GrowBy::Resize,
    };
    Job { kind, gpus: 8, curve: ScalingCurve::new(points.collect()).ok(), ..gang(nodes) }
}

pub(crate) fn pending(gpus: u32, waited_s: i64) -> Job {
    Job { gpus, state: JobState::Pending { since_us: NOW - waited_s * S }, ..gang(&[]) }
}

/// 16 serving nodes (s00 to s15, 4 racks) with a quota of 128 GPUs for owner `serving`, which needs
/// 40, and 4 training nodes (t0 to t3) of `research`, all free. All sources are fresh.
pub(crate) fn cluster() -> ClusterState {
    let mut state = ClusterState { cluster: "test".into(), at_us: NOW, ..ClusterState::default() };
    for i in 0..16 {
        state.nodes.insert(format!("s{i:02}"), node("serve", &format!("r{}", i / 4)));
    }
    for i in 0..4 {
        state.nodes.insert(format!("t{i}"), node("train", "q0"));
    }
    state.pools.insert("serve".into(), Pool::default());
    state.pools.insert("train".into(), Pool::default());
    let share =
        |quota_gpus, lendable, demand_gpus| Share { quota_gpus, lendable, demand_gpus, ..Share::default() };
    let owner = |pool: &str, share| Owner { shares: [(pool.to_owned(), share)].into(), ..Owner::default() };
    state.owners.insert("serving".into(), owner("serve", share(128, true, Some(40))));
    state.owners.insert("research".into(), owner("train", share(32, false, Some(32))));
    state.sources.insert("slurm".into(), Source { last_event_us: Some(NOW - 5 * S) });
    state
}

/// Lends serving nodes to `research` until 40 minutes from now.
pub(crate) fn loan(state: &mut ClusterState, nodes: &[&str]) {
    let loan = Loan {
        from: "serving".into(),
        to: "research".into(),
        pool: "serve".into(),
        gpus: 8 * nodes.len() as u32,
        nodes: nodes.iter().map(|node| (*node).into()).collect(),
        since_us: NOW - 1_200 * S,
        expires_us: NOW + 2_400 * S,
        reclaim_within_ms: 900_000,
        reclaiming_since_us: None,
        reclaiming_gpus: 0,
        reclaiming_nodes: [].into(),
        writer: Writer::Autopilot { generation: 3 },
        jobs: [].into(),
    };
    state.loans.insert("lend-1".into(), loan);
}
