//! Loans and resizes: useful work.

use super::amounts::{Amounts, hours, milli, range};
use super::measured::{Companions, Findings, Measured, View};
use crate::action::Change;
use crate::scorecard::{Interval, Realised};
use crate::state::{Job, JobState};

/// What jobs of others than the lender hold of the loan; without it these GPUs would be idle.
pub(super) fn lend(of: &Measured<'_>, view: &View<'_>) -> Option<Amounts> {
    let Change::Lend { from, to, gpus, nodes, .. } = of.change else { return None };
    let running = view.state.jobs.values().filter(|job| matches!(job.state, JobState::Running { .. }));
    if nodes.is_empty() {
        let held: u32 = running.filter(|job| job.owner == *to).map(Job::held_gpus).sum();
        let quota: u32 = view.state.owners.get(to)?.shares.values().map(|share| share.quota_gpus).sum();
        return Some(Amounts::gained(milli(held.saturating_sub(quota).min(*gpus))));
    }
    let on = |job: &Job| -> u32 {
        job.placement.iter().filter(|(node, _)| nodes.contains(*node)).map(|(_, gpus)| gpus).sum()
    };
    // The borrower may share it with others if the scheduler allows.
    Some(Amounts::gained(milli(running.filter(|job| job.owner != *from).map(on).sum())))
}

/// The job's rate at its new size minus that at its old size, by its curve.
pub(super) fn resize(of: &Measured<'_>, view: &View<'_>) -> Option<Amounts> {
    let Change::ResizeJob { job, from_gpus, to_gpus, .. } = of.change else { return None };
    // A finished job gains nothing more.
    let Some(job) = view.state.jobs.get(job) else { return Some(Amounts::default()) };
    let curve = job.curve.as_ref()?;
    if job.held_gpus() != *to_gpus {
        return Some(Amounts::default());
    }
    // Millionths of one GPU's work to thousandths.
    let rate = |gpus| i64::try_from(curve.rate_ppm(gpus) / 1000).unwrap_or(i64::MAX);
    Some(Amounts::gained(rate(*to_gpus) - rate(*from_gpus)))
}

/// A loan costs what jobs lose when it is taken back, a resize its pause.
pub(super) fn realised(found: &Findings, of: &Measured<'_>, with: &Companions<'_>) -> Realised {
    let gained = found.sums.gpu_ms().gained;
    let (cost, without) = match of.change {
        Change::Lend { .. } => (
            with.lost,
            format!("its GPUs would have stood idle for the {} GPU-hours that borrowers used", hours(gained)),
        ),
        _ => (
            Some(Interval::point(of.predicted.cost_gpu_ms)),
            format!("at its old size the job would have done {} GPU-hours less", hours(gained)),
        ),
    };
    let without = match cost.filter(|cost| cost.as_point().is_none()) {
        Some(lost) => {
            format!("{without}; taking it back cost jobs that report no checkpoints {}", range(lost))
        }
        None => without,
    };
    Realised { without: Some(without), ..Realised::less(gained, cost) }
}
