//! The promise to each owner: [`crate::promise`].

use std::collections::BTreeSet;

use super::history::gives_back;
use super::{Context, Refusal, Rule, refuse};
use crate::action::{Adjustment, Change};
use crate::promise::breach;
use crate::state::ClusterState;

/// While the promise to an owner does not hold, nothing more is taken from it.
pub(super) fn promise(ctx: &Context<'_>) -> Option<Refusal> {
    let rules = &ctx.policy.promise;
    if ctx.restores || !rules.keep {
        return None;
    }
    taken_from(&ctx.action.change, ctx.state).into_iter().find_map(|name| {
        let why = breach(rules, name, ctx.state.owners.get(name)?)?;
        refuse(Rule::Promise, format!("it takes from {name}, whose promise is broken: {why}"))
    })
}

/// Owners whose jobs may wait longer for the change: who lends, loses quota, or has a job stopped
/// or shrunk; for growth and reservations, everybody else who waits in the pool. What a job has
/// grown by beyond what it asked for was lent by nobody and is not taken from its owner.
///
/// A drain takes a node that is bad from whoever would get it, and is judged by that.
fn taken_from<'a>(change: &'a Change, state: &'a ClusterState) -> BTreeSet<&'a str> {
    match change {
        Change::Lend { from, .. } => [from.as_str()].into(),
        Change::Preempt { job, .. } => its_owner(job, state),
        Change::ResizeJob { .. } if gives_back(change, state) => BTreeSet::new(),
        Change::ResizeJob { job, from_gpus, to_gpus, .. } if to_gpus < from_gpus => its_owner(job, state),
        Change::ResizeJob { job, .. } => {
            let job = state.jobs.get(job);
            job.map_or_else(BTreeSet::new, |job| waiting_in(&job.pool, &job.owner, state))
        }
        Change::AdjustReservation(Adjustment::Quota { owner, from_gpus, to_gpus, .. })
            if to_gpus < from_gpus =>
        {
            [owner.as_str()].into()
        }
        Change::AdjustReservation(Adjustment::Reservation { owner, pool, from_gpus, to_gpus, .. })
            if to_gpus > from_gpus =>
        {
            waiting_in(pool, owner, state)
        }
        Change::AdjustReservation(_)
        | Change::Reclaim { .. }
        | Change::DrainNode { .. }
        | Change::ReturnNode { .. } => BTreeSet::new(),
    }
}

/// A borrower has agreed to give back what its job holds.
fn its_owner<'a>(job: &str, state: &'a ClusterState) -> BTreeSet<&'a str> {
    let job = state.jobs.get(job).filter(|job| !state.on_loan(job));
    job.map(|job| job.owner.as_str()).into_iter().collect()
}

fn waiting_in<'a>(pool: &str, but: &str, state: &'a ClusterState) -> BTreeSet<&'a str> {
    let waits = state.jobs.values().filter(|job| job.pool == pool && job.pending_since_us().is_some());
    waits.map(|job| job.owner.as_str()).filter(|owner| *owner != but).collect()
}
