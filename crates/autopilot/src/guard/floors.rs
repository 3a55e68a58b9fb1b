//! Floors: capacity of pools, owners and jobs that always stays.

use super::{ActionStatus, Context, PastAction, Refusal, Rule, refuse};
use crate::action::{Adjustment, Change, Kind};
use crate::policy::Policy;
use crate::state::{ClusterState, JobKind, Object};

/// GPUs of all nodes of a pool.
pub fn pool_gpus(state: &ClusterState, pool: &str) -> u32 {
    state.nodes.values().filter(|node| node.pool == pool).map(|node| node.gpus).sum()
}

/// GPUs of a pool that must stay in service: the largest of the pool's own floor, the policy's
/// named floor, and the policy's share of the pool.
pub fn pool_floor(policy: &Policy, state: &ClusterState, pool: &str) -> u32 {
    let own = state.pools.get(pool).map_or(0, |pool| pool.floor_gpus);
    let named = policy.floors.pools.get(pool).copied().unwrap_or(0);
    let share = (f64::from(pool_gpus(state, pool)) * policy.floors.in_service_share).ceil();
    // A share of a u32 fits in one.
    own.max(named).max(share as u32)
}

pub(super) fn floors(ctx: &Context<'_>) -> Option<Refusal> {
    match &ctx.action.change {
        Change::DrainNode { node, .. } => drain(ctx, node),
        Change::Lend { from, pool, gpus, extends, .. } => {
            let more = if extends.is_some() { 0 } else { *gpus };
            lend(ctx, from, pool, more)
        }
        Change::ResizeJob { job, to_gpus, from_gpus, keep_nodes, .. } => {
            let found = ctx.state.jobs.get(job)?;
            if !matches!(found.kind, JobKind::Elastic { .. }) {
                return refuse(Rule::Floor, format!("job {job} has only one size"));
            }
            if found.sizes().binary_search(to_gpus).is_err() {
                return refuse(Rule::Floor, format!("{to_gpus} GPUs is not a size job {job} declared"));
            }
            let anchor =
                found.anchor_node.as_ref().filter(|node| to_gpus < from_gpus && !keep_nodes.contains(*node));
            anchor.and_then(|node| refuse(Rule::Floor, format!("node {node} cannot be taken from job {job}")))
        }
        Change::AdjustReservation(Adjustment::Quota { owner, pool, from_gpus, to_gpus })
            if to_gpus < from_gpus =>
        {
            let share = ctx.state.share(owner, pool)?;
            let service = ctx.policy.service_floor(owner, pool, f64::from(share.demand_gpus.unwrap_or(0)));
            let least = share.floor_gpus.max(ctx.state.lent_gpus(owner, pool)).max(service);
            (*to_gpus < least).then_some(())?;
            refuse(
                Rule::Floor,
                format!("{owner} must keep at least {least} GPUs of {pool}, for its floor and its loans"),
            )
        }
        _ => None,
    }
}

fn drain(ctx: &Context<'_>, node: &str) -> Option<Refusal> {
    let node = ctx.state.nodes.get(node)?;
    let in_pool = ctx.state.nodes.values().filter(|other| other.pool == node.pool && other.takes_jobs());
    let seen: u32 = in_pool.map(|node| node.gpus).sum();
    // Drains not visible in the observation yet.
    let going = unseen(ctx, Kind::DrainNode).filter_map(|past| match &past.subject {
        Object::Node(name) => ctx.state.nodes.get(name),
        _ => None,
    });
    let going: u32 =
        going.filter(|other| other.pool == node.pool && other.takes_jobs()).map(|node| node.gpus).sum();
    let in_service = seen.saturating_sub(going);
    let floor = pool_floor(ctx.policy, ctx.state, &node.pool);
    (in_service < floor + node.gpus).then_some(())?;
    refuse(Rule::Floor, format!("pool {} has {in_service} GPUs in service, {floor} must stay", node.pool))
}

/// Actions of a kind that the observation cannot show: in flight, or begun after it was made.
fn unseen<'a>(ctx: &Context<'a>, kind: Kind) -> impl Iterator<Item = &'a PastAction> {
    let observed_us = ctx.state.at_us;
    let past = ctx.history.past.iter().filter(move |past| past.kind == kind);
    past.filter(move |past| match past.outcome {
        ActionStatus::UnderWay => true,
        ActionStatus::Verified => past.at_us >= observed_us,
        ActionStatus::Failed { .. } | ActionStatus::Compensated { .. } => false,
    })
}

/// Never lends the share's floor, the owner's floor over all pools, or what the owner needs now.
fn lend(ctx: &Context<'_>, from: &str, pool: &str, more: u32) -> Option<Refusal> {
    let Some(share) = ctx.state.share(from, pool) else {
        return refuse(Rule::Floor, format!("{from} has no share of {pool}"));
    };
    if !share.lendable {
        return refuse(Rule::Floor, format!("the share of {from} in {pool} may not be lent"));
    }
    let Some(demand) = share.demand_gpus else {
        return refuse(Rule::Floor, format!("the demand of {from} in {pool} is unknown"));
    };
    let subject = Object::Owner(from.to_owned());
    let opening = unseen(ctx, Kind::Lend).filter(|past| past.subject == subject && past.direction != 0);
    let opening: u64 =
        opening.filter(|past| !ctx.state.loans.contains_key(&past.id)).map(|past| u64::from(past.gpus)).sum();
    let more = u64::from(more) + opening;
    let lent = u64::from(ctx.state.lent_gpus(from, pool)) + more;
    let least = share.floor_gpus.max(demand).max(ctx.policy.service_floor(from, pool, f64::from(demand)));
    if u64::from(share.quota_gpus) < lent + u64::from(least) {
        let quota = share.quota_gpus;
        return refuse(
            Rule::Floor,
            format!("{from} would keep {quota} GPUs less {lent} lent; {least} must stay (demand {demand})"),
        );
    }
    let owner = ctx.state.owners.get(from)?;
    let all: u64 = owner.shares.values().map(|share| u64::from(share.quota_gpus)).sum();
    let away: u64 =
        ctx.state.loans.values().filter(|loan| loan.from == from).map(|loan| u64::from(loan.gpus)).sum();
    let floor = u64::from(ctx.policy.floors.owners.get(from).copied().unwrap_or(0));
    (all < away + more + floor).then_some(())?;
    refuse(Rule::Floor, format!("{from} must keep {floor} of its {all} GPUs; {away} would be lent"))
}
