//! Preemption (docs/control.md, 4.3 and 4.8): makes room for a job that waits too long, at the
//! least loss, from the surplus of elastic jobs and from preemptible jobs of lower priority.

use std::collections::{BTreeMap, BTreeSet};

use tidegate_units::{GpuMillis, Micros, Millis};

use super::builder::PlanBuilder;
use super::victims::{self, Served, VictimOption, may_disturb, most_freed, pick, victim_options};
use crate::action::Kind;
use crate::policy::Footprint;
use crate::state::{Job, JobId, JobKind, NodeName, Object, PoolName};

/// Most jobs that one plan makes room for.
const AT_ONCE: usize = 16;

pub(super) fn plan(builder: &mut PlanBuilder<'_>) {
    let state = builder.state;
    let after_us = Micros::from_secs(builder.policy.preempt.after_wait_s).0;
    let served = builder.served();
    let mut waiting: Vec<(&JobId, &Job, i64)> = Vec::new();
    for (id, job) in &state.jobs {
        let ours = builder.owners.includes(&job.owner) && !served.contains(id);
        let Some(since) = job.pending_since_us().filter(|_| ours) else {
            continue;
        };
        builder.count_considered(Kind::Preempt, 1);
        if builder.reserved.starts(id) {
            let why = "the scheduler can start it in a reservation of its owner".to_owned();
            builder.noop(Kind::Preempt, Some(Object::Job(id.clone())), why, None, Vec::new());
            continue;
        }
        // Preemptible jobs stop nobody.
        if builder.now_us - since >= after_us && !job.preemptible {
            waiting.push((id, job, since));
        }
    }
    waiting.sort_by(|a, b| b.1.priority.cmp(&a.1.priority).then(a.2.cmp(&b.2)).then(a.0.cmp(b.0)));
    let mut running: BTreeMap<&PoolName, Vec<(&JobId, &Job)>> = BTreeMap::new();
    if !waiting.is_empty() {
        for (id, job) in &state.jobs {
            if job.running_since_us().is_some()
                && !matches!(job.kind, JobKind::Service { .. })
                && job.loan.is_none()
            {
                running.entry(&job.pool).or_default().push((id, job));
            }
        }
    }
    let rest = waiting.len().saturating_sub(AT_ONCE);
    for (id, job, _) in waiting.into_iter().take(AT_ONCE) {
        let footprint = Footprint {
            owners: vec![job.owner.clone()],
            pools: vec![job.pool.clone()],
            ..Footprint::default()
        };
        let object = Object::Job(id.clone());
        if builder.stopped(Kind::Preempt, &footprint, object.clone()) {
            continue;
        }
        if let Err(why) = make_room(builder, id, job, running.get(&job.pool).map_or(&[], Vec::as_slice)) {
            builder.noop(Kind::Preempt, Some(object), why, None, Vec::new());
        }
    }
    if rest > 0 {
        let reason = format!("{rest} more jobs wait; a plan frees GPUs for at most {AT_ONCE}");
        builder.noop(Kind::Preempt, None, reason, None, Vec::new());
    }
}

fn make_room<'a>(
    builder: &mut PlanBuilder<'a>,
    id: &JobId,
    job: &Job,
    running: &[(&'a JobId, &'a Job)],
) -> Result<(), String> {
    let free = builder.free.get(&job.pool).copied().unwrap_or(0);
    if free >= job.gpus {
        let left = free - job.gpus;
        if let Some(free) = builder.free.get_mut(&job.pool) {
            *free = left;
        }
        return Err(format!("{free} GPUs are free; the scheduler can start it"));
    }
    if let Some(limit) = builder.state.share(&job.owner, &job.pool).and_then(|share| share.limit_gpus)
        && builder.occupancy.used(&job.owner, &job.pool) + job.gpus > limit
    {
        return Err(format!(
            "its owner has reached its limit of {limit} GPUs, so free GPUs would not start it"
        ));
    }
    let need = job.gpus - free;
    let hold_ms = Millis::from_secs(builder.policy.resize.hold_s).0;
    let mut options: BTreeMap<&JobId, Vec<VictimOption>> = BTreeMap::new();
    let mut spared: BTreeSet<&str> = BTreeSet::new();
    for (victim, other) in running.iter().copied().filter(|(_, other)| may_disturb(builder, id, other)) {
        if builder.disturbed.contains(victim)
            || !builder.owners.includes(&other.owner)
            || !may_yield(other, job)
        {
            continue;
        }
        let wanted: BTreeSet<&NodeName> = other.placement.keys().collect();
        let stoppable = other.preemptible && other.priority < job.priority;
        let mut ways =
            victim_options(builder, victim, other, &wanted, stoppable, hold_ms, |node| other.placement[node]);
        let before = ways.len();
        if builder.promises.protects(builder.state, other) {
            ways.retain(|way| way.to_gpus >= other.gpus);
        }
        if ways.len() < before {
            spared.insert(other.owner.as_str());
        }
        if !ways.is_empty() {
            options.insert(victim, ways);
        }
    }
    let Some(picked) = pick(&options, need) else {
        let most = most_freed(&options);
        let spared: Vec<&str> = spared.into_iter().collect();
        let promised = match spared.as_slice() {
            [] => String::new(),
            owners => format!("; nothing is taken from {}, whose promise is broken", owners.join(", ")),
        };
        return Err(format!(
            "it lacks {need} GPUs; jobs that may be disturbed would free only {most}{promised}"
        ));
    };
    let cost: i64 = picked.iter().map(|(_, way)| way.choice.cost).sum();
    // A job that may not be stopped was promised its GPUs.
    let benefit = f64::from(job.gpus) * hold_ms as f64 * builder.missing_ratio();
    let predicted = builder.predict(benefit, cost as f64, None, 0.8, hold_ms);
    if !builder.worth_it(&predicted) {
        return Err(format!(
            "freeing {need} GPUs would cost {} GPU-s, more than it gains",
            GpuMillis(cost).trunc_gpu_secs()
        ));
    }
    let why = format!("job {id} ({} GPUs) waits for {need} more", job.gpus);
    let served = Served { job: id, is_owed: true, benefit, over_ms: hold_ms };
    victims::make_room(builder, &served, &options, picked, &why);
    if let Some(left) = builder.free.get_mut(&job.pool) {
        *left = 0;
    }
    Ok(())
}

/// Elastic jobs yield their surplus to jobs of equal priority, others only to higher priority.
fn may_yield(other: &Job, job: &Job) -> bool {
    match other.kind {
        JobKind::Elastic { .. } => other.priority <= job.priority,
        JobKind::Gang => other.priority < job.priority,
        JobKind::Service { .. } => false,
    }
}
