//! Authority checks: kill switch, mode, approval, calendar, opt-in, protection, foreign changes.

use super::{Context, KillSwitch, Refusal, Rule, refuse};
use crate::action::{Adjustment, Change, Kind};
use crate::policy::Mode;
use crate::state::{DrainedBy, Job, JobKind, Writer};

pub(super) fn switch(case: &Context<'_>) -> Option<Refusal> {
    match case.history.switch {
        KillSwitch::On => None,
        KillSwitch::Paused => refuse(Rule::Switch, "the autopilot is paused"),
        KillSwitch::Unreadable => refuse(Rule::Switch, "the kill switch cannot be read: taken for off"),
    }
}

pub(super) fn mode(case: &Context<'_>) -> Option<Refusal> {
    let policy = case.policy.mode(case.kind, &case.footprint);
    // A demotion by scorecard does not hold back restoring actions: they undo.
    let earned = case.history.earned.get(&case.kind).copied().filter(|_| !case.restores);
    let mode = earned.map_or(policy, |earned| policy.min(earned));
    let because = if mode < policy { "its record" } else { "the policy" };
    let approved = case.history.approvals.contains_key(&case.action.id);
    match mode {
        Mode::Act => None,
        Mode::Approve if approved => None,
        Mode::Approve => {
            refuse(Rule::Mode, format!("{because} asks for a person's approval of {}", case.kind))
        }
        Mode::Stop | Mode::Observe | Mode::Suggest => {
            refuse(Rule::Mode, format!("{because} says {} for {}", mode.name(), case.kind))
        }
    }
}

pub(super) fn irreversible(case: &Context<'_>) -> Option<Refusal> {
    if case.action.change.needs_person() {
        return refuse(Rule::Irreversible, "a purchase or its end is only ever proposed");
    }
    let given_up =
        matches!(case.action.change, Change::AdjustReservation(Adjustment::Reservation { to_gpus: 0, .. }));
    if given_up && !case.history.approvals.contains_key(&case.action.id) {
        return refuse(Rule::Irreversible, "a reservation is given up with a person's approval only");
    }
    None
}

pub(super) fn calendar(case: &Context<'_>) -> Option<Refusal> {
    if case.restores {
        return None;
    }
    let freeze = case.policy.frozen(case.kind, &case.footprint, case.now_us)?;
    refuse(Rule::Calendar, format!("{:?} from {} to {}", freeze.name, freeze.from, freeze.to))
}

/// Marked jobs and nodes are left alone, whatever the benefit. A job may be stopped only if it is
/// preemptible, runs on a loan, or moves off a node that is being drained.
pub(super) fn protected(case: &Context<'_>) -> Option<Refusal> {
    if let Some((id, job)) = the_job(case) {
        if job.do_not_disrupt {
            return refuse(Rule::Protected, format!("job {id} is marked do-not-disrupt"));
        }
        if matches!(job.kind, JobKind::Service { .. }) {
            return refuse(Rule::Protected, format!("{id} is a service"));
        }
        let drains =
            |after: &String| case.history.find(after).is_some_and(|past| past.kind == Kind::DrainNode);
        let ours = |name: &String| {
            let drain = case.state.nodes.get(name).and_then(|node| node.drain.as_ref());
            drain.is_some_and(|drain| drain.by != DrainedBy::Other)
        };
        let moves = case.action.after.iter().any(drains) || job.placement.keys().any(ours);
        let stoppable = job.preemptible || case.state.on_loan(job) || moves;
        if case.kind == Kind::Preempt && !stoppable {
            return refuse(Rule::Protected, format!("job {id} may not be stopped for others"));
        }
    }
    if matches!(case.kind, Kind::DrainNode | Kind::Lend) {
        let marked = case
            .footprint
            .nodes
            .iter()
            .find(|name| case.state.nodes.get(*name).is_some_and(|n| n.do_not_disrupt));
        if let Some(name) = marked {
            return refuse(Rule::Protected, format!("node {name} is marked do-not-disrupt"));
        }
    }
    None
}

/// A borrower has agreed to give capacity back; every other owner must opt in.
pub(super) fn opt_in(case: &Context<'_>) -> Option<Refusal> {
    let (id, job) = the_job(case)?;
    if case.policy.require_opt_in && !job.opt_in && !case.state.on_loan(job) {
        return refuse(Rule::OptIn, format!("the owner of job {id} has not opted in"));
    }
    None
}

pub(super) fn foreign(case: &Context<'_>) -> Option<Refusal> {
    let state = case.state;
    match &case.action.change {
        Change::Reclaim { loan, .. } | Change::Lend { extends: Some(loan), .. } => {
            let theirs = state.loans.get(loan).is_some_and(|loan| loan.writer == Writer::Other);
            theirs.then_some(())?;
            refuse(Rule::Foreign, format!("somebody else wrote loan {loan} last"))
        }
        Change::ReturnNode { node, .. } | Change::DrainNode { node, .. } => {
            let drain = state.nodes.get(node)?.drain.as_ref()?;
            (drain.by == DrainedBy::Other).then_some(())?;
            refuse(Rule::Foreign, format!("somebody else drained {node}: {}", drain.reason))
        }
        Change::AdjustReservation(Adjustment::Reservation { name, .. }) => {
            let theirs = state.reservations.get(name).is_some_and(|found| found.writer == Writer::Other);
            theirs.then_some(())?;
            refuse(Rule::Foreign, format!("somebody else wrote reservation {name} last"))
        }
        _ => None,
    }
}

fn the_job<'a>(case: &Context<'a>) -> Option<(&'a str, &'a Job)> {
    let id = case.action.change.job()?;
    case.state.jobs.get(id).map(|job| (id.as_str(), job))
}
