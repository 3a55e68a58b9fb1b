//! What the site is: its times, nodes, teams, the jobs of a real trace and the load of a service.

use std::path::Path;

use tidegate_evaluation::trace::{Demand, Jobs};
use tidegate_sim::scenario::{Arrival, DrawnTraits, Scenario};
use tidegate_sim::{
    Backfill, Checkpoint, ClusterSpec, DAY_US, HOUR_US, JobSpec, MINUTE_US, NodeSpec, PoolSpec, SECOND_US,
    Schedule, Sim, TeamSpec, amdahl,
};

use crate::DemoError;
use crate::draw::Draw;

/// The site's name in the tables.
pub const CLUSTER: &str = "demo";
pub(crate) const POOLS: [&str; 3] = ["train", "serve", "dev"];
/// Nodes of each pool, numbered in this order. Those of `dev` are not simulated but scripted.
pub(crate) const NODES: [usize; 3] = [6, 4, 1];
pub(crate) const GPUS_PER_NODE: u32 = 8;
/// GPUs of the site.
pub const GPUS: u32 = (NODES[0] + NODES[1] + NODES[2]) as u32 * GPUS_PER_NODE;
/// Id of the first job, which trains from beginning to end.
pub(crate) const FIRST_JOB: u64 = 4_711;
pub(crate) const HOUR_MS: i64 = 3_600_000;
pub(crate) const DAY_MS: i64 = 24 * HOUR_MS;
/// From the beginning to the present, ms: whatever the hour of the present on other clocks, at the
/// site it is 20 h, when notebooks have been used and the peak of serving is over.
const PAST_MS: i64 = 7 * DAY_MS + 20 * HOUR_MS;
/// The length of the trace of demand; beyond it nothing more arrives.
const DAYS: i64 = 14;
const SEED: u64 = 11;
/// GPUs of the largest job that is taken from the trace.
const LARGEST: u32 = 16;
/// The mean load of what is taken, GPUs: the nodes beside the first job's, nearly full.
const LOAD_GPUS: f64 = 30.0;
/// The most that serving needs, GPUs.
const PEAK_GPUS: u32 = 28;
/// GPUs of the first job, and of one that never fits beside it.
const FIRST_GPUS: u32 = 16;
const GANG_GPUS: u32 = 40;

/// Priority of two runs of one model at different sizes.
pub(crate) const STUDY: i32 = 8;

/// Teams, with the share of jobs that is theirs and their quota.
const TEAMS: [(&str, f64, Option<u32>); 4] =
    [("research", 0.35, None), ("language", 0.35, None), ("vision", 0.2, Some(16)), ("speech", 0.1, Some(8))];

/// Moments of the site, ms since the epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Times {
    /// The beginning: midnight at the site, a week before the present's day.
    pub start_ms: i64,
    /// From here on the autopilot acts.
    pub acts_ms: i64,
    /// From here on agents read the GPUs.
    pub watched_ms: i64,
    /// The present as it begins to run; what happened before is told from here.
    pub present_ms: i64,
}

impl Times {
    /// Times of a site that begins to run now; full minutes count.
    pub fn until(present_ms: i64) -> Self {
        let present_ms = present_ms.div_euclid(60_000) * 60_000;
        Self {
            start_ms: present_ms - PAST_MS,
            acts_ms: present_ms - 42 * HOUR_MS,
            watched_ms: present_ms - 6 * HOUR_MS,
            present_ms,
        }
    }

    /// Hour of the day at the site, 0 to 23.
    pub(crate) fn hour_at(&self, at_ms: i64) -> i64 {
        (at_ms - self.start_ms).div_euclid(HOUR_MS).rem_euclid(24)
    }
}

/// Name of a node, by its number from 0.
pub(crate) fn node_name(node: usize) -> String {
    format!("gpu-{:02}", node + 1)
}

/// The pool that owns a node.
pub(crate) fn pool_of(node: usize) -> usize {
    usize::from(node >= NODES[0]) + usize::from(node >= NODES[0] + NODES[1])
}

/// The simulated part of the site. `folder` holds the traces, named as published.
pub(crate) fn simulation(folder: &Path, times: &Times) -> Result<Sim, DemoError> {
    let (trace, demand) = (Jobs::Itp.read(folder)?, Demand::Servegen.read(folder)?);
    let draw = Draw::new(SEED);
    let step_us = demand.step_us;
    let demand_gpus = demand.window(0, DAYS * DAY_US, PEAK_GPUS);
    let service = tidegate_sim::ServiceSpec { pool: 1, demand_gpus, step_us };
    let arrivals = thinned(&trace.arrivals, draw);
    let unknowns = DrawnTraits { faults_ppm: 0, ..DrawnTraits::default() };
    let scenario = Scenario::from_trace(spec(), &arrivals, vec![service], &unknowns, DAYS * DAY_US, SEED);
    let mut spec = scenario.spec;
    spec.epoch_us = times.start_ms * 1_000;
    let mut jobs = own_jobs(&spec, times);
    jobs.extend(scenario.jobs);
    jobs.sort_by_key(|job| job.submit_us);
    Ok(Sim::new(spec, jobs, scenario.services)?)
}

fn spec() -> ClusterSpec {
    let node = |n: usize| NodeSpec {
        name: node_name(n),
        model: 0,
        gpus: GPUS_PER_NODE,
        rack: (n / 4) as u32,
        pool: pool_of(n),
    };
    let pool = |p: usize| PoolSpec { name: POOLS[p].into(), floor_gpus: 0 };
    let team = |(name, _, quota_gpus): &(&str, f64, Option<u32>)| TeamSpec {
        name: (*name).into(),
        pool: 0,
        quota_gpus: *quota_gpus,
    };
    ClusterSpec {
        name: CLUSTER.into(),
        models: vec!["h100".into()],
        pools: (0..2).map(pool).collect(),
        nodes: (0..NODES[0] + NODES[1]).map(node).collect(),
        teams: TEAMS.iter().map(team).collect(),
        curves: vec![amdahl(20_000, 64)],
        schedule: Schedule {
            backfill: Backfill::Easy { depth: 100 },
            pass_at_quota: true,
            ..Schedule::default()
        },
        first_job_id: Some(FIRST_JOB),
        ..ClusterSpec::default()
    }
}

/// A part of the trace that the site can carry, divided between its teams.
fn thinned(arrivals: &[Arrival], draw: Draw) -> Vec<Arrival> {
    let window_us = DAYS * DAY_US;
    let fits = |a: &&Arrival| a.gpus <= LARGEST && a.work_us < 2 * DAY_US && a.submit_us < window_us;
    let load = |taken: &[&Arrival]| {
        let work: f64 = taken.iter().map(|a| f64::from(a.gpus) * a.work_us as f64).sum();
        work / window_us as f64
    };
    let usable: Vec<&Arrival> = arrivals.iter().filter(fits).collect();
    let share = LOAD_GPUS / load(&usable).max(LOAD_GPUS);
    let taken = usable.iter().enumerate().filter(|(n, _)| draw.of(1).of(*n as u64).ratio() < share);
    taken.map(|(n, a)| Arrival { team: team(draw.of(2).of(n as u64)).into(), ..(*a).clone() }).collect()
}

fn team(draw: Draw) -> &'static str {
    let mut at = draw.ratio();
    for (name, share, _) in TEAMS {
        at -= share;
        if at < 0.0 {
            return name;
        }
    }
    TEAMS[0].0
}

/// Jobs that are in no trace: one that trains all the time, one that is too large beside it, and a
/// team at its quota.
fn own_jobs(spec: &ClusterSpec, times: &Times) -> Vec<JobSpec> {
    let team = |name: &str| spec.teams.iter().position(|team| team.name == name).unwrap_or(0);
    let before = |ms: i64| (times.present_ms - ms - times.start_ms) * 1_000;
    let checkpoint =
        |minutes| Checkpoint { every_us: minutes * MINUTE_US, cost_us: 20 * SECOND_US, on_notice: true };
    let job = |submit_us: i64, gpus: u32, work_us: i64, name: &str| JobSpec {
        team: team(name),
        checkpoint: Some(checkpoint(20)),
        restart_us: 90 * SECOND_US,
        ..JobSpec::plain(submit_us, gpus, work_us)
    };
    vec![
        JobSpec {
            priority: 5,
            checkpoint: Some(checkpoint(120)),
            ..job(0, FIRST_GPUS, 40 * DAY_US, "language")
        },
        JobSpec { priority: 9, ..job(before(20 * HOUR_MS), 8, 40 * HOUR_US, "speech") },
        JobSpec { priority: 3, ..job(before(5 * HOUR_MS), GANG_GPUS, 6 * HOUR_US, "research") },
        job(before(90 * 60_000), 4, 3 * HOUR_US, "speech"),
        JobSpec { priority: STUDY, ..job(before(290 * 60_000), 4, HOUR_US, "research") },
        JobSpec { priority: STUDY, ..job(before(220 * 60_000), 8, HOUR_US, "research") },
    ]
}
