//! Authority checks: kill switch, rejections, mode, approval, calendar, opt-in, protection, foreign
//! changes.

use tidegate_units::Micros;

use super::{Context, KillSwitch, Refusal, Rejection, Rule, refuse};
use crate::action::{Adjustment, Change, Kind};
use crate::policy::Mode;
use crate::state::{DrainedBy, Job, JobKind, Writer};

pub(super) fn switch(ctx: &Context<'_>) -> Option<Refusal> {
    match ctx.history.switch {
        KillSwitch::On => None,
        KillSwitch::Paused => refuse(Rule::Switch, "the autopilot is paused"),
        KillSwitch::Unreadable => refuse(Rule::Switch, "the kill switch cannot be read and counts as off"),
    }
}

/// How long a rejection refuses the like, µs.
const REJECTED_US: i64 = 86_400_000_000;

/// Refuses for a day what a person rejected. This includes actions that restore capacity: a loan
/// ends by itself, so rejecting its reclaim strands nothing. A later approval of the action lifts
/// the refusal.
pub(super) fn rejected(ctx: &Context<'_>) -> Option<Refusal> {
    let object = ctx.action.change.object();
    let about = |past: &&Rejection| {
        past.kind == ctx.kind && past.object == object && ctx.now_us - past.at_us < REJECTED_US
    };
    let Rejection { by, why, at_us, .. } = ctx.history.rejections.iter().rev().find(about)?;
    let approved = ctx.history.approvals.get(&ctx.action.id);
    if approved.is_some_and(|approved| approved.at_us > *at_us) {
        return None;
    }
    let (kind, ago_s) = (ctx.kind, Micros(ctx.now_us - at_us).floor_secs());
    let because = why.as_ref().map_or_else(String::new, |why| format!(" ({why})"));
    refuse(
        Rule::Rejected,
        format!("{by} rejected {kind} of {object} {ago_s} s ago{because}; the like is refused for 24 hours"),
    )
}

pub(super) fn mode(ctx: &Context<'_>) -> Option<Refusal> {
    let policy = ctx.policy.mode(ctx.kind, &ctx.footprint);
    // A demotion by scorecard does not hold back restoring actions: they undo.
    let earned = ctx.history.earned.get(&ctx.kind).copied().filter(|_| !ctx.restores);
    let mode = earned.map_or(policy, |earned| policy.min(earned));
    let because = if mode < policy { "its scorecard" } else { "the policy" };
    let approved = ctx.history.approvals.contains_key(&ctx.action.id);
    match mode {
        Mode::Act => None,
        Mode::Approve if approved => None,
        Mode::Approve => {
            refuse(Rule::Mode, format!("{because} asks for a person's approval of {}", ctx.kind))
        }
        Mode::Stop | Mode::Observe | Mode::Suggest => {
            refuse(Rule::Mode, format!("{because} says {} for {}", mode.name(), ctx.kind))
        }
    }
}

pub(super) fn irreversible(ctx: &Context<'_>) -> Option<Refusal> {
    if ctx.action.change.needs_person() {
        return refuse(Rule::Irreversible, "a purchase or its end is only ever proposed");
    }
    let given_up =
        matches!(ctx.action.change, Change::AdjustReservation(Adjustment::Reservation { to_gpus: 0, .. }));
    if given_up && !ctx.history.approvals.contains_key(&ctx.action.id) {
        return refuse(Rule::Irreversible, "a reservation is given up only with a person's approval");
    }
    None
}

pub(super) fn calendar(ctx: &Context<'_>) -> Option<Refusal> {
    if ctx.restores {
        return None;
    }
    let freeze = ctx.policy.frozen(ctx.kind, &ctx.footprint, ctx.now_us)?;
    refuse(Rule::Calendar, format!("{:?} from {} to {}", freeze.name, freeze.from, freeze.to))
}

/// Marked jobs and nodes are left alone, whatever the benefit. A job may be stopped only if it is
/// preemptible, runs on a loan, or moves off a node that is being drained.
pub(super) fn protected(ctx: &Context<'_>) -> Option<Refusal> {
    if let Some((id, job)) = the_job(ctx) {
        if job.do_not_disrupt {
            return refuse(Rule::Protected, format!("job {id} is marked do-not-disrupt"));
        }
        if matches!(job.kind, JobKind::Service { .. }) {
            return refuse(Rule::Protected, format!("{id} is a service"));
        }
        let drains =
            |after: &String| ctx.history.find(after).is_some_and(|past| past.kind == Kind::DrainNode);
        let ours = |name: &String| {
            let drain = ctx.state.nodes.get(name).and_then(|node| node.drain.as_ref());
            drain.is_some_and(|drain| drain.by != DrainedBy::Other)
        };
        let moves = ctx.action.after.iter().any(drains) || job.placement.keys().any(ours);
        let stoppable = job.preemptible || ctx.state.on_loan(job) || moves;
        if ctx.kind == Kind::Preempt && !stoppable {
            return refuse(Rule::Protected, format!("job {id} may not be stopped for others"));
        }
    }
    if matches!(ctx.kind, Kind::DrainNode | Kind::Lend) {
        let marked = ctx
            .footprint
            .nodes
            .iter()
            .find(|name| ctx.state.nodes.get(*name).is_some_and(|n| n.do_not_disrupt));
        if let Some(name) = marked {
            return refuse(Rule::Protected, format!("node {name} is marked do-not-disrupt"));
        }
    }
    None
}

/// A borrower has agreed to give capacity back; every other owner must opt in.
pub(super) fn opt_in(ctx: &Context<'_>) -> Option<Refusal> {
    let (id, job) = the_job(ctx)?;
    if ctx.policy.require_opt_in && !job.opt_in && !ctx.state.on_loan(job) {
        return refuse(Rule::OptIn, format!("the owner of job {id} has not opted in"));
    }
    None
}

pub(super) fn foreign(ctx: &Context<'_>) -> Option<Refusal> {
    let state = ctx.state;
    match &ctx.action.change {
        Change::Reclaim { loan, .. } | Change::Lend { extends: Some(loan), .. } => {
            let theirs = state.loans.get(loan).is_some_and(|loan| loan.writer == Writer::Other);
            theirs.then_some(())?;
            refuse(Rule::Foreign, format!("somebody else changed loan {loan} last"))
        }
        Change::ReturnNode { node, .. } | Change::DrainNode { node, .. } => {
            let drain = state.nodes.get(node)?.drain.as_ref()?;
            (drain.by == DrainedBy::Other).then_some(())?;
            refuse(Rule::Foreign, format!("somebody else drained {node}: {}", drain.reason))
        }
        Change::AdjustReservation(Adjustment::Reservation { name, .. }) => {
            let theirs = state.reservations.get(name).is_some_and(|found| found.writer == Writer::Other);
            theirs.then_some(())?;
            refuse(Rule::Foreign, format!("somebody else changed reservation {name} last"))
        }
        _ => None,
    }
}

fn the_job<'a>(ctx: &Context<'a>) -> Option<(&'a str, &'a Job)> {
    let id = ctx.action.change.job()?;
    ctx.state.jobs.get(id).map(|job| (id.as_str(), job))
}
