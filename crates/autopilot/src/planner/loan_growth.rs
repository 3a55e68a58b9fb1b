//! Growth onto loans (docs/control.md, 4.2 and 4.4): running elastic jobs without room to grow may
//! borrow for the gain on their curves. Waiting jobs come first; running ones count only if no
//! waiting job can use the loan.

use std::collections::BTreeSet;

use tidegate_units::Millis;

use super::builder::PlanBuilder;
use super::resize::{Gain, gain, hold_ms, why_not};
use super::spare::Spare;
use crate::forecast::Series;
use crate::state::{Job, JobId, JobKind, OwnerName, PoolName};

/// Running jobs of an owner that would grow onto a loan.
pub(super) struct LoanGrowth {
    pub(super) owner: OwnerName,
    /// Jobs by gain per GPU, highest first, together within the loan.
    jobs: Vec<Gain>,
}

impl LoanGrowth {
    /// GPUs by which they would grow.
    pub(super) fn gpus(&self) -> u32 {
        self.jobs.iter().map(|job| job.more).sum()
    }

    /// Useful GPU time gained from `gpus` lent, net of pauses. Counts only jobs that get all they
    /// would grow by.
    pub(super) fn gains(&self, gpus: u32) -> f64 {
        let mut left = gpus;
        let mut sum = 0;
        for job in &self.jobs {
            if job.more <= left {
                left -= job.more;
                sum += job.net();
            }
        }
        sum as f64
    }
}

/// Running jobs that would grow but have no room, of owners without waiting jobs. New loans serve
/// waiting jobs first.
pub(super) fn candidates<'a>(builder: &PlanBuilder<'a>) -> Vec<(&'a JobId, &'a Job)> {
    let state = builder.state;
    let waits: BTreeSet<&OwnerName> =
        state.jobs.values().filter(|job| job.pending_since_us().is_some()).map(|job| &job.owner).collect();
    let mut spare = Spare::of(builder);
    let mut would = |(id, job): &(&JobId, &Job)| {
        let JobKind::Elastic { grow, .. } = job.kind else { return false };
        if job.running_since_us().is_none() || !job.preemptible || waits.contains(&job.owner) {
            return false;
        }
        let (held, sizes) = (job.held_gpus(), job.sizes());
        let larger = &sizes[sizes.partition_point(|size| *size <= held)..];
        // This plan has not grown it yet.
        let beside = spare.free_for(usize::MAX, spare.places(job));
        let has_room = larger.iter().any(|to| beside.fits(to - held));
        !has_room && why_not(builder, id, job, grow, held, &sizes, u32::MAX).is_none()
    };
    state.jobs.iter().filter(|entry| would(entry)).collect()
}

/// The owner among `candidates` that gains most over a term from up to `most` GPUs of a pool that
/// `fits`. `None`: no owner gains.
pub(super) fn best_borrower(
    builder: &PlanBuilder<'_>,
    of: Series<'_>,
    most: u32,
    candidates: &[(&JobId, &Job)],
    fits: impl Fn(&PoolName) -> bool,
) -> Option<LoanGrowth> {
    let (term_ms, ratio) =
        (Millis::from_secs(builder.policy.lend.term_s).0, builder.policy.resize.gain_ratio);
    let mut all: Vec<(&OwnerName, Gain)> = Vec::new();
    for (_, job) in candidates.iter().filter(|(_, job)| job.owner != of.owner && fits(&job.pool)) {
        let JobKind::Elastic { grow, .. } = job.kind else { continue };
        let (held, sizes) = (job.held_gpus(), job.sizes());
        let limit = builder.state.share(&job.owner, &job.pool).and_then(|share| share.limit_gpus);
        let left = limit.map(|limit| limit.saturating_sub(builder.occupancy.used(&job.owner, &job.pool)));
        let within = left.map_or(most, |left| most.min(left));
        let larger = sizes.iter().filter(|to| **to > held && **to - held <= within);
        let gains = larger.map(|to| gain(builder, job, grow, *to, hold_ms(builder, job, *to).min(term_ms)));
        let worth = gains.filter(|gain| gain.useful as f64 > ratio * gain.cost as f64);
        let best = worth.max_by_key(|gain| (gain.net(), std::cmp::Reverse(gain.more)));
        all.extend(best.map(|gain| (&job.owner, gain)));
    }
    best(all, most)
}

/// The owner with the most to gain within `most` GPUs. Ties go to the first.
fn best(mut all: Vec<(&OwnerName, Gain)>, most: u32) -> Option<LoanGrowth> {
    // More gain per GPU first: a.net / a.more > b.net / b.more without rounding.
    all.sort_by(|(_, a), (_, b)| {
        (i128::from(b.net()) * i128::from(a.more)).cmp(&(i128::from(a.net()) * i128::from(b.more)))
    });
    let owners: BTreeSet<&OwnerName> = all.iter().map(|(owner, _)| *owner).collect();
    let mut best: Option<(i64, LoanGrowth)> = None;
    for owner in owners {
        let mut left = most;
        let mut jobs = Vec::new();
        for (_, gain) in all.iter().filter(|(other, _)| *other == owner) {
            if gain.more <= left {
                left -= gain.more;
                jobs.push(*gain);
            }
        }
        let net: i64 = jobs.iter().map(Gain::net).sum();
        if net > best.as_ref().map_or(0, |(most, _)| *most) {
            best = Some((net, LoanGrowth { owner: owner.clone(), jobs }));
        }
    }
    best.map(|(_, growers)| growers)
}
