//! Defragmentation (docs/control.md, 4.13): frees whole nodes for a waiting gang when enough GPUs
//! are free but scattered.
//!
//! Small jobs that fit into gaps elsewhere move off the nodes that are cheapest to empty, if the
//! gang's work in the time the GPUs would have stayed free is worth more than the moves lose.

use std::collections::{BTreeMap, BTreeSet};

use tidegate_units::{GpuMillis, Micros, Millis};

use super::builder::PlanBuilder;
use super::room::Room;
use super::victims::{Cause, disturb, may_disturb, victim_options};
use crate::action::{Change, Kind};
use crate::policy::Footprint;
use crate::state::interruption;
use crate::state::{Job, JobId, JobKind, Node, NodeName, Object, PoolName};

pub(super) fn plan(builder: &mut PlanBuilder<'_>) {
    let state = builder.state;
    let mut first: BTreeMap<&PoolName, (&JobId, &Job, i64)> = BTreeMap::new();
    let ours = state.jobs.iter().filter(|(_, job)| builder.owners.includes(&job.owner));
    let ours = ours.filter(|(id, _)| !builder.reserved.starts(id));
    let mut order: Vec<(&JobId, &Job, i64)> =
        ours.filter_map(|(id, job)| Some((id, job, job.pending_since_us()?))).collect();
    order.sort_by(|a, b| b.1.priority.cmp(&a.1.priority).then(a.2.cmp(&b.2)).then(a.0.cmp(b.0)));
    for (id, job, since) in order {
        first.entry(&job.pool).or_insert((id, job, since));
    }
    for (pool, (id, job, since)) in first {
        let waited_s = Micros(builder.now_us - since).floor_secs();
        let footprint = Footprint {
            owners: vec![job.owner.clone()],
            pools: vec![job.pool.clone()],
            ..Footprint::default()
        };
        let object = Object::Job(id.clone());
        if waited_s < builder.policy.preempt.gather_after_s
            || builder.stopped(Kind::Preempt, &footprint, object.clone())
        {
            continue;
        }
        if let Err(why) = defragment(builder, pool, id, job) {
            builder.noop(Kind::Preempt, Some(object), why, None, Vec::new());
        }
    }
}

/// A node that could be emptied.
struct CandidateNode<'a> {
    name: &'a NodeName,
    node: &'a Node,
    jobs: Vec<(&'a JobId, &'a Job)>,
    /// Useful GPU time its jobs lose by moving.
    cost: i64,
}

fn defragment(builder: &mut PlanBuilder<'_>, pool: &PoolName, id: &JobId, gang: &Job) -> Result<(), String> {
    let state = builder.state;
    let limit = state.share(&gang.owner, pool).and_then(|share| share.limit_gpus);
    if limit.is_some_and(|limit| builder.occupancy.used(&gang.owner, pool) + gang.gpus > limit) {
        return Err("its owner has reached its limit, so free GPUs would not start it".to_owned());
    }
    let rooms = builder.free_rooms();
    let free = rooms.get(pool).cloned().unwrap_or_default();
    let missing = free.clone().missing_after(gang.gpus);
    if missing == 0 {
        return Err("enough GPUs are free; the scheduler can start it".to_owned());
    }
    if free.gpus() < gang.gpus {
        return Err(format!("only {} GPUs are free, too few however they are arranged", free.gpus()));
    }
    let leaves = |job: &Job| job.pool == *pool && job.running_since_us().is_none() && job.held_gpus() > 0;
    if state.jobs.values().any(leaves)
        || builder.decisions().iter().any(|d| makes_room(&d.action.change, gang))
    {
        return Err("GPUs are already being freed for it".to_owned());
    }
    let (emptied, moved) = choose(builder, pool, gang, missing)?;
    let hold_ms = Millis::from_secs(builder.policy.resize.hold_s).0;
    let benefit = f64::from(gang.gpus) * hold_ms as f64;
    let cost: i64 = moved.iter().map(|(_, job)| loss(builder, job)).sum();
    let predicted = builder.predict(benefit, cost as f64, None, 0.8, hold_ms);
    if !builder.worth_it(&predicted) {
        return Err(format!(
            "moving {} jobs would cost {} GPU-s, more than it gains",
            moved.len(),
            GpuMillis(cost).trunc_gpu_secs()
        ));
    }
    let names: Vec<&str> = emptied.iter().map(|name| name.as_str()).collect();
    let why = format!(
        "job {id} ({} GPUs) needs {} as a whole, and this job fits elsewhere",
        gang.gpus,
        names.join(", ")
    );
    let held: u32 = moved.iter().map(|(_, job)| job.held_gpus()).sum();
    for (mover, job) in moved {
        let wanted: BTreeSet<&NodeName> = job.placement.keys().collect();
        // It restarts at once, so no time stands idle.
        let ways = victim_options(builder, mover, job, &wanted, true, 0, |node| job.placement[node]);
        let Some(way) = ways.iter().find(|way| way.to_gpus == 0) else { continue };
        let part = benefit * f64::from(job.held_gpus()) / f64::from(held.max(1));
        let cause = Cause {
            serves: Some(Object::Job(id.clone())),
            is_owed: false,
            over_ms: hold_ms,
            benefit: part,
            after: Vec::new(),
            why: &why,
            alternatives: Vec::new(),
        };
        disturb(builder, mover, job, way, cause);
    }
    Ok(())
}

/// Whether a change of this plan may already make room for the gang.
fn makes_room(change: &Change, gang: &Job) -> bool {
    match change {
        Change::Lend { to, extends: None, .. } => *to == gang.owner,
        Change::Preempt { .. } => true,
        _ => false,
    }
}

fn loss(builder: &PlanBuilder<'_>, job: &Job) -> i64 {
    interruption(job, job.held_gpus(), builder.now_us, &builder.policy.preempt).planned_gpu_ms()
}

type Moves<'a> = (Vec<&'a NodeName>, Vec<(&'a JobId, &'a Job)>);

/// Chooses nodes to empty, cheapest first, so that `missing` GPUs come free in whole nodes and
/// every moved job fits into the remaining gaps.
fn choose<'a>(
    builder: &PlanBuilder<'a>,
    pool: &PoolName,
    gang: &Job,
    missing: u32,
) -> Result<Moves<'a>, String> {
    let mut candidates: Vec<CandidateNode<'a>> = Vec::new();
    let mut gaps: BTreeMap<&'a NodeName, (u32, u32)> = BTreeMap::new();
    for (name, node) in &builder.state.nodes {
        if node.pool != *pool || !node.takes_jobs() || builder.loan_of.contains_key(name) {
            continue;
        }
        let held = builder.occupancy.held_on(name);
        if held == 0 || held >= node.gpus {
            continue;
        }
        gaps.insert(name, (node.gpus - held, node.gpus));
        let jobs: Vec<(&JobId, &Job)> =
            builder.jobs_on[name].iter().map(|id| (*id, &builder.state.jobs[*id])).collect();
        if jobs.iter().all(|(id, job)| movable(builder, id, job)) {
            let cost = jobs.iter().map(|(_, job)| loss(builder, job)).sum();
            candidates.push(CandidateNode { name, node, jobs, cost });
        }
    }
    candidates.sort_by_key(|candidate| (candidate.cost, candidate.name));
    let (mut names, mut moved, mut freed) = (Vec::new(), Vec::new(), 0);
    for candidate in candidates {
        if freed >= missing {
            break;
        }
        let mut room = Room::default();
        let stays = gaps.iter().filter(|(name, _)| **name != candidate.name && !names.contains(*name));
        stays.for_each(|(_, (free, size))| room.add(*free, *size));
        let all = moved.iter().chain(&candidate.jobs);
        if all.into_iter().all(|(_, job): &(&JobId, &Job)| room.take(job.held_gpus())) {
            names.push(candidate.name);
            moved.extend(candidate.jobs);
            freed += candidate.node.gpus;
        }
    }
    if freed < missing {
        return Err(format!(
            "{missing} GPUs in whole nodes are missing for {}; moving jobs would free only {freed}",
            gang.gpus
        ));
    }
    Ok((names, moved))
}

/// Whether a small job may be moved within its caps.
fn movable(builder: &PlanBuilder<'_>, id: &JobId, job: &Job) -> bool {
    let rules = &builder.policy.preempt;
    let ran_us = job.running_since_us().map_or(0, |since| builder.now_us - since);
    matches!(job.kind, JobKind::Gang)
        && builder.owners.includes(&job.owner)
        && job.preemptible
        && job.placement.len() == 1
        && job.preemptions_24h < rules.per_job_per_day
        && ran_us >= Micros::from_secs(rules.least_run_s).0
        && may_disturb(builder, id, job)
        && builder.promises.against_taking(&job.owner).is_none()
}
