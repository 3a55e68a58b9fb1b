//! Rate checks: budgets, concurrency, circuit breaker, failure domains, owners' losses.

use std::collections::BTreeSet;

use tidegate_units::{Micros, Millis};

use super::history::{direction, prolongs};
use super::{ActionStatus, Context, PastAction, Refusal, Rule, counts_as, refuse, subject};
use crate::action::{Change, Kind};
use crate::state::DrainedBy;
use crate::state::interruption;

const HOUR_US: i64 = 3_600_000_000;
const DAY_US: i64 = 24 * HOUR_US;

/// One change of an object at a time. Loans count against their lender, who may have several in
/// flight, so they are exempt.
pub(super) fn busy(ctx: &Context<'_>) -> Option<Refusal> {
    if matches!(ctx.kind, Kind::Lend | Kind::Reclaim) && !prolongs(&ctx.action.change) {
        return None;
    }
    let subject = subject(&ctx.action.change, ctx.state);
    let open = ctx.history.about(&subject).find(|past| past.outcome == ActionStatus::UnderWay)?;
    refuse(Rule::Busy, format!("{} of {subject} is in flight", open.id))
}

/// Extensions use no budget: no GPU changes hands, and the dwell rule allows one per term.
pub(super) fn budget(ctx: &Context<'_>) -> Option<Refusal> {
    if prolongs(&ctx.action.change) {
        return None;
    }
    let kind = counts_as(&ctx.action.change, ctx.state);
    let budget = ctx.policy.budget(kind);
    let of_kind = |within_us: i64| {
        let past = ctx.history.since(ctx.now_us, within_us);
        past.filter(move |past| past.counts_as == kind && !past.prolongs())
    };
    let (hour, day) = (of_kind(HOUR_US).count(), of_kind(DAY_US).count());
    if hour >= budget.per_hour as usize {
        return refuse(Rule::Budget, format!("{hour} of {} actions per hour are used", budget.per_hour));
    }
    if day >= budget.per_day as usize {
        return refuse(Rule::Budget, format!("{day} of {} actions per day are used", budget.per_day));
    }
    let gpus: u64 = of_kind(HOUR_US).map(|past| u64::from(past.gpus)).sum();
    let most = budget.most_gpus_per_hour(fleet_gpus(ctx));
    if gpus + u64::from(ctx.gpus) > most {
        return refuse(
            Rule::Budget,
            format!("{gpus} GPUs were touched within the hour, {} more exceed {most}", ctx.gpus),
        );
    }
    None
}

pub(super) fn concurrency(ctx: &Context<'_>) -> Option<Refusal> {
    let open = |past: &&PastAction| past.kind == ctx.kind && past.outcome == ActionStatus::UnderWay;
    let (open, most) = (ctx.history.past.iter().filter(open).count(), ctx.policy.budget(ctx.kind).concurrent);
    (open >= most as usize).then_some(())?;
    refuse(Rule::Concurrency, format!("{open} are in flight, the limit is {most}"))
}

fn fleet_gpus(ctx: &Context<'_>) -> u64 {
    ctx.state.nodes.values().map(|node| u64::from(node.gpus)).sum()
}

/// Kinds that take something from running work. A job that leaves a loan counts as reclaiming
/// instead.
fn disturbs(kind: Kind) -> bool {
    matches!(kind, Kind::ResizeJob | Kind::DrainNode | Kind::Preempt)
}

/// Too much of the fleet touched, or too many failures, within the window stop everything but
/// restoring actions.
pub(super) fn breaker(ctx: &Context<'_>) -> Option<Refusal> {
    if ctx.restores {
        return None;
    }
    let blast = &ctx.policy.blast;
    let recent = || ctx.history.since(ctx.now_us, Micros::from_secs(blast.window_s).0);
    let failed = |past: &&PastAction| {
        matches!(past.outcome, ActionStatus::Failed { .. } | ActionStatus::Compensated { .. })
    };
    let failures = recent().filter(failed).count();
    if failures >= blast.failures as usize {
        return refuse(Rule::Breaker, format!("{failures} actions failed in {} s", blast.window_s));
    }
    if !disturbs(ctx.kind) {
        return None;
    }
    let fleet = fleet_gpus(ctx);
    let touched: u64 =
        recent().filter(|past| disturbs(past.counts_as)).map(|past| u64::from(past.gpus)).sum();
    let all = touched + u64::from(ctx.gpus);
    if all as f64 > blast.fleet_share * fleet as f64 {
        let share = blast.fleet_share;
        return refuse(
            Rule::Breaker,
            format!("{all} of {fleet} GPUs within {} s are more than {share}", blast.window_s),
        );
    }
    None
}

/// Drains one rack at a time.
pub(super) fn failure_domain(ctx: &Context<'_>) -> Option<Refusal> {
    let Change::DrainNode { node, .. } = &ctx.action.change else { return None };
    let rack = |name: &String| {
        let rack = ctx.state.nodes.get(name).and_then(|node| node.rack.clone());
        rack.unwrap_or_else(|| name.clone())
    };
    let ours = ctx.state.nodes.iter().filter(|(_, node)| {
        node.drain.as_ref().is_some_and(|drain| matches!(drain.by, DrainedBy::Autopilot { .. }))
    });
    let mut out: BTreeSet<String> = ours.map(|(name, _)| rack(name)).collect();
    for past in ctx.history.past.iter().filter(|past| past.outcome == ActionStatus::UnderWay) {
        out.extend(past.racks.iter().cloned());
    }
    out.remove(&rack(node));
    let most = ctx.policy.blast.racks as usize;
    (out.len() >= most).then_some(())?;
    let out: Vec<String> = out.into_iter().collect();
    refuse(Rule::FailureDomain, format!("nodes in {} are already out of service", out.join(", ")))
}

/// Limits the work an owner may lose in a day. The pause of a growing job is the price of its own
/// gain, and what a borrower returns was never its own; neither counts.
pub(super) fn owner_loss(ctx: &Context<'_>) -> Option<Refusal> {
    let job = ctx.state.jobs.get(ctx.action.change.job()?)?;
    if direction(&ctx.action.change) > 0 || (ctx.restores && ctx.state.on_loan(job)) {
        return None;
    }
    let loss = expected_loss(ctx);
    let lost_to_us = |past: &&PastAction| {
        past.owner.as_ref() == Some(&job.owner) && past.direction < 0 && past.counts_as != Kind::Reclaim
    };
    let past = ctx.history.since(ctx.now_us, DAY_US).filter(lost_to_us);
    let lost: i64 = past.map(|past| past.lost_gpu_ms).sum();
    let shares = ctx.state.owners.get(&job.owner).map(|owner| owner.shares.values());
    let own: u64 = shares.into_iter().flatten().map(|share| u64::from(share.quota_gpus)).sum();
    let most = ctx.policy.blast.owner_lost_in_a_day(own);
    let all = (lost + loss) as f64 / 3.6e6;
    (all > most).then_some(())?;
    refuse(
        Rule::OwnerLoss,
        format!("{} would have lost {all:.1} GPU-hours in 24 hours, the limit is {most}", job.owner),
    )
}

/// Expected work lost by the action's job.
fn expected_loss(ctx: &Context<'_>) -> i64 {
    let Some(job) = ctx.action.change.job().and_then(|id| ctx.state.jobs.get(id)) else { return 0 };
    match ctx.action.change {
        Change::Preempt { .. } => {
            interruption(job, job.held_gpus(), ctx.now_us, &ctx.policy.preempt).planned_gpu_ms()
        }
        Change::ResizeJob { .. } => {
            let pause_ms = job.checkpoint.resize_ms.unwrap_or(Millis::from_secs(ctx.policy.resize.pause_s).0);
            i64::from(job.held_gpus()) * pause_ms
        }
        _ => 0,
    }
}
