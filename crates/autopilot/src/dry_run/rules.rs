//! What a scheduler makes of each change: applies it to the copy.
//!
//! A shrink frees nodes, growth takes free or reserved GPUs, a loan changes who may use nodes or
//! raises a limit, a stopped job frees its GPUs and waits, a drained node takes no new jobs.

use std::collections::BTreeSet;

use super::copy::{Access, ClusterCopy, CopiedLoan, CopiedReservation, Requeued};
use super::packing::{self, FreeNodes, Placement};
use crate::action::{Action, Adjustment, Change, Precondition};
use crate::state::{GrowBy, Job, JobKind};

/// Applies a change. What cannot be applied any more, because it is in effect already or its object
/// is gone, changes nothing.
pub(super) fn apply<'a>(copy: &mut ClusterCopy<'a>, action: &'a Action) {
    if is_visible(copy, action) {
        return;
    }
    match &action.change {
        Change::ResizeJob { job, to_gpus, keep_nodes, add_nodes, .. } => {
            let Some((id, found)) = copy.state.jobs.get_key_value(job) else { return };
            let held = copy.held_gpus(id);
            if *to_gpus < held {
                let mut kept = copy.placement(id);
                kept.retain(|node, _| keep_nodes.contains(*node));
                copy.place(id, found, kept);
            } else if held == 0 || grows_by(found) == GrowBy::Requeue {
                copy.place(id, found, Placement::new());
                copy.requeued.insert(id, Requeued { gpus: *to_gpus, is_delayed: false });
            } else if let Some(grown) = grown(copy, id, found, *to_gpus, add_nodes) {
                copy.place(id, found, grown);
            }
        }
        Change::Preempt { job, .. } => {
            let Some((id, found)) = copy.state.jobs.get_key_value(job) else { return };
            if copy.held_gpus(id) > 0 {
                copy.place(id, found, Placement::new());
                let is_delayed = found.checkpoint.requeue_ms.is_some_and(|ms| ms > 0);
                copy.requeued.insert(id, Requeued { gpus: found.gpus, is_delayed });
            }
        }
        Change::Lend { extends: Some(_), .. } => {}
        Change::Lend { from, to, pool, gpus, nodes, .. } => {
            for node in nodes {
                copy.change_node(node, |node| (node.lent_to, node.in_transit) = (Some(to.as_str()), true));
            }
            if nodes.is_empty() {
                copy.move_limit(to, pool, i64::from(*gpus));
                copy.move_limit(from, pool, -i64::from(*gpus));
            }
            let nodes = nodes.iter().map(String::as_str).collect();
            copy.loans
                .insert(&action.id, CopiedLoan { from, to, pool, gpus: *gpus, nodes, is_called: false });
        }
        Change::Reclaim { loan, to_gpus, nodes, .. } => reclaim(copy, loan, *to_gpus, nodes),
        Change::AdjustReservation(Adjustment::Quota { owner, pool, to_gpus, .. }) => {
            copy.set_quota(owner, pool, *to_gpus);
        }
        Change::AdjustReservation(Adjustment::Reservation {
            name, owner, pool, to_gpus, start_us, ..
        }) => {
            reserve(copy, (name, owner, pool), *to_gpus, *start_us <= copy.now_us);
        }
        Change::AdjustReservation(Adjustment::Commitment { .. }) => {}
        Change::DrainNode { node, .. } => copy.change_node(node, |node| node.in_service = false),
        Change::ReturnNode { node, .. } => {
            let is_up = copy.state.nodes.get(node).is_some_and(|it| it.state == crate::state::NodeState::Up);
            copy.change_node(node, |node| node.in_service = is_up);
        }
    }
}

/// Whether the observation shows the change already.
fn is_visible(copy: &ClusterCopy<'_>, action: &Action) -> bool {
    let restarted = |fact: &Precondition| match fact {
        Precondition::JobRuns { job, restarts, .. } => {
            copy.state.jobs.get(job).is_some_and(|job| job.restarts != *restarts)
        }
        _ => false,
    };
    match &action.change {
        Change::Lend { .. } => copy.loans.contains_key(action.id.as_str()),
        Change::Preempt { .. } => action.preconditions.iter().any(restarted),
        Change::ResizeJob { job, to_gpus, .. } => copy.held_gpus(job) == *to_gpus,
        _ => false,
    }
}

pub(super) fn grows_by(job: &Job) -> GrowBy {
    if let JobKind::Elastic { grow, .. } = job.kind { grow } else { GrowBy::Never }
}

/// Placement of a running job with `to` GPUs, which keeps what it has. `None`: there is no room.
pub(super) fn grown<'a>(
    copy: &ClusterCopy<'a>,
    id: &str,
    job: &'a Job,
    to: u32,
    onto: &'a BTreeSet<String>,
) -> Option<Placement<'a>> {
    let mut placed = copy.placement(id);
    let more = to - placed.values().sum::<u32>().min(to);
    let found = match onto.is_empty() {
        true => room(copy, job, more, share_of_node(&placed))?,
        false => on_named(copy, more, onto)?,
    };
    for (node, gpus) in found {
        *placed.entry(node).or_default() += gpus;
    }
    Some(placed)
}

/// GPUs of a job on each of its nodes, if they are the same everywhere: then it may ask for its
/// GPUs by the node.
pub(super) fn share_of_node(placed: &Placement<'_>) -> Option<u32> {
    let first = *placed.values().next()?;
    placed.values().all(|gpus| *gpus == first).then_some(first)
}

/// Room on nodes that the action names.
fn on_named<'a>(copy: &ClusterCopy<'a>, gpus: u32, onto: &'a BTreeSet<String>) -> Option<Placement<'a>> {
    let (mut placed, mut left) = (Placement::new(), gpus);
    for name in onto {
        let take = copy.node(name).filter(|node| node.in_service).map_or(0, |node| node.free()).min(left);
        if take > 0 {
            placed.insert(name, take);
            left -= take;
        }
    }
    (left == 0).then_some(placed)
}

/// Room for `gpus` of a job on what it may use: reserved nodes, its pool, and nodes lent to its
/// owner if it is preemptible. A job that has `each` GPUs on every node may spread in such parts.
pub(super) fn room<'a>(
    copy: &ClusterCopy<'a>,
    job: &'a Job,
    gpus: u32,
    each: Option<u32>,
) -> Option<Placement<'a>> {
    let (owner, pool): (&str, &str) = (&job.owner, &job.pool);
    let own = [Access::Reserved { owner, pool }, Access::Pool(pool)];
    let own: Vec<&FreeNodes<'a>> = own.into_iter().filter_map(|access| copy.room(access)).collect();
    let lent = copy.room(Access::Lent(owner)).filter(|_| job.preemptible);
    let domains = match copy.policy.lend.gangs_span {
        true => vec![own.iter().copied().chain(lent).collect()],
        false => vec![own, lent.into_iter().collect()],
    };
    let gang = domains.iter().find_map(|domain| packing::fit(domain, gpus));
    gang.or_else(|| {
        let each = each.filter(|each| *each > 0 && gpus.is_multiple_of(*each))?;
        domains.iter().find_map(|domain| packing::fit_by_node(domain, each, gpus / each))
    })
}

/// Called-back nodes take no new jobs, and are the lender's once their jobs have left; see
/// [`settle`]. A loan by number lowers the borrower's limit at once.
fn reclaim<'a>(copy: &mut ClusterCopy<'a>, id: &'a str, to_gpus: u32, nodes: &'a BTreeSet<String>) {
    let Some(loan) = copy.loans.get_mut(id) else { return };
    loan.is_called = true;
    if !loan.nodes.is_empty() {
        let all = nodes.is_empty() && to_gpus == 0;
        let called: Vec<&'a str> = match all {
            true => loan.nodes.iter().copied().collect(),
            false => nodes.iter().map(String::as_str).filter(|node| loan.nodes.contains(node)).collect(),
        };
        called.into_iter().for_each(|node| copy.change_node(node, |node| node.in_transit = true));
        return;
    }
    let back = loan.gpus.saturating_sub(to_gpus);
    let CopiedLoan { from, to, pool, .. } = *loan;
    loan.gpus -= back;
    // An observed loan is not part of the borrower's limit; one that this batch opens is.
    if !copy.state.loans.contains_key(id) {
        copy.move_limit(to, pool, -i64::from(back));
    }
    copy.move_limit(from, pool, i64::from(back));
}

/// Lets everything take effect: what jobs leave is free, new loans are handed over, and called-back
/// nodes that are empty go back to their owner.
pub(super) fn settle(copy: &mut ClusterCopy<'_>) {
    copy.release();
    let (mut over, mut back): (Vec<&str>, Vec<(&str, &str, u32)>) = Default::default();
    for (id, loan) in &copy.loans {
        let is_new = !copy.state.loans.contains_key(*id) && !loan.is_called;
        for node in &loan.nodes {
            match copy.node(node) {
                Some(_) if is_new => over.push(node),
                Some(found) if found.in_transit && found.held == 0 => back.push((id, node, found.gpus)),
                _ => {}
            }
        }
    }
    over.into_iter().for_each(|node| copy.change_node(node, |node| node.in_transit = false));
    for (id, node, gpus) in back {
        copy.change_node(node, |node| (node.lent_to, node.in_transit) = (None, false));
        if let Some(loan) = copy.loans.get_mut(id) {
            loan.nodes.remove(node);
            loan.gpus = loan.gpus.saturating_sub(gpus);
        }
    }
}

/// Begins, resizes or ends a reservation. One that has begun takes whole free nodes of the pool;
/// which ones is the scheduler's choice.
fn reserve<'a>(
    copy: &mut ClusterCopy<'a>,
    (name, owner, pool): (&'a str, &'a str, &'a str),
    to_gpus: u32,
    has_begun: bool,
) {
    let mut found = copy.reservations.remove(name);
    let mut nodes = found.as_mut().map(|found| std::mem::take(&mut found.nodes)).unwrap_or_default();
    let gpus_of = |copy: &ClusterCopy<'a>, node: &str| copy.node(node).map_or(0, |node| node.gpus);
    let mut held: u32 = nodes.iter().map(|node| gpus_of(copy, node)).sum();
    while held > to_gpus
        && let Some(last) = nodes.pop_last()
    {
        held -= gpus_of(copy, last);
        copy.change_node(last, |node| node.reserved_for = None);
    }
    if has_begun && held < to_gpus {
        let free = copy.room(Access::Pool(pool)).and_then(|room| packing::fit(&[room], to_gpus - held));
        for (node, _) in free.into_iter().flatten() {
            copy.change_node(node, |node| node.reserved_for = Some(owner));
            nodes.insert(node);
        }
    }
    if to_gpus > 0 {
        copy.reservations.insert(name, CopiedReservation { pool, gpus: to_gpus, nodes });
    }
}
