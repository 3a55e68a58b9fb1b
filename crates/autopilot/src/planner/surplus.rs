//! Gives back what elastic jobs have grown by (docs/control.md, 4.3): growth used GPUs that nobody
//! waited for, so a job that waits gets them before anyone has to stop for it.
//!
//! Jobs are served in the scheduler's order, down to the size that each grown job asked for. The
//! first one that cannot be served ends a pool's turn: GPUs given back would go to it in vain.

use std::collections::{BTreeMap, BTreeSet};

use tidegate_units::GpuMillis;

use super::builder::PlanBuilder;
use super::resize::hold_ms;
use super::room::Room;
use super::victims::{Served, VictimOption, make_room, may_disturb, most_freed, pick, victim_options};
use crate::action::Kind;
use crate::policy::{Footprint, Mode};
use crate::state::{Job, JobId, JobKind, NodeName, Object, PoolName};

/// Most jobs that one plan makes room for in a pool.
const AT_ONCE: usize = 16;

pub(super) fn plan(builder: &mut PlanBuilder<'_>) {
    let grown = grown(builder);
    if grown.is_empty() {
        return;
    }
    let mut rooms = builder.free_rooms();
    for (pool, queue) in queues(builder) {
        let Some(grown) = grown.get(pool) else { continue };
        let mut room = rooms.remove(pool).unwrap_or_default();
        for (id, job) in queue.into_iter().take(AT_ONCE) {
            if !serve(builder, (id, job), &mut room, grown) {
                break;
            }
        }
    }
}

/// Running jobs that hold more than they asked for and may be resized, by pool.
fn grown<'a>(builder: &PlanBuilder<'a>) -> BTreeMap<&'a PoolName, Vec<(&'a JobId, &'a Job)>> {
    let mut out: BTreeMap<&PoolName, Vec<(&JobId, &Job)>> = BTreeMap::new();
    for (id, job) in &builder.state.jobs {
        let elastic = matches!(job.kind, JobKind::Elastic { .. });
        let footprint = Footprint {
            owners: vec![job.owner.clone()],
            pools: vec![job.pool.clone()],
            jobs: vec![id.clone()],
            ..Footprint::default()
        };
        if elastic
            && job.running_since_us().is_some()
            && job.held_gpus() > job.gpus
            && builder.policy.mode(Kind::ResizeJob, &footprint) != Mode::Stop
        {
            out.entry(&job.pool).or_default().push((id, job));
        }
    }
    out
}

/// Waiting jobs by pool, in the scheduler's order, without those that their owner's limit holds or
/// that this plan makes room for.
fn queues<'a>(builder: &PlanBuilder<'a>) -> BTreeMap<&'a PoolName, Vec<(&'a JobId, &'a Job)>> {
    let served = builder.served();
    let mut waiting: Vec<(&JobId, &Job, i64)> = Vec::new();
    for (id, job) in &builder.state.jobs {
        let starts = served.contains(id) || builder.on_loans.contains(id) || builder.reserved.starts(id);
        let Some(since) = job.pending_since_us().filter(|_| !starts) else { continue };
        let limit = builder.state.share(&job.owner, &job.pool).and_then(|share| share.limit_gpus);
        let used = builder.occupancy.used(&job.owner, &job.pool);
        if limit.is_none_or(|limit| used + job.gpus <= limit) {
            waiting.push((id, job, since));
        }
    }
    waiting.sort_by(|a, b| b.1.priority.cmp(&a.1.priority).then(a.2.cmp(&b.2)).then(a.0.cmp(b.0)));
    let mut out: BTreeMap<&PoolName, Vec<(&JobId, &Job)>> = BTreeMap::new();
    for (id, job, _) in waiting {
        out.entry(&job.pool).or_default().push((id, job));
    }
    out
}

/// Whether the job can start once what this plan decides is done; takes its room.
fn serve<'a>(
    builder: &mut PlanBuilder<'a>,
    (id, job): (&JobId, &Job),
    room: &mut Room,
    grown: &[(&'a JobId, &'a Job)],
) -> bool {
    if room.take(job.gpus) {
        return true;
    }
    let need = room.missing(job.gpus);
    let hold = hold_ms(builder, job, job.gpus);
    let options = options(builder, job, need, hold, grown);
    let Some(picked) = pick(&options, need) else {
        let most = most_freed(&options);
        let why = format!(
            "it lacks {need} GPUs on nodes that it can use; shrinking grown jobs would free only {most}"
        );
        builder.noop(Kind::ResizeJob, Some(Object::Job(id.clone())), why, None, Vec::new());
        return false;
    };
    let cost: i64 = picked.iter().map(|(_, way)| way.choice.cost).sum();
    // Without growth it could run. Not owed where enough GPUs are free, but scattered: jobs would
    // shrink and grow for each one that comes and goes.
    let is_owed = room.gpus() < job.gpus;
    let worth = if is_owed { builder.missing_ratio() } else { 1.0 };
    let benefit = f64::from(job.gpus) * hold as f64 * worth;
    let predicted = builder.predict(benefit, cost as f64, None, 0.8, hold);
    if !builder.worth_it(&predicted) {
        let cost = GpuMillis(cost).trunc_gpu_secs();
        let why =
            format!("giving it {need} GPUs that others grew by would cost {cost} GPU-s, more than it gains");
        builder.noop(Kind::ResizeJob, Some(Object::Job(id.clone())), why, Some(predicted), Vec::new());
        return false;
    }
    let why = format!("job {id} ({} GPUs) waits for {need} that others grew by", job.gpus);
    let served = Served { job: id, is_owed, benefit, over_ms: hold };
    make_room(builder, &served, &options, picked, &why);
    // What was free is taken; what comes free beyond the need is left to the next plan.
    room.missing_after(job.gpus);
    true
}

/// How grown jobs can give up GPUs that the waiting job could use, down to what each asked for.
fn options<'a>(
    builder: &PlanBuilder<'a>,
    job: &Job,
    need: u32,
    hold_ms: i64,
    grown: &[(&'a JobId, &'a Job)],
) -> BTreeMap<&'a JobId, Vec<VictimOption>> {
    let may_use = |node: &NodeName| match builder.loan_of.get(node) {
        None => true,
        Some(loan) => job.preemptible && builder.state.loans[*loan].to == job.owner,
    };
    let mut out = BTreeMap::new();
    for (grown_id, other) in grown.iter().copied() {
        if !builder.owners.includes(&other.owner) || !may_disturb(builder, grown_id, other) {
            continue;
        }
        let frees = |node: &NodeName| frees(builder, other, node, need);
        let useful = |node: &&NodeName| may_use(node) && frees(node) > 0;
        let nodes: BTreeSet<&NodeName> = other.placement.keys().filter(useful).collect();
        let mut ways = victim_options(builder, grown_id, other, &nodes, false, hold_ms, frees);
        ways.retain(|way| way.to_gpus >= other.gpus);
        if !ways.is_empty() {
            out.insert(grown_id, ways);
        }
    }
    out
}

/// GPUs that a waiting job which lacks `need` can use of a node once the grown job has left it: all
/// of it, or what a job smaller than a node needs.
fn frees(builder: &PlanBuilder<'_>, grown: &Job, node: &NodeName, need: u32) -> u32 {
    let gpus = builder.state.nodes.get(node).filter(|node| node.takes_jobs()).map_or(0, |node| node.gpus);
    let left = builder.occupancy.held_on(node).saturating_sub(grown.placement[node]);
    let free = gpus.saturating_sub(left);
    match free {
        _ if free == gpus => gpus,
        _ if free >= need => need,
        _ => 0,
    }
}
