//! Reclaims, quotas and reservations: GPU time that an owner used and would have lacked, against
//! what others would have used.

use super::amounts::{Amounts, hours, milli, times_ppm};
use super::basis::Basis;
use super::measured::{Findings, Measured, View, unknown};
use crate::action::{Adjustment, Change};
use crate::scorecard::{Interval, Realised};
use crate::state::{JobKind, JobState, OwnerName};

pub(super) fn rates(of: &Measured<'_>, view: &View<'_>) -> Option<Amounts> {
    match (of.change, of.basis?) {
        (Change::Reclaim { .. }, basis) => reclaimed(basis, view),
        (Change::AdjustReservation(Adjustment::Quota { owner, pool, from_gpus, to_gpus }), basis) => {
            if to_gpus > from_gpus {
                raised(view, owner, pool, (*from_gpus, *to_gpus))
            } else {
                lowered(basis, view, owner, pool, (*from_gpus, *to_gpus))
            }
        }
        (Change::AdjustReservation(change @ Adjustment::Reservation { .. }), basis) => {
            reserved(change, basis, view)
        }
        _ => None,
    }
}

/// GPUs of `pool` that an owner's work uses. A service uses what its load needs, whatever it holds;
/// one that the scheduler does not show uses its demand as far as it has GPUs. `None`: unknown.
fn used(view: &View<'_>, owner: &str, pool: &str) -> Option<u32> {
    let share = view.state.share(owner, pool)?;
    let (mut sum, mut is_shown) = (0, false);
    for job in view.state.jobs.values().filter(|job| job.owner == owner && job.pool == pool) {
        is_shown = true;
        sum += match &job.kind {
            JobKind::Service { needed_gpus } => needed_gpus.or(share.demand_gpus)?.min(job.held_gpus()),
            JobKind::Gang | JobKind::Elastic { .. } => job.held_gpus(),
        };
    }
    if is_shown {
        return Some(share.demand_gpus.map_or(sum, |demand| demand.min(sum)));
    }
    Some(share.demand_gpus?.min(share.quota_gpus.saturating_sub(view.state.lent_gpus(owner, pool))))
}

/// GPUs that an owner could use within `quota` and does not have. `None`: its demand is unknown.
fn lacking(view: &View<'_>, owner: &str, pool: &str, quota: u32) -> Option<u32> {
    let demand = view.state.share(owner, pool)?.demand_gpus?.min(quota);
    Some(demand.saturating_sub(used(view, owner, pool)?))
}

/// GPUs that waiting jobs ask for, of those that `counts`.
fn waiting(view: &View<'_>, counts: impl Fn(&crate::state::Job) -> bool) -> u32 {
    let waits = |job: &&crate::state::Job| matches!(job.state, JobState::Pending { .. }) && counts(job);
    view.state.jobs.values().filter(waits).map(|job| job.gpus).fold(0, u32::saturating_add)
}

/// Gained: what the lender uses beyond what it would have had, at most what came back. Idle: what
/// came back and is not used while the borrower's jobs wait. Where several reclaims return GPUs to
/// one lender, each counts by its share of them.
fn reclaimed(basis: &Basis, view: &View<'_>) -> Option<Amounts> {
    let Basis::Reclaim { owner, pool, borrower, own_gpus, back_gpus, of_gpus, .. } = basis else {
        return None;
    };
    let above = used(view, owner, pool)?.saturating_sub(*own_gpus).min(*of_gpus);
    let gained = milli(above) * i64::from(*back_gpus) / i64::from((*of_gpus).max(1));
    let wanted = milli(waiting(view, |job| job.owner == *borrower));
    Some(Amounts { gained, forgone: 0, idle: (milli(*back_gpus) - gained).min(wanted) })
}

/// Gained: use beyond the old quota. Forgone: what other owners lack meanwhile of their own quotas,
/// at most that.
fn raised(view: &View<'_>, owner: &str, pool: &str, (from, to): (u32, u32)) -> Option<Amounts> {
    let beyond = used(view, owner, pool)?.saturating_sub(from).min(to - from);
    let mut unmet = 0;
    for (other, entry) in view.state.owners.iter().filter(|(other, _)| *other != owner) {
        if let Some(share) = entry.shares.get(pool).filter(|share| share.quota_gpus > 0) {
            unmet += lacking(view, other, pool, share.quota_gpus)?;
        }
    }
    Some(Amounts { gained: milli(beyond), forgone: milli(beyond.min(unmet)), idle: 0 })
}

/// Gained: what others use beyond the quotas they had. Forgone: what the owner lacks within its old
/// quota. Both at most the step.
fn lowered(
    basis: &Basis,
    view: &View<'_>,
    owner: &str,
    pool: &str,
    (from, to): (u32, u32),
) -> Option<Amounts> {
    let Basis::Quota { others, .. } = basis else { return None };
    let step = from - to;
    let over = |(other, quota): (&OwnerName, &u32)| Some(used(view, other, pool)?.saturating_sub(*quota));
    let beyond: u32 = others.iter().map(over).sum::<Option<u32>>()?;
    let lacks = lacking(view, owner, pool, from)?;
    Some(Amounts { gained: milli(beyond.min(step)), forgone: milli(lacks.min(step)), idle: 0 })
}

/// A larger reservation gains the GPUs that its owner uses beyond its use at the decision, unless
/// as many were free elsewhere. It costs the GPUs that idle in it while jobs wait. A smaller one
/// gains the step for others, and costs the GPUs that the owner's jobs then wait for.
fn reserved(change: &Adjustment, basis: &Basis, view: &View<'_>) -> Option<Amounts> {
    let (
        Adjustment::Reservation { owner, pool, from_gpus, to_gpus, start_us, .. },
        Basis::Reservation { used_gpus, .. },
    ) = (change, basis)
    else {
        return None;
    };
    if view.state.at_us < *start_us {
        return Some(Amounts::default());
    }
    let step = from_gpus.abs_diff(*to_gpus);
    if to_gpus < from_gpus {
        let held: u32 = view
            .state
            .jobs
            .values()
            .filter(|job| job.owner != *owner && job.pool == *pool)
            .map(crate::state::Job::held_gpus)
            .sum();
        let lacks = waiting(view, |job| job.owner == *owner && job.pool == *pool);
        return Some(Amounts { gained: milli(held.min(step)), forgone: milli(lacks.min(step)), idle: 0 });
    }
    let beyond = used(view, owner, pool)?.saturating_sub(*used_gpus).min(step);
    let elsewhere = view.occupancy.free(pool).saturating_sub(step - beyond);
    let wanted = waiting(view, |job| job.owner != *owner && job.pool == *pool);
    Some(Amounts {
        gained: milli(beyond.saturating_sub(elsewhere)),
        forgone: 0,
        idle: milli((step - beyond).min(wanted)),
    })
}

pub(super) fn realised(found: &Findings, of: &Measured<'_>) -> Realised {
    let sums = found.sums.gpu_ms();
    let (gained, forgone, idle) = (hours(sums.gained), hours(sums.forgone), hours(sums.idle));
    match (of.change, of.basis) {
        (_, Some(Basis::Reclaim { owner, missing_ppm, .. })) => Realised {
            without: Some(format!(
                "{owner} would have lacked {gained} GPU-hours that its work used; waiting jobs of the borrower would have used {idle} more, for which the GPUs stood idle"
            )),
            ..Realised::verified(Some(times_ppm(sums.gained, *missing_ppm)), Some(sums.idle))
        },
        (
            Change::AdjustReservation(Adjustment::Quota { owner, from_gpus, to_gpus, .. }),
            Some(Basis::Quota { missing_ppm, .. }),
        ) => {
            let forgone_weighed = times_ppm(sums.forgone, *missing_ppm);
            if to_gpus > from_gpus {
                return Realised {
                    without: Some(format!(
                        "{owner} would have stopped at {from_gpus} GPUs and not used {gained} GPU-hours; others lacked {forgone} of that within their own quotas"
                    )),
                    ..Realised::verified(Some(times_ppm(sums.gained, *missing_ppm)), Some(forgone_weighed))
                };
            }
            let without = format!(
                "{owner} would have used {forgone} GPU-hours more; others used {gained} beyond their old quotas, which they may have had anyway"
            );
            between(sums.gained, forgone_weighed, without)
        }
        (
            Change::AdjustReservation(Adjustment::Reservation { owner, from_gpus, to_gpus, .. }),
            Some(Basis::Reservation { missing_ppm, .. }),
        ) => {
            if to_gpus > from_gpus {
                return Realised {
                    without: Some(format!(
                        "{owner} would have lacked {gained} GPU-hours that its work used; waiting jobs of others would have used {idle}, for which the reservation stood idle"
                    )),
                    ..Realised::verified(Some(times_ppm(sums.gained, *missing_ppm)), Some(sums.idle))
                };
            }
            let without = format!(
                "waiting jobs of {owner} would have used {forgone} GPU-hours; others used {gained} at most of what was given up"
            );
            between(sums.gained, times_ppm(sums.forgone, *missing_ppm), without)
        }
        _ => unknown("the state at its decision was not recorded"),
    }
}

/// What was given up may have been used by others anyway: the benefit lies between nothing and all
/// of their use.
fn between(most_gpu_ms: i64, cost_gpu_ms: i64, without: String) -> Realised {
    let interval = Interval { low_gpu_ms: -cost_gpu_ms, high_gpu_ms: most_gpu_ms - cost_gpu_ms };
    let benefit = (most_gpu_ms == 0).then_some(0);
    Realised {
        interval: benefit.is_none().then_some(interval),
        is_estimate: benefit.is_none(),
        without: Some(without),
        ..Realised::verified(benefit, Some(cost_gpu_ms))
    }
}
