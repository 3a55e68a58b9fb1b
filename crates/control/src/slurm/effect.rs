//! Reads the effect of an action from a snapshot.

use std::collections::BTreeSet;

use tidegate_autopilot::action::{Action, Adjustment, Change};
use tidegate_autopilot::state::{DrainedBy, Writer};
use tidegate_autopilot::target::Effect;
use tidegate_events::Micros;
use tidegate_slurm::JobPhase as Phase;

use super::act::{Act, QuotaPlace};
use super::loans::{self, LoanNotes};
use super::marker;
use super::notes::Entry;
use super::observe;
use super::qos_loans;
use super::queue::QueueJob;
use super::satellites;
use super::snapshot::Snapshot;

/// The effect of an action of which `entry` is noted.
pub(super) fn effect(act: &Act<'_>, snapshot: &Snapshot, entry: &Entry) -> Effect {
    let action = act.action;
    let Some(at_us) = entry.done_us else {
        return Effect::Partial { missing: "it was begun and not finished: apply it again".to_owned() };
    };
    match &action.change {
        Change::ResizeJob { job, to_gpus, from_gpus, keep_nodes, .. } => {
            resized(act, snapshot, job, *to_gpus, (to_gpus < from_gpus).then_some(keep_nodes), at_us)
        }
        Change::Preempt { job, .. } => match snapshot.job(job) {
            Some(job) if job.phase == Phase::Ending => partial("the job is being stopped"),
            // A job that was cancelled or ended has released its GPUs too.
            _ => Effect::Done { at_us },
        },
        Change::Lend { extends, expires_us, .. } => {
            let loan = extends.as_ref().unwrap_or(&action.id);
            lent(act, snapshot, loan, extends.as_ref().map(|_| *expires_us), at_us)
        }
        Change::Reclaim { loan, .. } if qos_loans::of_loan(snapshot, loan).is_some() => {
            match loans::open(act.config, snapshot).get(loan).map_or(0, |loan| loan.reclaiming_gpus) {
                0 => Effect::Done { at_us },
                gpus => partial(&format!("jobs still hold {gpus} GPUs of it")),
            }
        }
        Change::Reclaim { .. } => {
            let busy = still_held(act, snapshot, entry);
            if busy.is_empty() {
                Effect::Done { at_us }
            } else {
                partial(&format!("jobs are still on {busy:?}"))
            }
        }
        Change::AdjustReservation(adjust) => adjusted(act, snapshot, adjust, at_us),
        Change::DrainNode { node, reason } => {
            let found =
                snapshot.nodes.get(node).and_then(|shown| observe::drain(node, shown, &snapshot.notes));
            match found {
                Some(drain) if marker::is_drain_reason(&drain.reason, &action.id, reason) => {
                    Effect::Done { at_us }
                }
                Some(drain) => overridden(drain.reason),
                None => overridden("it is not drained any more"),
            }
        }
        Change::ReturnNode { node, .. } => {
            let found =
                snapshot.nodes.get(node).and_then(|shown| observe::drain(node, shown, &snapshot.notes));
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
    snapshot: &Snapshot,
    id: &str,
    to_gpus: u32,
    keep: Option<&BTreeSet<String>>,
    at_us: i64,
) -> Effect {
    let Some(job) = snapshot.job(id) else { return overridden("the job is gone") };
    let placed = satellites::placement(&snapshot.jobs, job).unwrap_or_default();
    let held: u32 = placed.values().sum();
    let nodes: BTreeSet<String> = placed.into_keys().collect();
    let joins = |satellite: &QueueJob| {
        let by = satellites::read(&satellite.name).map(|(_, action)| action);
        by == Some(act.action.id.as_str()) && matches!(satellite.phase, Phase::Waiting | Phase::Starting)
    };
    match job.phase {
        Phase::Running if keep.is_none_or(|keep| nodes == *keep) && held == to_gpus => Effect::Done { at_us },
        Phase::Running if satellites::of(&snapshot.jobs, job).any(joins) => {
            partial("satellites of the job wait for GPUs")
        }
        Phase::Ending | Phase::Starting => partial("the job is being stopped or started"),
        Phase::Waiting if job.held => overridden(format!("the job is held: {}", job.reason)),
        Phase::Waiting if keep.is_none() => partial(&format!("the job waits for {to_gpus} GPUs")),
        _ => overridden(format!("the job holds {held} GPUs on {nodes:?}")),
    }
}

fn lent(act: &Act<'_>, snapshot: &Snapshot, loan: &str, until_us: Option<i64>, at_us: i64) -> Effect {
    let open = loans::open(act.config, snapshot);
    let Some(found) = open.get(loan) else { return overridden("the loan is over") };
    let ends_s = Micros(found.expires_us).floor_secs();
    if found.writer == Writer::Other {
        return overridden(format!("{:?} until {ends_s}", found.nodes));
    }
    if until_us.is_some_and(|until_us| ends_s < Micros(until_us).floor_secs()) {
        return overridden(format!("it ends at {ends_s}"));
    }
    Effect::Done { at_us }
}

/// Nodes of a reclaim that jobs of other owners than the lender still hold.
pub(super) fn still_held(act: &Act<'_>, snapshot: &Snapshot, entry: &Entry) -> BTreeSet<String> {
    let Change::Reclaim { loan, .. } = &act.action.change else { return BTreeSet::new() };
    let lender = match snapshot.notes.actions.get(loan).map(|entry| &entry.change) {
        Some(Change::Lend { from, .. }) => from.as_str(),
        _ => "",
    };
    loans::occupied(act.config, snapshot, lender, &entry.nodes)
}

/// The reservation of a loan that is over, left only because jobs used it when it was called back.
pub(super) fn left_over<'a>(action: &Action, snapshot: &'a Snapshot) -> Option<&'a String> {
    let Change::Reclaim { loan, .. } = &action.change else { return None };
    let (name, _) = loans::reservation(snapshot, loan)?;
    LoanNotes::for_loan(snapshot, loan).is_over().then_some(name)
}

fn adjusted(act: &Act<'_>, snapshot: &Snapshot, adjust: &Adjustment, at_us: i64) -> Effect {
    match adjust {
        Adjustment::Quota { owner, pool, to_gpus, .. } => {
            let found = match act.place(owner, pool) {
                Some(QuotaPlace::Account(name)) => snapshot.limits.accounts.get(name).copied().flatten(),
                Some(QuotaPlace::Qos(name)) => snapshot.limits.qos.get(name).and_then(qos_loans::own_limit),
                None => None,
            };
            match found {
                Some(found) if found == *to_gpus => Effect::Done { at_us },
                found => overridden(format!("the quota is {found:?}")),
            }
        }
        Adjustment::Reservation { name, to_gpus, end_us, .. } => match snapshot.reservations.get(name) {
            None if *to_gpus == 0 => Effect::Done { at_us },
            None => overridden("the reservation is gone"),
            Some(found) => {
                let gpus = snapshot.gpus(&found.nodes);
                if gpus == *to_gpus && found.end_s == Micros(*end_us).floor_secs() {
                    Effect::Done { at_us }
                } else {
                    overridden(format!("it has {gpus} GPUs until {}", found.end_s))
                }
            }
        },
        Adjustment::Commitment { .. } => Effect::Absent,
    }
}
