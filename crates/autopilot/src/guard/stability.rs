//! Stability checks: dwell after a change, cooldown after failures, limit on reversals.

use tidegate_units::{Micros, Millis};

use super::history::{direction, gives_back, lasted_us};
use super::{ActionStatus, Context, PastAction, Refusal, Rule, refuse, subject};
use crate::action::{Change, Kind};
use crate::state::Object;

const DAY_US: i64 = 86_400_000_000;

pub(super) fn rests(ctx: &Context<'_>) -> Option<Refusal> {
    let ends_growth = gives_back(&ctx.action.change, ctx.state);
    cooldown(ctx)
        .or_else(|| if ctx.restores || ends_growth { None } else { dwell(ctx).or_else(|| oscillation(ctx)) })
}

fn dwell(ctx: &Context<'_>) -> Option<Refusal> {
    let dwell_s = match &ctx.action.change {
        Change::Lend { extends: Some(loan), .. } => return too_early(ctx, loan),
        Change::Lend { .. } => ctx.policy.lend.step_every_s,
        _ => ctx.policy.stability.dwell_s,
    };
    let subject = subject(&ctx.action.change, ctx.state);
    let changed = |past: &&PastAction| {
        matches!(past.outcome, ActionStatus::UnderWay | ActionStatus::Verified) && past.direction != 0
    };
    let last = ctx.history.about(&subject).rev().find(changed)?;
    let ago_us = ctx.now_us - last.at_us;
    (ago_us < Micros::from_secs(dwell_s).0).then_some(())?;
    refuse(
        Rule::Dwell,
        format!("{subject} was changed {} s ago; it must rest for {dwell_s} s", Micros(ago_us).floor_secs()),
    )
}

/// A loan is extended only near its end, and by at most a term. That bounds extensions, which use
/// no budget.
fn too_early(ctx: &Context<'_>, id: &str) -> Option<Refusal> {
    let Change::Lend { expires_us, .. } = ctx.action.change else { return None };
    let loan = ctx.state.loans.get(id)?;
    let (left_us, last_ms) = (loan.expires_us - ctx.now_us, 2 * loan.reclaim_within_ms);
    if left_us > Millis(last_ms).to_micros().0 {
        let (left_s, last_s) = (Micros(left_us).floor_secs(), Millis(last_ms).floor_secs());
        return refuse(
            Rule::Dwell,
            format!("loan {id} has {left_s} s left and is extended only in its last {last_s}"),
        );
    }
    let (more_us, term_s) = (expires_us - ctx.now_us, ctx.policy.lend.term_s);
    (more_us > Micros::from_secs(term_s).0).then_some(())?;
    let more_s = Micros(more_us).floor_secs();
    refuse(Rule::Dwell, format!("loan {id} would last another {more_s} s; a term is {term_s} s"))
}

/// The rest doubles after each further failure in a row. Repeated identical failures leave the
/// object to people.
fn cooldown(ctx: &Context<'_>) -> Option<Refusal> {
    let subject = subject(&ctx.action.change, ctx.state);
    let mut why: Option<&String> = None;
    let (mut failures, mut identical, mut last_us) = (0u32, 0u32, i64::MIN);
    for past in ctx.history.about(&subject).rev().filter(|past| past.kind == ctx.kind) {
        match &past.outcome {
            ActionStatus::Failed { why: found } | ActionStatus::Compensated { why: found } => {
                failures += 1;
                last_us = last_us.max(past.at_us);
                if identical + 1 == failures && why.is_none_or(|why| why == found) {
                    identical += 1;
                    why = Some(found);
                }
            }
            ActionStatus::Verified => break,
            ActionStatus::UnderWay => {}
        }
    }
    if failures == 0 {
        return None;
    }
    let rules = &ctx.policy.stability;
    let reason = why.map_or("", String::as_str);
    // Reclaims keep trying: the owner waits.
    if identical >= rules.failures && ctx.kind != Kind::Reclaim {
        return refuse(
            Rule::Cooldown,
            format!("it failed {identical} times in the same way ({reason}): a person must look"),
        );
    }
    let rest_s = rules.cooldown_s.saturating_mul(1 << (failures - 1).min(20)).min(rules.cooldown_most_s);
    let ago_us = ctx.now_us - last_us;
    // The owner is owed its GPUs, so a reclaim's rest does not grow.
    let rest_s = if ctx.kind == Kind::Reclaim { 0 } else { rest_s };
    (ago_us < Micros::from_secs(rest_s).0).then_some(())?;
    refuse(
        Rule::Cooldown,
        format!("it failed {} s ago ({reason}); it must rest for {rest_s} s", Micros(ago_us).floor_secs()),
    )
}

/// Counts the subject's reversals in 24 hours, this action included. Reclaiming a loan that lasted
/// its term is its normal end and does not count; nor does giving back growth that lasted as long
/// as it was expected to. A lender's reversal counts as the share of its quotas that it moves.
fn oscillation(ctx: &Context<'_>) -> Option<Refusal> {
    let subject = subject(&ctx.action.change, ctx.state);
    let done = |past: &&PastAction| {
        past.at_us > ctx.now_us - DAY_US
            && matches!(past.outcome, ActionStatus::UnderWay | ActionStatus::Verified)
    };
    let term_us = Micros::from_secs(ctx.policy.lend.term_s).0;
    let hold_us = Micros::from_secs(ctx.policy.resize.hold_s).0;
    let ended = |kind: Kind, lasted_us: Option<i64>| {
        let whole_us = if kind == Kind::ResizeJob { hold_us } else { term_us };
        lasted_us.is_some_and(|us| us >= whole_us)
    };
    let change = &ctx.action.change;
    let now = direction(change);
    if now == 0 || ended(ctx.kind, lasted_us(change, ctx.state, ctx.now_us)) {
        return None;
    }
    let past = ctx.history.about(&subject).filter(done).filter(|past| !ended(past.kind, past.lasted_us));
    let steps = past.map(|past| (past.direction, past.gpus)).chain([(now, ctx.gpus)]);
    let mut last = 0;
    let mut turned_ppm: u64 = 0;
    for (step, gpus) in steps.filter(|(step, _)| *step != 0) {
        if last != 0 && step != last {
            turned_ppm += share_ppm(ctx, &subject, gpus);
        }
        last = step;
    }
    let most = ctx.policy.stability.reversals;
    (turned_ppm > u64::from(most) * 1_000_000).then_some(())?;
    refuse(
        Rule::Oscillation,
        format!(
            "{subject} would reverse {:.1} times in 24 hours, the limit is {most}",
            turned_ppm as f64 / 1e6
        ),
    )
}

/// Share of the subject that `gpus` make up, millionths: for an owner, of its quotas; otherwise
/// all.
fn share_ppm(ctx: &Context<'_>, subject: &Object, gpus: u32) -> u64 {
    let Object::Owner(owner) = subject else { return 1_000_000 };
    let shares = ctx.state.owners.get(owner).map(|owner| owner.shares.values());
    let quota: u64 = shares.into_iter().flatten().map(|share| u64::from(share.quota_gpus)).sum();
    (u64::from(gpus) * 1_000_000 / quota.max(1)).min(1_000_000)
}
