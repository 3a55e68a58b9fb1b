//! Invariants of the copy that a look at one action cannot see.

use std::collections::BTreeSet;

use super::copy::ClusterCopy;
use super::rules::{grown, grows_by, room, share_of_node};
use crate::action::{Action, Adjustment, Change};
use crate::guard::pool_floor;
use crate::state::{GrowBy, Job};

/// Why an action does not fit the copy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Conflict {
    /// With numbers.
    pub(super) why: String,
    /// It counts only if actions cause it together: about one action alone the guard decides.
    pub(super) only_together: bool,
}

fn conflict(why: String) -> Result<(), Conflict> {
    Err(Conflict { why, only_together: false })
}

fn together(why: String) -> Result<(), Conflict> {
    Err(Conflict { why, only_together: true })
}

/// Whether `action` fits the copy as it is. Leaves the copy as it was.
///
/// # Errors
/// What it breaks.
pub(super) fn check<'a>(copy: &mut ClusterCopy<'a>, action: &'a Action) -> Result<(), Conflict> {
    match &action.change {
        Change::ResizeJob { job, to_gpus, .. } => {
            let Some(found) = copy.state.jobs.get(job) else { return Ok(()) };
            if *to_gpus > copy.held_gpus(job) { growth(copy, action, found) } else { shrink(copy, action) }
        }
        Change::Preempt { job, .. } if copy.held_gpus(job) == 0 => {
            together(format!("job {job} holds no GPU any more: another action stops it"))
        }
        Change::Lend { extends: None, from, pool, gpus, .. } => {
            lent_nodes(copy, action)?;
            keeps(copy, from, pool, *gpus)
        }
        Change::AdjustReservation(Adjustment::Quota { owner, pool, from_gpus, to_gpus })
            if to_gpus < from_gpus =>
        {
            quota(copy, owner, pool, *to_gpus)
        }
        Change::AdjustReservation(Adjustment::Reservation { name, pool, to_gpus, .. }) => {
            let before = copy.reservations.get(name.as_str()).map_or(0, |found| found.gpus);
            reserved(copy, pool, i64::from(*to_gpus) - i64::from(before), 0)
        }
        Change::DrainNode { node, .. } => drain(copy, node),
        _ => Ok(()),
    }
}

/// Growth needs free GPUs that no action before it takes, within its owner's limit.
fn growth<'a>(copy: &mut ClusterCopy<'a>, action: &'a Action, job: &'a Job) -> Result<(), Conflict> {
    let Change::ResizeJob { job: id, to_gpus, add_nodes, .. } = &action.change else { return Ok(()) };
    let Some((id, _)) = copy.state.jobs.get_key_value(id) else { return Ok(()) };
    let held = copy.held_gpus(id);
    let more = to_gpus - held;
    if let Some(limit) = copy.limit_gpus(&job.owner, &job.pool) {
        let used = copy.used_gpus(&job.owner, &job.pool);
        if used + more > limit {
            return conflict(format!(
                "{} would use {} GPUs of {}, {used} before and {more} more; its limit is {limit}",
                job.owner,
                used + more,
                job.pool
            ));
        }
    }
    let fits = match grows_by(job) {
        GrowBy::Requeue => {
            // It stops first, so its own GPUs are free to it.
            let before = copy.placement(id);
            let hold = |copy: &mut ClusterCopy<'a>, sign: i64| {
                for (node, gpus) in &before {
                    let held = |held: u32| (i64::from(held) + sign * i64::from(*gpus)).max(0) as u32;
                    copy.change_node(node, |node| node.held = held(node.held));
                }
            };
            hold(copy, -1);
            let fits = room(copy, job, *to_gpus, share_of_node(&before)).is_some();
            hold(copy, 1);
            fits
        }
        _ => grown(copy, id, job, *to_gpus, add_nodes).is_some(),
    };
    if fits {
        return Ok(());
    }
    let free = copy.free_gpus(&job.pool);
    conflict(format!(
        "there is no room for {more} more GPUs of job {id} where it may run: {free} of {} are free{}",
        job.pool,
        if free >= more { ", but not together or not for it" } else { "" }
    ))
}

/// A shrink keeps what its job holds on the named nodes.
fn shrink(copy: &ClusterCopy<'_>, action: &Action) -> Result<(), Conflict> {
    let Change::ResizeJob { job, to_gpus, keep_nodes, .. } = &action.change else { return Ok(()) };
    let kept: u32 = copy
        .placement(job)
        .iter()
        .filter(|(node, _)| keep_nodes.contains(**node))
        .map(|(_, gpus)| gpus)
        .sum();
    if kept == *to_gpus {
        return Ok(());
    }
    together(format!("job {job} would keep {kept} GPUs on its nodes and not {to_gpus}"))
}

/// Lent nodes are free, in service, and lent once.
fn lent_nodes(copy: &ClusterCopy<'_>, action: &Action) -> Result<(), Conflict> {
    let Change::Lend { nodes, .. } = &action.change else { return Ok(()) };
    for name in nodes {
        let Some(node) = copy.node(name) else { continue };
        if let Some(to) = node.lent_to {
            return together(format!("node {name} is lent to {to}"));
        }
        if node.held > 0 {
            return together(format!("{} GPUs of node {name} are held by jobs that nobody moves", node.held));
        }
        if !node.in_service {
            return together(format!("node {name} takes no jobs"));
        }
    }
    Ok(())
}

/// GPUs that a lender keeps of a pool: its floor, what it needs now, and its promise to requests.
fn least(copy: &ClusterCopy<'_>, owner: &str, pool: &str) -> u32 {
    let Some(share) = copy.state.share(owner, pool) else { return 0 };
    let demand = share.demand_gpus.unwrap_or(0);
    share.floor_gpus.max(demand).max(copy.policy.service_floor(owner, pool, f64::from(demand)))
}

/// After lending `more`, an owner keeps what it needs of the pool, and its floor over all pools.
fn keeps(copy: &ClusterCopy<'_>, owner: &str, pool: &str, more: u32) -> Result<(), Conflict> {
    let (quota, lent, least) =
        (copy.quota_gpus(owner, pool), copy.lent_gpus(owner, pool) + more, least(copy, owner, pool));
    if quota < lent.saturating_add(least) {
        return together(format!(
            "{owner} would keep {} of its {quota} GPUs of {pool} with {lent} lent; {least} must stay",
            quota.saturating_sub(lent)
        ));
    }
    let Some(floor) = copy.policy.floors.owners.get(owner).copied() else { return Ok(()) };
    let shares = copy.state.owners.get(owner).map(|owner| owner.shares.keys());
    let all: u32 = shares.into_iter().flatten().map(|pool| copy.quota_gpus(owner, pool)).sum();
    let away: u32 = copy.loans.values().filter(|loan| loan.from == owner).map(|loan| loan.gpus).sum();
    if all < away.saturating_add(more).saturating_add(floor) {
        return together(format!(
            "{owner} would keep {} of its {all} GPUs; its floor is {floor}",
            all.saturating_sub(away + more)
        ));
    }
    Ok(())
}

/// A lower quota still covers the loans that this batch opens, as each was decided under the old.
fn quota(copy: &ClusterCopy<'_>, owner: &str, pool: &str, to_gpus: u32) -> Result<(), Conflict> {
    let lent = copy.lent_gpus(owner, pool);
    if lent <= copy.state.lent_gpus(owner, pool) {
        return Ok(());
    }
    let least = least(copy, owner, pool);
    if to_gpus >= lent.saturating_add(least) {
        return Ok(());
    }
    together(format!(
        "{owner} would keep {} of {to_gpus} GPUs of {pool} with {lent} lent; {least} must stay",
        to_gpus.saturating_sub(lent)
    ))
}

/// All reservations of a pool together fit what is in service, with `more` reserved and `gone` out
/// of service.
fn reserved(copy: &ClusterCopy<'_>, pool: &str, more: i64, gone: u32) -> Result<(), Conflict> {
    let of_pool = copy.reservations.values().filter(|found| found.pool == pool);
    let reserved = of_pool.map(|found| i64::from(found.gpus)).sum::<i64>() + more;
    let in_service = i64::from(copy.in_service_gpus(pool)) - i64::from(gone);
    if reserved <= in_service || (more <= 0 && gone == 0) {
        return Ok(());
    }
    together(format!("{reserved} GPUs of {pool} would be reserved, and {in_service} are in service"))
}

/// A pool keeps its floor in service, and what is reserved of it.
fn drain(copy: &ClusterCopy<'_>, name: &str) -> Result<(), Conflict> {
    let Some(node) = copy.node(name).filter(|node| node.in_service) else { return Ok(()) };
    let left = copy.in_service_gpus(node.pool).saturating_sub(node.gpus);
    let floor = pool_floor(copy.policy, copy.state, node.pool);
    if left < floor {
        return together(format!("pool {} would have {left} GPUs in service, {floor} must stay", node.pool));
    }
    reserved(copy, node.pool, 0, node.gpus)
}

/// Why a reclaim does not free what it takes back: jobs that stay on its nodes.
pub(super) fn stays_held(copy: &mut ClusterCopy<'_>, action: &Action) -> Option<String> {
    let Change::Reclaim { loan, nodes, .. } = &action.change else { return None };
    // A node that has gone back may hold a job of its owner.
    let held = |node: &&str| copy.node(node).is_some_and(|node| node.in_transit && node.held > 0);
    let busy: BTreeSet<&str> = nodes.iter().map(String::as_str).filter(held).collect();
    if busy.is_empty() {
        return None;
    }
    let holders = copy.holders(&busy);
    let gpus: u32 = holders.values().sum();
    let jobs: Vec<&str> = holders.keys().copied().take(4).collect();
    Some(format!("{gpus} GPUs of loan {loan} stay held, by job {}", jobs.join(", ")))
}
