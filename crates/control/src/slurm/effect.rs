//! What an action came to, read from Slurm.

use std::collections::BTreeSet;

use tidegate_autopilot::action::{Action, Adjustment, Change};
use tidegate_autopilot::state::{DrainedBy, Writer};
use tidegate_autopilot::target::Effect;
use tidegate_slurm::JobPhase as Phase;

use super::act::{Act, Place};
use super::lent;
use super::loans::{self, Noted};
use super::marker;
use super::notes::Entry;
use super::observe::{self, Look};
use super::queue::QueueJob;
use super::satellites;

/// What stands in Slurm of `action`, of which `entry` is noted.
pub(super) fn effect(act: &Act<'_>, look: &Look, entry: &Entry) -> Effect {
    let action = act.action;
    let Some(at_us) = entry.done_us else {
        return Effect::Partial { missing: "it was begun and not finished: apply it again".to_owned() };
    };
    match &action.change {
        Change::ResizeJob { job, to_gpus, from_gpus, keep_nodes, .. } => {
            resized(act, look, job, *to_gpus, (to_gpus < from_gpus).then_some(keep_nodes), at_us)
        }
        Change::Preempt { job, .. } => match look.job(job) {
            Some(job) if job.phase == Phase::Ending => partial("the job is being stopped"),
            // Cancelled or ended it has given its GPUs back too.
            _ => Effect::Done { at_us },
        },
        Change::Lend { extends, expires_us, .. } => {
            let loan = extends.as_ref().unwrap_or(&action.id);
            lent(act, look, loan, extends.as_ref().map(|_| *expires_us), at_us)
        }
        Change::Reclaim { loan, .. } if lent::of_loan(look, loan).is_some() => {
            match loans::open(act.config, look).get(loan).map_or(0, |loan| loan.reclaiming_gpus) {
                0 => Effect::Done { at_us },
                gpus => partial(&format!("jobs still hold {gpus} GPUs of it")),
            }
        }
        Change::Reclaim { .. } => {
            let busy = still_held(act, look, entry);
            if busy.is_empty() {
                Effect::Done { at_us }
            } else {
                partial(&format!("jobs are still on {busy:?}"))
            }
        }
        Change::AdjustReservation(adjust) => adjusted(act, look, adjust, at_us),
        Change::DrainNode { node, reason } => {
            let found = look.nodes.get(node).and_then(|told| observe::drain(node, told, &look.notes));
            match found {
                Some(drain) if marker::is_drain_reason(&drain.reason, &action.id, reason) => {
                    Effect::Done { at_us }
                }
                Some(drain) => overridden(drain.reason),
                None => overridden("it is not drained any more"),
            }
        }
        Change::ReturnNode { node, .. } => {
            let found = look.nodes.get(node).and_then(|told| observe::drain(node, told, &look.notes));
            match found {
                None => Effect::Done { at_us },
                Some(drain) => overridden(match drain.by {
                    DrainedBy::Autopilot { action, .. } => format!("drained again by {action}"),
                    DrainedBy::Other => drain.reason,
                }),
            }
        }
    }
}

fn partial(missing: &str) -> Effect {
    Effect::Partial { missing: missing.to_owned() }
}

fn overridden(found: impl Into<String>) -> Effect {
    Effect::Overridden { found: found.into() }
}

fn resized(
    act: &Act<'_>,
    look: &Look,
    id: &str,
    to_gpus: u32,
    keep: Option<&BTreeSet<String>>,
    at_us: i64,
) -> Effect {
    let Some(job) = look.job(id) else { return overridden("the job is gone") };
    let placed = satellites::placement(&look.jobs, job).unwrap_or_default();
    let held: u32 = placed.values().sum();
    let nodes: BTreeSet<String> = placed.into_keys().collect();
    let joins = |satellite: &QueueJob| {
        let by = satellites::read(&satellite.name).map(|(_, action)| action);
        by == Some(act.action.id.as_str()) && matches!(satellite.phase, Phase::Waiting | Phase::Starting)
    };
    match job.phase {
        Phase::Running if keep.is_none_or(|keep| nodes == *keep) && held == to_gpus => Effect::Done { at_us },
        Phase::Running if satellites::of(&look.jobs, job).any(joins) => {
            partial("what joins the job waits for GPUs")
        }
        Phase::Ending | Phase::Starting => partial("the job is being stopped or started"),
        Phase::Waiting if job.held => overridden(format!("the job is held: {}", job.reason)),
        Phase::Waiting if keep.is_none() => partial(&format!("the job waits for {to_gpus} GPUs")),
        _ => overridden(format!("the job holds {held} GPUs on {nodes:?}")),
    }
}

fn lent(act: &Act<'_>, look: &Look, loan: &str, until_us: Option<i64>, at_us: i64) -> Effect {
    let open = loans::open(act.config, look);
    let Some(found) = open.get(loan) else { return overridden("the loan is over") };
    if found.writer == Writer::Other {
        return overridden(format!("{:?} until {}", found.nodes, found.expires_us / 1_000_000));
    }
    if until_us.is_some_and(|until| found.expires_us / 1_000_000 < until / 1_000_000) {
        return overridden(format!("it ends at {}", found.expires_us / 1_000_000));
    }
    Effect::Done { at_us }
}

/// Nodes of a reclaim that jobs of others than the lender still hold.
pub(super) fn still_held(act: &Act<'_>, look: &Look, entry: &Entry) -> BTreeSet<String> {
    let Change::Reclaim { loan, .. } = &act.action.change else { return BTreeSet::new() };
    let lender = match look.notes.actions.get(loan).map(|entry| &entry.change) {
        Some(Change::Lend { from, .. }) => from.as_str(),
        _ => "",
    };
    loans::occupied(act.config, look, lender, &entry.nodes)
}

/// The reservation of a loan that is over and empty, and stands only because jobs used it when it
/// was taken back.
pub(super) fn left_over<'a>(action: &Action, look: &'a Look) -> Option<&'a String> {
    let Change::Reclaim { loan, .. } = &action.change else { return None };
    let (name, _) = loans::reservation(look, loan)?;
    Noted::of(look, loan).is_over().then_some(name)
}

fn adjusted(act: &Act<'_>, look: &Look, adjust: &Adjustment, at_us: i64) -> Effect {
    match adjust {
        Adjustment::Quota { owner, pool, to_gpus, .. } => {
            let found = match act.place(owner, pool) {
                Some(Place::Account(name)) => look.limits.accounts.get(name).copied().flatten(),
                Some(Place::Qos(name)) => look.limits.qos.get(name).and_then(lent::own_limit),
                None => None,
            };
            match found {
                Some(found) if found == *to_gpus => Effect::Done { at_us },
                found => overridden(format!("the quota is {found:?}")),
            }
        }
        Adjustment::Reservation { name, to_gpus, end_us, .. } => match look.reservations.get(name) {
            None if *to_gpus == 0 => Effect::Done { at_us },
            None => overridden("the reservation is gone"),
            Some(found) => {
                let gpus = look.gpus(&found.nodes);
                if gpus == *to_gpus && found.end_s == end_us / 1_000_000 {
                    Effect::Done { at_us }
                } else {
                    overridden(format!("it has {gpus} GPUs until {}", found.end_s))
                }
            }
        },
        Adjustment::Commitment { .. } => Effect::Absent,
    }
}
