//! Draining bad nodes and returning good ones (docs/control.md, 4.7).
//!
//! A node is drained on one fatal signal, or when the probability p of being bad and the kinds of
//! evidence suffice and waiting costs more than a mistake: p · (work at risk) > (1 - p) · (node's
//! time away). A straggler that slows a synchronous gang of G GPUs by s is left when remaining time
//! · s · G > loss of interrupting the gang. A node we drained returns once it tests healthy.

use std::collections::BTreeSet;

use tidegate_units::{Micros, Millis};

use super::builder::{ActionSpec, PlanBuilder};
use super::plan::{Alternative, Predicted};
use crate::action::{Change, Kind, Precondition};
use crate::policy::Footprint;
use crate::state::interruption;
use crate::state::{DrainedBy, Job, JobId, Node, NodeName, NodeState, Object, PoolName};

fn reach_of(name: &NodeName, node: &Node) -> Footprint {
    Footprint { nodes: vec![name.clone()], pools: vec![node.pool.clone()], ..Footprint::default() }
}

/// A suspect node and the predicted effect of draining it.
struct DrainCandidate<'a> {
    name: &'a NodeName,
    node: &'a Node,
    predicted: Predicted,
    reason: String,
    fatal: bool,
    /// Gang that is better off elsewhere.
    moves: Option<&'a JobId>,
}

pub(super) fn plan_drains(builder: &mut PlanBuilder<'_>) {
    if !builder.owners.includes_unowned() {
        return;
    }
    let state = builder.state;
    builder.count_considered(Kind::DrainNode, state.nodes.len());
    let mut candidates: Vec<DrainCandidate<'_>> = Vec::new();
    for (name, node) in &state.nodes {
        if let Some(candidate) = candidate(builder, name, node) {
            candidates.push(candidate);
        }
    }
    // Fatal ones first, then by net benefit.
    candidates.sort_by(|a, b| {
        let key = |candidate: &DrainCandidate<'_>| {
            (!candidate.fatal, std::cmp::Reverse(candidate.predicted.net_low_gpu_ms()))
        };
        key(a).cmp(&key(b)).then(a.name.cmp(b.name))
    });
    let mut racks: BTreeSet<&str> = state
        .nodes
        .iter()
        .filter(|(_, node)| node.drain.as_ref().is_some_and(|drain| drain.by != DrainedBy::Other))
        .map(|(name, node)| node.rack.as_deref().unwrap_or(name))
        .collect();
    let mut going: std::collections::BTreeMap<&PoolName, u32> = std::collections::BTreeMap::new();
    for candidate in candidates {
        let object = Object::Node(candidate.name.clone());
        if builder.stopped(Kind::DrainNode, &reach_of(candidate.name, candidate.node), object.clone()) {
            continue;
        }
        let rack = candidate.node.rack.as_deref().unwrap_or(candidate.name);
        let others = racks.iter().filter(|other| **other != rack).count();
        let gone = going.get(&candidate.node.pool).copied().unwrap_or(0);
        let refused = if others >= builder.policy.blast.racks as usize {
            Some("the autopilot already has nodes of other racks out of service".to_owned())
        } else if !above_floor(builder, &candidate.node.pool, gone + candidate.node.gpus) {
            Some(format!("pool {} would fall below its floor", candidate.node.pool))
        } else if !candidate.fatal && !builder.worth_it(&candidate.predicted) {
            Some("keeping the node costs less than draining it by mistake".to_owned())
        } else {
            None
        };
        if let Some(why) = refused {
            builder.noop(
                Kind::DrainNode,
                Some(object),
                format!("{why}; {}", candidate.reason),
                Some(candidate.predicted),
                Vec::new(),
            );
            continue;
        }
        racks.insert(rack);
        *going.entry(&candidate.node.pool).or_default() += candidate.node.gpus;
        drain(builder, &candidate);
    }
}

/// Whether `pool` stays above its floor with `gpus` fewer in service.
fn above_floor(builder: &PlanBuilder<'_>, pool: &PoolName, gpus: u32) -> bool {
    crate::guard::pool_floor(builder.policy, builder.state, pool) + gpus <= builder.occupancy.in_service(pool)
}

fn candidate<'a>(
    builder: &mut PlanBuilder<'a>,
    name: &'a NodeName,
    node: &'a Node,
) -> Option<DrainCandidate<'a>> {
    let rules = builder.policy.drain.clone();
    let bad = f64::from(node.health.bad_ppm.unwrap_or(0)) / 1e6;
    let slow = f64::from(node.health.slowdown_ppm.unwrap_or(0)) / 1e6;
    let suspect = node.health.fatal || bad >= 0.5 || slow >= rules.slowdown;
    if !suspect || node.drain.is_some() || node.state != NodeState::Up {
        return None;
    }
    if node.do_not_disrupt {
        let reason = "it is marked do-not-disrupt".to_owned();
        builder.noop(Kind::DrainNode, Some(Object::Node(name.clone())), reason, None, Vec::new());
        return None;
    }
    let state = builder.state;
    let jobs: Vec<(&JobId, &Job)> =
        builder.jobs_on.get(name).into_iter().flatten().map(|id| (*id, &state.jobs[*id])).collect();
    let away = f64::from(node.gpus) * Millis::from_secs(rules.repair_s).0 as f64;
    let families = node.health.families.len();
    if node.health.fatal || (bad >= rules.bad && families >= rules.families as usize) {
        let p = if node.health.fatal { bad.max(0.99) } else { bad };
        let at_risk: i64 = jobs
            .iter()
            .map(|(_, job)| {
                interruption(job, job.held_gpus(), builder.now_us, &builder.policy.preempt).abrupt_gpu_ms
            })
            .sum();
        let predicted = builder.predict(
            p * (at_risk as f64 + away),
            (1.0 - p) * away,
            None,
            p,
            Millis::from_secs(rules.repair_s).0,
        );
        let fatal = if node.health.fatal { "fatal signal; " } else { "" };
        let reason = format!(
            "{fatal}bad with probability {bad:.3}, from {families} kinds of evidence ({})",
            node.health.families.join(", ")
        );
        return Some(DrainCandidate { name, node, predicted, reason, fatal: node.health.fatal, moves: None });
    }
    if slow >= rules.slowdown {
        return straggler(builder, name, node, &jobs, slow);
    }
    let reason = format!(
        "bad with probability {bad:.3}, from {families} kinds of evidence; the policy requires {} from {}",
        rules.bad, rules.families
    );
    builder.noop(Kind::DrainNode, Some(Object::Node(name.clone())), reason, None, Vec::new());
    None
}

/// Weighs a slow node by the largest gang it slows.
fn straggler<'a>(
    builder: &mut PlanBuilder<'a>,
    name: &'a NodeName,
    node: &'a Node,
    jobs: &[(&'a JobId, &'a Job)],
    slow: f64,
) -> Option<DrainCandidate<'a>> {
    let object = || Some(Object::Node(name.clone()));
    let Some((id, job)) = jobs.iter().copied().max_by_key(|(_, job)| job.held_gpus()) else {
        let reason = format!("slower by {slow:.3}, but no job runs on it");
        builder.noop(Kind::DrainNode, object(), reason, None, Vec::new());
        return None;
    };
    let held = job.held_gpus();
    let Some(end_us) = job.expected_end_us else {
        let reason = format!("slows job {id} by {slow:.3}; the end of the job is unknown");
        builder.noop(Kind::DrainNode, object(), reason, None, Vec::new());
        return None;
    };
    let remaining_ms = Micros(end_us - builder.now_us).floor_millis().0.max(0);
    let loss = interruption(job, held, builder.now_us, &builder.policy.preempt).planned_gpu_ms();
    let benefit = remaining_ms as f64 * slow * f64::from(held);
    let mut predicted = builder.predict(benefit, loss as f64, None, 0.8, remaining_ms);
    if let Some((earliest_us, _)) = job.end_within_us {
        // A job that may soon be over is not worth moving, however long the median.
        let least_ms = Micros(earliest_us - builder.now_us).floor_millis().0.max(0);
        let least = (least_ms as f64 * slow * f64::from(held)).round() as i64;
        predicted.benefit_low_gpu_ms = predicted.benefit_low_gpu_ms.min(least);
    }
    let reason = format!(
        "slows job {id} ({held} GPUs) by {slow:.3} for another {} s: that loses {:.1} GPU-hours, moving it loses {:.1}",
        Millis(remaining_ms).floor_secs(),
        benefit / 3.6e6,
        loss as f64 / 3.6e6
    );
    let promised = || builder.promises.against_taking(&job.owner);
    if let Some(why) = builder.protected(id, job).map(str::to_owned).or_else(promised) {
        builder.noop(
            Kind::DrainNode,
            object(),
            format!("{reason}; job {id}: {why}"),
            Some(predicted),
            Vec::new(),
        );
        return None;
    }
    Some(DrainCandidate { name, node, predicted, reason, fatal: false, moves: Some(id) })
}

fn drain(builder: &mut PlanBuilder<'_>, candidate: &DrainCandidate<'_>) {
    let change = Change::DrainNode { node: candidate.name.clone(), reason: candidate.reason.clone() };
    let noop = Alternative {
        what: "noop".to_owned(),
        net_gpu_ms: -candidate.predicted.net_gpu_ms(),
        why_not: "keeping the node costs more".to_owned(),
    };
    let action = builder.decide(ActionSpec {
        change,
        inverse: None,
        preconditions: vec![Precondition::NodeTakesJobs { node: candidate.name.clone() }],
        effect_ends_us: None,
        after: Vec::new(),
        predicted: candidate.predicted,
        reason: candidate.reason.clone(),
        alternatives: vec![noop],
    });
    move_gang(builder, candidate, vec![action]);
}

/// Restarts the gang without the slow node.
fn move_gang(builder: &mut PlanBuilder<'_>, candidate: &DrainCandidate<'_>, after: Vec<String>) {
    let state = builder.state;
    let Some(id) = candidate.moves else { return };
    let job = &state.jobs[id];
    let loss = interruption(job, job.held_gpus(), builder.now_us, &builder.policy.preempt).planned_gpu_ms();
    let predicted = builder.predict(
        candidate.predicted.benefit_gpu_ms as f64,
        loss as f64,
        None,
        0.8,
        candidate.predicted.over_ms,
    );
    let serves = Some(Object::Node(candidate.name.clone()));
    let spec = ActionSpec {
        change: Change::Preempt { job: id.clone(), frees_gpus: job.held_gpus() },
        inverse: None,
        preconditions: vec![Precondition::job_unchanged(id, job)],
        effect_ends_us: None,
        after,
        predicted,
        reason: format!("moves off node {}, which {}", candidate.name, candidate.reason),
        alternatives: Vec::new(),
    };
    builder.decide_for(serves, false, spec);
}

/// Retries moving gangs off slow nodes we drained: the first move was refused or came too late.
pub(super) fn plan_moves(builder: &mut PlanBuilder<'_>) {
    if !builder.owners.includes_unowned() {
        return;
    }
    let state = builder.state;
    let slow_ppm = builder.policy.drain.slowdown * 1e6;
    for (name, node) in &state.nodes {
        let ours = node.drain.as_ref().is_some_and(|drain| drain.by != DrainedBy::Other);
        let slow = f64::from(node.health.slowdown_ppm.unwrap_or(0));
        if !ours || slow < slow_ppm || !builder.jobs_on.contains_key(name) {
            continue;
        }
        let jobs: Vec<(&JobId, &Job)> =
            builder.jobs_on[name].iter().map(|id| (*id, &state.jobs[*id])).collect();
        let Some(candidate) = straggler(builder, name, node, &jobs, slow / 1e6) else { continue };
        if builder.worth_it(&candidate.predicted) {
            move_gang(builder, &candidate, Vec::new());
        } else {
            let reason = format!("staying costs less than moving; {}", candidate.reason);
            builder.noop(
                Kind::DrainNode,
                Some(Object::Node(name.clone())),
                reason,
                Some(candidate.predicted),
                Vec::new(),
            );
        }
    }
}

pub(super) fn plan_returns(builder: &mut PlanBuilder<'_>) {
    if !builder.owners.includes_unowned() {
        return;
    }
    let state = builder.state;
    for (name, node) in &state.nodes {
        let Some(drain) = &node.drain else { continue };
        builder.count_considered(Kind::ReturnNode, 1);
        let object = Object::Node(name.clone());
        let DrainedBy::Autopilot { action, .. } = &drain.by else {
            let reason = format!("drained by someone else: {}", drain.reason);
            builder.noop(Kind::ReturnNode, Some(object), reason, None, Vec::new());
            continue;
        };
        if builder.stopped(Kind::ReturnNode, &reach_of(name, node), object.clone()) {
            continue;
        }
        let rules = &builder.policy.drain;
        let good_us = node.health.checked_good_us.map(|since| builder.now_us - since);
        let bad = f64::from(node.health.bad_ppm.unwrap_or(1_000_000)) / 1e6;
        let why_not = match good_us {
            _ if node.health.fatal || bad >= 0.5 => Some(format!("still bad with probability {bad:.3}")),
            None => Some("no health check has passed since the drain".to_owned()),
            Some(for_us) if for_us < Micros::from_secs(rules.good_for_s).0 => Some(format!(
                "health checks have passed for {} s; the policy requires {} s",
                Micros(for_us).floor_secs(),
                rules.good_for_s
            )),
            Some(_) => None,
        };
        if let Some(why) = why_not {
            builder.noop(Kind::ReturnNode, Some(object), why, None, Vec::new());
            continue;
        }
        let day_ms = 86_400_000;
        let gained = f64::from(node.gpus) * day_ms as f64;
        let predicted = builder.predict(gained * (1.0 - bad), gained * bad, None, 1.0 - bad, day_ms);
        builder.decide(ActionSpec {
            change: Change::ReturnNode { node: name.clone(), drained_by: action.clone() },
            inverse: Some(Change::DrainNode { node: name.clone(), reason: "drained again".to_owned() }),
            preconditions: vec![Precondition::NodeDrainedByUs { node: name.clone(), action: action.clone() }],
            effect_ends_us: None,
            after: Vec::new(),
            predicted,
            reason: format!("health checks have passed for {} s", Micros(good_us.unwrap_or(0)).floor_secs()),
            alternatives: Vec::new(),
        });
    }
}
