//! Stops and shrinks that make room for a waiting job: GPU time of that job, against the work that
//! was lost and the time for which the others had to wait.

use super::amounts::{Amounts, hours, milli, times_ppm};
use super::basis::Basis;
use super::measured::{Findings, Measured, Sightings, View, unknown};
use crate::action::Change;
use crate::scorecard::{Interval, Realised};
use crate::state::{JobId, JobState};

/// What the stop cost, once the scheduler shows the job stopped.
pub(super) fn begin(of: &Measured<'_>, view: &View<'_>, seen: &mut Sightings) {
    let (Some(Basis::Room { stop, .. } | Basis::Part { stop }), Some(job)) = (of.basis, of.change.job())
    else {
        return;
    };
    let reported_us = view.state.jobs.get(job).and_then(|job| job.checkpoint.last_us);
    // A save of a later attempt is not one of what was lost.
    let before = |us: &i64| *us <= of.begun_us;
    seen.lost = stop.lost(reported_us.filter(before).max(of.saved_us), of.begun_us);
}

/// GPUs that a job lacks of those it held. One that has ended lacks none.
fn lacks(view: &View<'_>, job: &JobId, held: u32) -> u32 {
    view.state.jobs.get(job).map_or(0, |job| held.saturating_sub(job.held_gpus()))
}

/// Gained: what the job holds that it was made for, by this action's share of the GPUs freed, as
/// long as it would still wait without them. It would not, once as many GPUs are free as the
/// stopped jobs lack. Forgone: what this action's job would have done on the GPUs it lacks.
pub(super) fn rates(of: &Measured<'_>, view: &View<'_>) -> Option<Amounts> {
    let Basis::Room { for_job, pool, was_scattered, held, share_ppm, .. } = of.basis? else {
        return Some(Amounts::default());
    };
    let all_lack: u32 = held.iter().map(|(job, held)| lacks(view, job, *held)).sum();
    let would_wait = *was_scattered || view.occupancy.free(pool) < all_lack;
    let served = view.state.jobs.get(for_job).filter(|job| matches!(job.state, JobState::Running { .. }));
    let gained = served.filter(|_| would_wait).map_or(0, |job| times_ppm(milli(job.held_gpus()), *share_ppm));
    let own = of.change.job()?;
    let forgone = view.state.jobs.get(own).zip(held.get(own)).map_or(0, |(job, before)| {
        let rate = |gpus: u32| match &job.curve {
            Some(curve) => i64::try_from(curve.rate_ppm(gpus) / 1_000).unwrap_or(i64::MAX),
            None => milli(gpus),
        };
        (rate(*before) - rate(job.held_gpus().min(*before))).max(0)
    });
    Some(Amounts { gained, forgone, idle: 0 })
}

pub(super) fn realised(found: &Findings, of: &Measured<'_>) -> Realised {
    let Some(Basis::Room { for_job, missing_ppm, .. }) = of.basis else {
        return unknown("what it made room for was not recorded");
    };
    let sums = found.sums.gpu_ms();
    let benefit = times_ppm(sums.gained, *missing_ppm);
    let what = if matches!(of.change, Change::Preempt { .. }) { "the stopped job" } else { "the shrunk job" };
    let without = |lost: String| {
        Some(format!(
            "job {for_job} would have waited and not used {} GPU-hours; {what} would have done {} and not lost {lost}",
            hours(sums.gained),
            hours(sums.forgone)
        ))
    };
    let Some(lost) = found.sightings.lost else {
        let without = without("its work since an unknown time".to_owned());
        return Realised { without, ..Realised::verified(Some(benefit), None) };
    };
    let without = without(match lost.as_point() {
        Some(lost) => hours(lost),
        None => format!("{} to {}", hours(lost.low_gpu_ms), hours(lost.high_gpu_ms)),
    });
    Realised { without, ..Realised::less(benefit, Some(lost.plus(Interval::point(sums.forgone)))) }
}
