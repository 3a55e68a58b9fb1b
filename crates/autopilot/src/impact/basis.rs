//! What an action is measured against: taken from the state it was decided on, and recorded with
//! its proposal.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use tidegate_units::{Micros, Millis};

use super::suspects::{Evidence, is_suspect};
use crate::action::{Adjustment, Change};
use crate::planner::{Decision, Plan};
use crate::policy::Policy;
use crate::scorecard::Interval;
use crate::state::{
    ClusterState, Job, JobId, NodeName, Object, Occupancy, OwnerName, PoolName, interruption,
};

/// What an action is measured against. `missing_ppm` is what a GPU-hour that somebody is owed and
/// lacks counts in hours of useful work, millionths, as in the prediction.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "of", rename_all = "snake_case")]
pub enum Basis {
    /// A reclaim.
    Reclaim {
        /// Lender.
        owner: OwnerName,
        /// Pool of the loan.
        pool: PoolName,
        /// Borrower.
        borrower: OwnerName,
        /// GPUs that the lender may use if the loan stays: its quota less what it lends, without
        /// what was coming back already.
        own_gpus: u32,
        /// GPUs that come back by this reclaim.
        back_gpus: u32,
        /// GPUs that come back to this lender by all reclaims of the plan.
        of_gpus: u32,
        /// When the loan ends by itself.
        loan_ends_us: i64,
        /// See above.
        missing_ppm: u64,
    },
    /// A stop or shrink that makes room for a waiting job.
    Room {
        /// The waiting job.
        for_job: JobId,
        /// Its pool.
        pool: PoolName,
        /// Enough GPUs were free for it, but scattered.
        was_scattered: bool,
        /// GPUs that each job which makes room for it held.
        held: BTreeMap<JobId, u32>,
        /// This action's share of what they free, millionths.
        share_ppm: u64,
        /// See above.
        missing_ppm: u64,
        /// What it does to the job.
        stop: Stop,
    },
    /// A stop or shrink that is part of another action: a reclaim, or the drain of a slow node.
    Part {
        /// What it does to the job.
        stop: Stop,
    },
    /// A changed quota.
    Quota {
        /// Quotas of the other owners of the pool; empty for a raise.
        #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
        others: BTreeMap<OwnerName, u32>,
        /// See above.
        missing_ppm: u64,
    },
    /// A changed reservation.
    Reservation {
        /// GPUs that the owner used in the pool.
        used_gpus: u32,
        /// See above.
        missing_ppm: u64,
    },
    /// A drain.
    Drain {
        /// Evidence that the node fails. `None`: it was drained because it is slow.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        evidence: Option<Evidence>,
        /// Work that its jobs would lose if it failed at once, GPUs × ms. `None`: unknown.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        at_risk: Option<Interval>,
        /// The largest gang on it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        gang: Option<Gang>,
    },
}

/// A job that is about to be stopped or shrunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stop {
    /// GPUs that it loses work on: all it holds, or those it keeps if it is shrunk.
    pub gpus: u32,
    /// Start of its attempt. `None`: unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since_us: Option<i64>,
    /// Time from its start to useful work, or pause of a resize, ms.
    pub again_ms: i64,
    /// It goes on with fewer GPUs and loses the pause only.
    #[serde(default)]
    pub is_shrink: bool,
    /// Work expected to be lost by docs/control.md, 4.1, GPUs × ms.
    pub expected_gpu_ms: i64,
    /// Least that it loses. `None`: as much as expected. It is less where no checkpoint is known,
    /// since the job may have saved all the same.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub least_gpu_ms: Option<i64>,
    /// Jobs of its team start over after a stop: what is not known to be saved is lost.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub starts_over: bool,
}

/// A gang on a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gang {
    /// The job.
    pub job: JobId,
    /// GPUs it holds, on all its nodes.
    pub gpus: u32,
    /// Start of its attempt.
    pub since_us: i64,
    /// Time of its steps. `None`: not reported.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step_us: Option<i64>,
}

impl Stop {
    /// Work expected to be lost when it was decided, GPUs × ms.
    fn expected(&self) -> Interval {
        let high_gpu_ms = self.expected_gpu_ms;
        Interval {
            low_gpu_ms: self.least_gpu_ms.map_or(high_gpu_ms, |least| least.min(high_gpu_ms)),
            high_gpu_ms,
        }
    }

    /// Work lost by stopping at `stopped_us` what was last saved at `saved_us`, GPUs × ms. Where no
    /// save is known it lies between none and all since the start, unless its team's jobs start
    /// over. `None`: nothing is known.
    pub(super) fn lost(&self, saved_us: Option<i64>, stopped_us: i64) -> Option<Interval> {
        let again = i64::from(self.gpus) * self.again_ms;
        if self.is_shrink {
            return Some(Interval::point(again));
        }
        let until = |us: i64| i64::from(self.gpus) * Micros((stopped_us - us).max(0)).floor_millis().0;
        let all = self.since_us.map(until);
        match (saved_us.map(until), all) {
            (Some(lost), all) => Some(Interval::point(all.map_or(lost, |all| lost.min(all)) + again)),
            (None, Some(all)) if self.starts_over => Some(Interval::point(all + again)),
            (None, Some(all)) => Some(Interval { low_gpu_ms: again, high_gpu_ms: all + again }),
            (None, None) => None,
        }
    }
}

impl Basis {
    /// What `decision` of `plan` is measured against. `None`: it needs nothing, or the state lacks
    /// it.
    pub fn of(decision: &Decision, plan: &Plan, state: &ClusterState, policy: &Policy) -> Option<Self> {
        let worth = &policy.worth;
        let missing_ppm = worth.missing_micros_per_gpu_hour.saturating_mul(1_000_000)
            / worth.useful_micros_per_gpu_hour.max(1);
        match &decision.action.change {
            Change::Reclaim { loan, from_gpus, to_gpus, .. } => {
                reclaim(plan, state, loan, from_gpus.saturating_sub(*to_gpus), missing_ppm)
            }
            Change::Preempt { job, .. } | Change::ResizeJob { job, .. } => {
                let is_part = !decision.action.after.is_empty();
                match &decision.serves {
                    Some(Object::Job(for_job)) => {
                        room(decision, plan, state, policy, (job, for_job), missing_ppm)
                    }
                    serves if is_part || serves.is_some() || is_stop(&decision.action.change) => {
                        Some(Self::Part {
                            stop: stop(&decision.action.change, state.jobs.get(job)?, state, policy),
                        })
                    }
                    _ => None,
                }
            }
            Change::AdjustReservation(Adjustment::Quota { owner, pool, from_gpus, to_gpus }) => {
                let share = |(name, entry): (&OwnerName, &crate::state::Owner)| {
                    let quota = entry.shares.get(pool)?.quota_gpus;
                    (name != owner && to_gpus < from_gpus).then(|| (name.clone(), quota))
                };
                Some(Self::Quota { others: state.owners.iter().filter_map(share).collect(), missing_ppm })
            }
            Change::AdjustReservation(Adjustment::Reservation { owner, pool, .. }) => {
                Some(Self::Reservation { used_gpus: Occupancy::of(state).used(owner, pool), missing_ppm })
            }
            Change::DrainNode { node, .. } => drain(state, policy, node),
            Change::Lend { .. }
            | Change::ReturnNode { .. }
            | Change::AdjustReservation(Adjustment::Commitment { .. }) => None,
        }
    }

    /// Work that a job was expected to lose to a stop or shrink which is part of another action,
    /// GPUs × ms. A range if no checkpoint of the job was known. `None`: not part of another.
    pub fn expected_loss(&self) -> Option<Interval> {
        match self {
            Self::Part { stop } => Some(stop.expected()),
            _ => None,
        }
    }
}

fn is_stop(change: &Change) -> bool {
    matches!(change, Change::Preempt { .. })
}

fn reclaim(plan: &Plan, state: &ClusterState, id: &str, back_gpus: u32, missing_ppm: u64) -> Option<Basis> {
    let loan = state.loans.get(id)?;
    let ours = || state.loans.values().filter(|other| (&other.from, &other.pool) == (&loan.from, &loan.pool));
    let coming: u32 = ours().map(|loan| loan.reclaiming_gpus.min(loan.gpus)).sum();
    let quota = state.share(&loan.from, &loan.pool)?.quota_gpus;
    let backs = plan.decisions.iter().filter_map(|decision| match &decision.action.change {
        Change::Reclaim { loan: other, from_gpus, to_gpus, .. } => {
            let other = state.loans.get(other)?;
            ((&other.from, &other.pool) == (&loan.from, &loan.pool))
                .then(|| from_gpus.saturating_sub(*to_gpus))
        }
        _ => None,
    });
    let of_gpus = backs.sum::<u32>().max(back_gpus);
    Some(Basis::Reclaim {
        owner: loan.from.clone(),
        pool: loan.pool.clone(),
        borrower: loan.to.clone(),
        own_gpus: (quota + coming).saturating_sub(state.lent_gpus(&loan.from, &loan.pool)),
        back_gpus,
        of_gpus,
        loan_ends_us: loan.expires_us,
        missing_ppm,
    })
}

fn room(
    decision: &Decision,
    plan: &Plan,
    state: &ClusterState,
    policy: &Policy,
    (job, for_job): (&JobId, &JobId),
    missing_ppm: u64,
) -> Option<Basis> {
    let waiting = state.jobs.get(for_job)?;
    let is_beside = |other: &&Decision| other.serves == decision.serves;
    let frees = |change: &Change| match change {
        Change::Preempt { frees_gpus, .. } => *frees_gpus,
        Change::ResizeJob { from_gpus, to_gpus, .. } => from_gpus.saturating_sub(*to_gpus),
        _ => 0,
    };
    let beside: Vec<&Change> =
        plan.decisions.iter().filter(is_beside).map(|decision| &decision.action.change).collect();
    let all: u64 = beside.iter().map(|change| u64::from(frees(change))).sum();
    let victims = beside.iter().filter_map(|change| change.job());
    let held = |id: &JobId| Some((id.clone(), state.jobs.get(id)?.held_gpus()));
    let was_scattered = Occupancy::of(state).free(&waiting.pool) >= waiting.gpus;
    Some(Basis::Room {
        for_job: for_job.clone(),
        pool: waiting.pool.clone(),
        was_scattered,
        held: victims.filter_map(held).collect(),
        share_ppm: u64::from(frees(&decision.action.change)) * 1_000_000 / all.max(1),
        missing_ppm: if decision.is_owed { missing_ppm } else { 1_000_000 },
        stop: stop(&decision.action.change, state.jobs.get(job)?, state, policy),
    })
}

fn stop(change: &Change, job: &Job, state: &ClusterState, policy: &Policy) -> Stop {
    if let Change::ResizeJob { to_gpus, .. } = change {
        let again_ms = job.checkpoint.resize_ms.unwrap_or(Millis::from_secs(policy.resize.pause_s).0);
        let expected_gpu_ms = i64::from(*to_gpus) * again_ms;
        return Stop {
            gpus: *to_gpus,
            since_us: job.running_since_us(),
            again_ms,
            is_shrink: true,
            expected_gpu_ms,
            least_gpu_ms: None,
            starts_over: false,
        };
    }
    let (gpus, again_ms, starts_over) = (job.held_gpus(), again_ms(job, policy), starts_over(job));
    let loss = interruption(job, gpus, state.at_us, &policy.preempt);
    let may_have_saved = loss.noticed_gpu_ms.is_none() && job.checkpoint.last_us.is_none() && !starts_over;
    Stop {
        gpus,
        since_us: job.running_since_us(),
        again_ms,
        is_shrink: false,
        expected_gpu_ms: loss.planned_gpu_ms(),
        least_gpu_ms: may_have_saved.then(|| i64::from(gpus) * again_ms),
        starts_over,
    }
}

/// Whether the job's team is known to lose everything at a stop.
pub(super) fn starts_over(job: &Job) -> bool {
    job.checkpoint.resumes == Some(false)
}

fn again_ms(job: &Job, policy: &Policy) -> i64 {
    job.checkpoint.restart_ms.unwrap_or(Millis::from_secs(policy.preempt.restart_s).0)
        + job.checkpoint.requeue_ms.unwrap_or(0)
}

fn drain(state: &ClusterState, policy: &Policy, name: &NodeName) -> Option<Basis> {
    let node = state.nodes.get(name)?;
    let jobs = || state.jobs.iter().filter(|(_, job)| job.placement.contains_key(name));
    let evidence = is_suspect(&node.health, &policy.drain).then(|| Evidence::of(&node.health));
    let lost = |job: &Job| {
        let stop = Stop {
            gpus: job.held_gpus(),
            since_us: job.running_since_us(),
            again_ms: again_ms(job, policy),
            is_shrink: false,
            expected_gpu_ms: 0,
            least_gpu_ms: None,
            starts_over: starts_over(job),
        };
        stop.lost(job.checkpoint.last_us, state.at_us)
    };
    let at_risk = jobs().try_fold(Interval::point(0), |sum, (_, job)| Some(sum.plus(lost(job)?)));
    let gang = jobs().max_by_key(|(_, job)| job.held_gpus()).and_then(|(id, job)| {
        let since_us = job.running_since_us()?;
        Some(Gang { job: id.clone(), gpus: job.held_gpus(), since_us, step_us: job.checkpoint.step_us })
    });
    Some(Basis::Drain { evidence, at_risk, gang })
}
