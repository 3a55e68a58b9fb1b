//! Jobs: whether one grows, is stopped for others, gets room, or runs on a loan.

use tidegate_autopilot::action::Kind;
use tidegate_autopilot::state::{GrowBy, Job, JobKind, JobState, Object};
use tidegate_events::Micros;

use super::owner::map_account;
use super::{Eligibility, Standing, View, considered, not_considered};

const OPT_IN: &str = "the job's comment (sbatch --comment=tidegate:…), its QOS in opt_in_qos, or require_opt_in = false in the policy";
const PREEMPTIBLE: &str = "sbatch --comment=tidegate:preemptible, or its QOS in preemptible_qos of [slurm]";

/// Where a job stands.
pub(super) fn entries(view: &View<'_>, id: &str, job: &Job) -> Vec<Eligibility> {
    let object = Object::Job(id.to_owned());
    let mut found = Vec::new();
    match job.state {
        JobState::Running { since_us } => {
            let ran_us = view.now_us.saturating_sub(since_us);
            found.push(growth(view, &object, job));
            found.push(stop(view, &object, job, ran_us));
        }
        JobState::Pending { since_us } => {
            found.push(room(view, &object, job, since_us));
            found.push(loan(view, &object, job));
        }
        JobState::Changing { .. } => found.push(not_considered(
            &object,
            None,
            "it is being started, stopped, resized or held: it is left alone until the scheduler says that it runs or waits",
            None,
        )),
        JobState::Unknown => found.push(not_considered(
            &object,
            None,
            "the scheduler does not say how many GPUs it asks for or holds",
            Some("request GPUs by the node or in all (--gpus-per-node, --gpus), not by the socket".to_owned()),
        )),
    }
    if !view.state.owners.contains_key(&job.owner) && !job.owner.is_empty() {
        let reason =
            format!("no owner maps account {:?}: nothing is kept, lent or foreseen for it", job.owner);
        let unmapped = not_considered(&object, None, reason, Some(map_account(&job.owner)));
        // It tells most, unless something is done for the job all the same.
        let is_considered = found.iter().any(|entry| entry.standing == Standing::Considered);
        found.insert(if is_considered { found.len() } else { 0 }, unmapped);
    }
    found
}

/// Why no running job may be touched under this policy, and what would change that.
fn protection(view: &View<'_>, job: &Job) -> Option<(&'static str, String)> {
    if job.do_not_disrupt {
        let change = "without do-not-disrupt in its comment, or its QOS in protected_qos";
        return Some(("it is marked do-not-disrupt", change.to_owned()));
    }
    (view.policy.require_opt_in && !job.opt_in).then(|| ("its owner has not opted in", OPT_IN.to_owned()))
}

fn growth(view: &View<'_>, object: &Object, job: &Job) -> Eligibility {
    let kind = Kind::ResizeJob;
    let JobKind::Elastic { grow, .. } = job.kind else {
        let change =
            "sbatch --comment=tidegate:elastic,min=8,max=32,grow=requeue, if it can restart at another size";
        return not_considered(
            object,
            kind,
            "it does not declare that it is elastic",
            Some(change.to_owned()),
        );
    };
    let said = view.said(kind, object);
    // The gates of the planner, in its order.
    let gate = protection(view, job)
        .or_else(|| {
            (grow == GrowBy::Never).then(|| {
                ("it cannot grow", "grow=requeue or grow=satellites in its comment".to_owned())
            })
        })
        .or_else(|| {
            let at_most = job.sizes().last().is_none_or(|most| *most <= job.held_gpus());
            at_most.then(|| ("it has its maximum of GPUs", "a greater max= in its comment".to_owned()))
        })
        .or_else(|| {
            job.curve.is_none().then(|| {
                let change = "step reports of its family at two sizes or more (guide/agents.md), from which the signals fit a curve";
                ("its scaling is unknown", change.to_owned())
            })
        });
    match gate {
        Some((why, change)) => not_considered(object, kind, said.unwrap_or(why), Some(change)),
        None => considered(object, kind, said.unwrap_or("nothing calls for another size")),
    }
}

/// Whether a running job may be stopped or shrunk for others.
fn stop(view: &View<'_>, object: &Object, job: &Job, ran_us: i64) -> Eligibility {
    let kind = Kind::Preempt;
    if view.state.on_loan(job) && !job.do_not_disrupt {
        return considered(object, kind, "it runs on a loan: it leaves when the lender takes that back");
    }
    if matches!(job.kind, JobKind::Service { .. }) {
        return not_considered(object, kind, "a service is stopped for nobody", None);
    }
    if let Some((why, change)) = protection(view, job) {
        return not_considered(object, kind, why, Some(change));
    }
    let rules = &view.policy.preempt;
    if !job.preemptible {
        let (reason, change) = match &job.kind {
            JobKind::Elastic { min_gpus, .. } if *min_gpus < job.held_gpus() => {
                let reason =
                    format!("it may shrink to {min_gpus} GPUs for jobs that wait, and is stopped for nobody");
                return considered(object, kind, reason);
            }
            _ => ("it is not preemptible: it is stopped for nobody", PREEMPTIBLE),
        };
        return not_considered(object, kind, reason, Some(change.to_owned()));
    }
    if job.preemptions_24h >= rules.per_job_per_day {
        let reason = format!(
            "it started again {} times already; the policy allows {} in a day",
            job.preemptions_24h, rules.per_job_per_day
        );
        return not_considered(
            object,
            kind,
            reason,
            Some("per_job_per_day in [preempt] of the policy".to_owned()),
        );
    }
    if ran_us < Micros::from_secs(rules.least_run_s).0 {
        let reason = format!(
            "it has run for {} s; the policy requires {} s before it is stopped",
            Micros(ran_us).floor_secs(),
            rules.least_run_s
        );
        return not_considered(
            object,
            kind,
            reason,
            Some("time, or least_run_s in [preempt] of the policy".to_owned()),
        );
    }
    let reason =
        format!("it may be stopped for a job of higher priority that waits for {} s", rules.after_wait_s);
    considered(object, kind, reason)
}

/// Whether room is made for a waiting job.
fn room(view: &View<'_>, object: &Object, job: &Job, since_us: i64) -> Eligibility {
    let kind = Kind::Preempt;
    let waited_us = view.now_us.saturating_sub(since_us);
    if let Some(said) = view.said(kind, object) {
        return considered(object, kind, said);
    }
    if job.preemptible {
        return not_considered(object, kind, "it is preemptible, and such a job has nobody stopped", None);
    }
    let after_s = view.policy.preempt.after_wait_s;
    if waited_us < Micros::from_secs(after_s).0 {
        let reason = format!(
            "it has waited for {} s; the policy makes room after {after_s} s",
            Micros(waited_us).floor_secs()
        );
        return not_considered(
            object,
            kind,
            reason,
            Some("time, or after_wait_s in [preempt] of the policy".to_owned()),
        );
    }
    considered(object, kind, "jobs of higher priority come first; a plan makes room for some at a time")
}

/// Whether a waiting job may run on a loan.
fn loan(view: &View<'_>, object: &Object, job: &Job) -> Eligibility {
    let kind = Kind::Lend;
    if job.do_not_disrupt {
        let reason = "it is marked do-not-disrupt, and what is lent is taken back";
        return not_considered(
            object,
            kind,
            reason,
            Some("without do-not-disrupt in its comment".to_owned()),
        );
    }
    if !job.preemptible {
        let reason = "only preemptible jobs run on loans: others could not be taken back";
        return not_considered(object, kind, reason, Some(PREEMPTIBLE.to_owned()));
    }
    let shares = view.state.owners.iter().filter(|(name, _)| **name != job.owner);
    if !shares.flat_map(|(_, owner)| owner.shares.values()).any(|share| share.lendable) {
        let change = "lendable = true in [slurm.owners.OWNER.shares.POOL] of an owner";
        return not_considered(object, kind, "no other owner lends", Some(change.to_owned()));
    }
    considered(
        object,
        kind,
        "it may run on a loan, if its own free GPUs do not start it; the owners say what they spare",
    )
}
