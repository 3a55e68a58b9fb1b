//! Drains and returns of nodes.
//!
//! What a drained node would have done cannot be seen. For a slow one, the gang that was moved off
//! it says by its own steps how much faster it is. For one that seemed to fail, nodes with like
//! evidence say how often such a node fails, so the result is an interval.

use super::amounts::{Amounts, hours, milli, range};
use super::basis::{Basis, Gang, Stop, starts_over};
use super::measured::{Companions, Findings, Measured, Sightings, View, unknown};
use super::suspects::{Evidence, has_failed, wilson};
use crate::action::Change;
use crate::scorecard::{Interval, Realised};
use crate::state::{Job, JobState, Node, NodeName, NodeState};

/// Idle: what of the node no job holds while jobs of its pool wait for GPUs. Of a slow node, gained
/// is what its gang holds since it was moved, and forgone what it holds no more while it waits. Of
/// a suspect one, forgone is the time in which jobs are still on it, in thousandths.
pub(super) fn drained(of: &Measured<'_>, view: &View<'_>, seen: &mut Sightings) -> Option<Amounts> {
    let Change::DrainNode { node: name, .. } = of.change else { return None };
    let Basis::Drain { evidence, gang, .. } = of.basis? else { return None };
    let node = view.state.nodes.get(name)?;
    let held = view.occupancy.held_on(name);
    let idle = if node.drain.is_some() { unused(view, name, node) } else { 0 };
    let Some(evidence) = evidence else {
        return Some(Amounts {
            idle,
            ..gang.as_ref().map_or(Amounts::default(), |gang| moved(gang, view, seen))
        });
    };
    if seen.failed_us.is_none() && has_failed(node.state, &node.health, evidence) {
        seen.failed_us = Some(view.state.at_us);
    }
    if seen.failed_us.is_some() {
        // From here on it would have done nothing anyway.
        return Some(Amounts::default());
    }
    seen.is_busy = held > 0;
    Some(Amounts { gained: 0, forgone: if held > 0 { 1_000 } else { 0 }, idle })
}

/// GPUs of the node that jobs of its pool wait for, thousandths.
fn unused(view: &View<'_>, name: &NodeName, node: &Node) -> i64 {
    let waits = |job: &&Job| matches!(job.state, JobState::Pending { .. }) && job.pool == node.pool;
    let wanted: u32 = view.state.jobs.values().filter(waits).map(|job| job.gpus).fold(0, u32::saturating_add);
    milli(node.gpus.saturating_sub(view.occupancy.held_on(name)).min(wanted))
}

fn moved(gang: &Gang, view: &View<'_>, seen: &mut Sightings) -> Amounts {
    let Some(job) = view.state.jobs.get(&gang.job) else { return Amounts::default() };
    match job.state {
        JobState::Running { since_us } if since_us > gang.since_us => {
            seen.step_us = job.checkpoint.step_us.or(seen.step_us);
            Amounts::gained(milli(job.held_gpus()))
        }
        JobState::Pending { .. } => Amounts { forgone: milli(gang.gpus), ..Amounts::default() },
        _ => Amounts::default(),
    }
}

pub(super) fn drain_realised(
    found: &Findings,
    of: &Measured<'_>,
    with: &Companions<'_>,
    node: &NodeName,
) -> Realised {
    match of.basis {
        Some(Basis::Drain { evidence: Some(evidence), at_risk, .. }) => {
            suspect(found, of, with, (node, evidence), *at_risk)
        }
        Some(Basis::Drain { evidence: None, gang, .. }) => slow(found, with, gang.as_ref()),
        _ => unknown("the state at its decision was not recorded"),
    }
}

/// Result of draining a slow node: with steps before and after, r = after / before is the rate at
/// which the gang would have gone on, so it gained (1 - r) of the time it ran and lost r of the
/// time it waited.
fn slow(found: &Findings, with: &Companions<'_>, gang: Option<&Gang>) -> Realised {
    let sums = found.sums.gpu_ms();
    let idle = sums.idle;
    let Some(lost) = with.lost else { return unknown("what the gang lost by moving is not known") };
    if sums.gained == 0 && sums.forgone == 0 {
        let without = Some(format!(
            "nothing would have differed for its gang, which was not moved; the node stood idle for {} GPU-hours that jobs waited for",
            hours(idle)
        ));
        let net = Interval { low_gpu_ms: -lost.high_gpu_ms, high_gpu_ms: -lost.low_gpu_ms };
        return bounded(net, net.as_point(), idle, without);
    }
    let Some((gang, before, after)) = gang
        .and_then(|gang| Some((gang, gang.step_us?, found.sightings.step_us?)))
        .filter(|(_, before, _)| *before > 0)
    else {
        return unknown("its gang reported no steps before or after it moved");
    };
    let slowly = |gpu_ms: i64| {
        let slow = i128::from(gpu_ms) * i128::from(after) / i128::from(before);
        i64::try_from(slow).unwrap_or(i64::MAX)
    };
    let gained = sums.gained - slowly(sums.gained + sums.forgone);
    // What it lost, it had done at the slow rate.
    let lost = Interval { low_gpu_ms: slowly(lost.low_gpu_ms), high_gpu_ms: slowly(lost.high_gpu_ms) };
    let without = Some(format!(
        "job {} would have gone on with steps of {:.2} s instead of {:.2} s and lost nothing by moving ({}); the node stood idle for {} that jobs waited for",
        gang.job,
        before as f64 / 1e6,
        after as f64 / 1e6,
        range(lost),
        hours(idle)
    ));
    let net = Interval { low_gpu_ms: gained - lost.high_gpu_ms, high_gpu_ms: gained - lost.low_gpu_ms };
    bounded(net, net.as_point(), idle, without)
}

/// Result of draining a suspect node. With the probability p that it would have failed, it
/// prevented the loss of the work at risk, as far as its jobs had left it; and the node would have
/// been out for half of the time anyway, if a failure is as likely at any moment. One that failed
/// while it was out would have failed in service.
fn suspect(
    found: &Findings,
    of: &Measured<'_>,
    with: &Companions<'_>,
    (node, evidence): (&NodeName, &Evidence),
    at_risk: Option<Interval>,
) -> Realised {
    let sums = found.sums.gpu_ms();
    let Some(at_risk) = at_risk else { return unknown("the work at risk on the node was not known") };
    let idle = sums.idle;
    if found.sightings.failed_us.is_some() {
        let kept = if found.sightings.is_busy { Interval::point(0) } else { at_risk };
        let without = Some(format!(
            "it would have failed in service, as it did while it was drained, and {} of work been lost; until then it stood idle for {} GPU-hours that jobs waited for",
            range(kept),
            hours(idle)
        ));
        return bounded(kept, kept.as_point(), idle, without);
    }
    let (failed, all) = with.suspects.like(node, evidence, of.begun_us);
    let (low, high) = wilson(failed, all);
    let period = found.period_us.max(1) as f64;
    // The sum is in thousandths of a GPU-µs a µs.
    let empty = 1.0 - (found.sums.forgone as f64 / period).clamp(0.0, 1.0);
    let benefit = |p: f64, risk: i64| (p * (risk as f64 * empty + idle as f64 / 2.0)).round() as i64;
    let bounds = Interval {
        low_gpu_ms: benefit(low, at_risk.low_gpu_ms),
        high_gpu_ms: benefit(high, at_risk.high_gpu_ms),
    };
    let hours_out = of.predicted.over_ms as f64 / 3.6e6;
    let share = f64::from(failed) / f64::from(all.max(1));
    let point = at_risk.as_point().filter(|_| all > 0).map(|risk| benefit(share, risk));
    let why = if all == 0 {
        "no other node had like evidence, so whether it would have failed is unknown".to_owned()
    } else {
        format!(
            "{failed} of {all} nodes with like evidence failed within {hours_out:.0} h, so it would have failed with probability {low:.2} to {high:.2}"
        )
    };
    let without = Some(format!(
        "{why}; {} of work was at risk; it stood idle for {} GPU-hours that jobs waited for",
        range(at_risk),
        hours(idle)
    ));
    bounded(bounds, point, idle, without)
}

/// A benefit within bounds, less a known cost.
fn bounded(benefit: Interval, point: Option<i64>, cost: i64, without: Option<String>) -> Realised {
    let net = benefit.plus(Interval::point(-cost));
    let interval = net.as_point().is_none().then_some(net);
    let is_estimate = interval.is_some();
    Realised { interval, without, is_estimate, ..Realised::verified(point, Some(cost)) }
}

/// Gained: what jobs hold on the returned node and would not have found free elsewhere in its pool.
/// If it fails, the work of its jobs since they last saved is lost.
pub(super) fn returned(of: &Measured<'_>, view: &View<'_>, seen: &mut Sightings) -> Option<Amounts> {
    let Change::ReturnNode { node: name, .. } = of.change else { return None };
    let node = view.state.nodes.get(name)?;
    if node.state == NodeState::Unknown {
        return None;
    }
    if seen.failed_us.is_none()
        && (node.state == NodeState::Down || node.health.fatal || node.drain.is_some())
    {
        seen.failed_us = Some(view.state.at_us);
        seen.lost = seen.at_risk;
    }
    if seen.failed_us.is_some() {
        return Some(Amounts::default());
    }
    let held = view.occupancy.held_on(name);
    seen.is_busy = held > 0;
    let on = view.state.jobs.values().filter(|job| job.placement.contains_key(name));
    seen.at_risk = on
        .map(|job| unsaved(job, view.state.at_us))
        .try_fold(Interval::point(0), |sum, lost| Some(sum.plus(lost?)));
    let elsewhere = view.occupancy.free(&node.pool).saturating_sub(node.gpus.saturating_sub(held));
    Some(Amounts::gained(milli(held.saturating_sub(elsewhere))))
}

/// Work that a job would lose if its node failed now.
fn unsaved(job: &Job, at_us: i64) -> Option<Interval> {
    let stop = Stop {
        gpus: job.held_gpus(),
        since_us: job.running_since_us(),
        again_ms: job.checkpoint.restart_ms.unwrap_or(0),
        is_shrink: false,
        expected_gpu_ms: 0,
        least_gpu_ms: None,
        starts_over: starts_over(job),
    };
    stop.lost(job.checkpoint.last_us, at_us)
}

pub(super) fn return_realised(found: &Findings) -> Realised {
    let gained = found.sums.gpu_ms().gained;
    let used = format!("jobs would not have had the {} GPU-hours that they used on the node", hours(gained));
    if found.sightings.failed_us.is_none() {
        return Realised { without: Some(used), ..Realised::verified(Some(gained), Some(0)) };
    }
    let Some(lost) = found.sightings.lost else {
        let without = Some(format!("{used}, and not lost unknown work when it failed or was drained again"));
        return Realised { without, ..Realised::verified(Some(gained), None) };
    };
    let without = Some(format!("{used}, and not lost {} when it failed or was drained again", range(lost)));
    Realised { without, ..Realised::less(gained, Some(lost)) }
}
