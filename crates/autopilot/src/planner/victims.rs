//! Victims: options to take GPUs from running jobs, their cost, and the decisions that carry them
//! out.

use std::collections::{BTreeMap, BTreeSet};

use tidegate_units::{GpuMillis, Micros, Millis};

use super::builder::{ActionSpec, PlanBuilder};
use super::cover::{Choice, Group, cheapest};
use super::plan::{Alternative, Predicted};
use crate::action::{Change, Kind, Precondition};
use crate::state::interruption;
use crate::state::{GrowBy, Job, JobId, JobKind, NodeName, Object};

/// One way to take GPUs from a job.
#[derive(Debug, Clone)]
pub(super) struct VictimOption {
    /// Nodes it leaves.
    pub(super) leaves: BTreeSet<NodeName>,
    /// Size it keeps. 0: it is stopped.
    pub(super) to_gpus: u32,
    /// Amount freed, in the unit of the cover, and its cost in useful GPU time.
    pub(super) choice: Choice,
}

/// Options to free `wanted` nodes from job `id`: an elastic job may leave some of them, and a
/// stoppable job may stop. `units` is what leaving a node frees. Empty if the job may not be
/// disturbed.
pub(super) fn victim_options(
    builder: &PlanBuilder<'_>,
    id: &JobId,
    job: &Job,
    wanted: &BTreeSet<&NodeName>,
    stoppable: bool,
    hold_ms: i64,
    units: impl Fn(&NodeName) -> u32,
) -> Vec<VictimOption> {
    let held = job.held_gpus();
    let mut out = shrinks(builder, id, job, wanted, hold_ms, &units);
    if stoppable && may_stop(builder, job) {
        let leaves: BTreeSet<NodeName> = job.placement.keys().cloned().collect();
        let frees = leaves.iter().filter(|node| wanted.contains(node)).map(&units).sum();
        let loss = interruption(job, held, builder.now_us, &builder.policy.preempt).planned_gpu_ms();
        let idle = rate_ms(job, held, hold_ms);
        if frees > 0 {
            out.push(VictimOption { leaves, to_gpus: 0, choice: Choice { frees, cost: loss + idle } });
        }
    }
    out
}

/// Whether a job's caps allow it to be stopped again.
fn may_stop(builder: &PlanBuilder<'_>, job: &Job) -> bool {
    let ran_us = job.running_since_us().map_or(0, |since| builder.now_us - since);
    let rules = &builder.policy.preempt;
    let on_loan = job.loan.is_some() || job.placement.keys().any(|node| builder.loan_of.contains_key(node));
    // A borrower agreed to give capacity back at any time.
    on_loan
        || (job.preemptions_24h < rules.per_job_per_day && ran_us >= Micros::from_secs(rules.least_run_s).0)
}

/// Whether a job may be disturbed for others: opted in (a loan counts), not protected, not already
/// disturbed by this plan.
pub(super) fn may_disturb(builder: &PlanBuilder<'_>, id: &JobId, job: &Job) -> bool {
    let on_loan = job.loan.is_some() || job.placement.keys().any(|node| builder.loan_of.contains_key(node));
    match builder.protected(id, job) {
        None => true,
        Some(_) => {
            on_loan
                && !job.do_not_disrupt
                && job.running_since_us().is_some()
                && !builder.disturbed.contains(id)
        }
    }
}

/// Useful GPU time of `gpus` over `ms`. A job without a curve is assumed to use everything it
/// holds.
pub(super) fn rate_ms(job: &Job, gpus: u32, ms: i64) -> i64 {
    let rate_ppm = job.curve.as_ref().map_or(u64::from(gpus) * 1_000_000, |curve| curve.rate_ppm(gpus));
    let useful_ms = i128::from(rate_ppm) * i128::from(ms) / 1_000_000;
    i64::try_from(useful_ms).unwrap_or(i64::MAX)
}

fn shrinks(
    builder: &PlanBuilder<'_>,
    id: &JobId,
    job: &Job,
    wanted: &BTreeSet<&NodeName>,
    hold_ms: i64,
    units: &impl Fn(&NodeName) -> u32,
) -> Vec<VictimOption> {
    if !matches!(job.kind, JobKind::Elastic { .. }) || builder.disturbed.contains(id) {
        return Vec::new();
    }
    let (held, sizes) = (job.held_gpus(), job.sizes());
    let pause_ms = job.checkpoint.resize_ms.unwrap_or(Millis::from_secs(builder.policy.resize.pause_s).0);
    let mut out = Vec::new();
    let (mut leaves, mut left, mut frees) = (BTreeSet::new(), held, 0);
    for (node, gpus) in &job.placement {
        if !wanted.contains(node) || job.anchor_node.as_ref() == Some(node) {
            continue;
        }
        leaves.insert(node.clone());
        left -= gpus;
        frees += units(node);
        if left > 0 && frees > 0 && sizes.binary_search(&left).is_ok() {
            let lost = rate_ms(job, held, hold_ms) - rate_ms(job, left, hold_ms);
            let cost = lost.max(0) + i64::from(left) * pause_ms;
            let choice = Choice { frees, cost };
            out.push(VictimOption { leaves: leaves.clone(), to_gpus: left, choice });
        }
    }
    out
}

/// The options that free at least `need` at the least cost, at most one of each job. `None`: all
/// together do not free enough.
pub(super) fn pick<'a>(
    options: &BTreeMap<&'a JobId, Vec<VictimOption>>,
    need: u32,
) -> Option<Vec<(&'a JobId, VictimOption)>> {
    let choices = |ways: &Vec<VictimOption>| ways.iter().map(|way| way.choice).collect::<Group>();
    let groups: Vec<Group> = options.values().map(choices).collect();
    let taken = cheapest(&groups, need)?;
    let picked = |((id, ways), taken): ((&&'a JobId, &Vec<VictimOption>), Option<usize>)| {
        taken.map(|at| (*id, ways[at].clone()))
    };
    Some(options.iter().zip(taken).filter_map(picked).collect())
}

/// Most that all jobs together can free.
pub(super) fn most_freed(options: &BTreeMap<&JobId, Vec<VictimOption>>) -> u32 {
    let most = |ways: &Vec<VictimOption>| ways.iter().map(|way| way.choice.frees).max().unwrap_or(0);
    options.values().map(most).sum()
}

/// A waiting job, and what room for it is worth.
pub(super) struct Served<'r> {
    pub(super) job: &'r JobId,
    /// It is owed its GPUs, so they count as missing.
    pub(super) is_owed: bool,
    /// Useful GPU time.
    pub(super) benefit: f64,
    /// Time over which that counts, ms.
    pub(super) over_ms: i64,
}

/// Decides to make room for a waiting job by what was picked of `options`. Each disturbance has
/// the share of the benefit that it frees.
pub(super) fn make_room(
    builder: &mut PlanBuilder<'_>,
    served: &Served<'_>,
    options: &BTreeMap<&JobId, Vec<VictimOption>>,
    picked: Vec<(&JobId, VictimOption)>,
    why: &str,
) {
    let chosen: BTreeSet<&JobId> = picked.iter().map(|(id, _)| *id).collect();
    let alternatives = alternatives(options, &chosen);
    let freed: u32 = picked.iter().map(|(_, way)| way.choice.frees).sum();
    for (victim, way) in picked {
        let cause = Cause {
            serves: Some(Object::Job(served.job.clone())),
            is_owed: served.is_owed,
            over_ms: served.over_ms,
            benefit: served.benefit * f64::from(way.choice.frees) / f64::from(freed.max(1)),
            after: Vec::new(),
            why,
            alternatives: alternatives.clone(),
        };
        disturb(builder, victim, &builder.state.jobs[victim], &way, cause);
    }
}

/// Purpose of a disturbance.
pub(super) struct Cause<'r> {
    /// What it makes room for. `None`: the actions that must come first say so.
    pub(super) serves: Option<Object>,
    /// A job that is owed its GPUs, so they count as missing.
    pub(super) is_owed: bool,
    /// Time over which that counts, ms.
    pub(super) over_ms: i64,
    /// Value of what it frees, useful GPU time.
    pub(super) benefit: f64,
    /// Actions that must come first.
    pub(super) after: Vec<String>,
    pub(super) why: &'r str,
    pub(super) alternatives: Vec<Alternative>,
}

/// Decides to apply option `way` to a job.
pub(super) fn disturb(
    builder: &mut PlanBuilder<'_>,
    id: &JobId,
    job: &Job,
    way: &VictimOption,
    cause: Cause<'_>,
) -> String {
    let Cause { serves, is_owed, over_ms, benefit, after, why, alternatives } = cause;
    let held = job.held_gpus();
    let predicted: Predicted = builder.predict(benefit, way.choice.cost as f64, None, 0.9, over_ms);
    let runs = Precondition::job_unchanged(id, job);
    let (change, inverse, what) = if way.to_gpus == 0 {
        let change = Change::Preempt { job: id.clone(), frees_gpus: held };
        (
            change,
            None,
            format!("this job stops and loses {} GPU-seconds", GpuMillis(way.choice.cost).trunc_gpu_secs()),
        )
    } else {
        let keep: BTreeSet<NodeName> =
            job.placement.keys().filter(|node| !way.leaves.contains(*node)).cloned().collect();
        let change = Change::ResizeJob {
            job: id.clone(),
            from_gpus: held,
            to_gpus: way.to_gpus,
            keep_nodes: keep.clone(),
            add_nodes: BTreeSet::new(),
        };
        let grows = matches!(job.kind, JobKind::Elastic { grow, .. } if grow != GrowBy::Never);
        let back = grows.then(|| Change::ResizeJob {
            job: id.clone(),
            from_gpus: way.to_gpus,
            to_gpus: held,
            keep_nodes: keep,
            add_nodes: BTreeSet::new(),
        });
        (change, back, format!("this job shrinks from {held} to {} GPUs", way.to_gpus))
    };
    let spec = ActionSpec {
        change,
        inverse,
        preconditions: vec![runs],
        effect_ends_us: None,
        after,
        predicted,
        reason: format!("{why}: {what}"),
        alternatives,
    };
    builder.decide_for(serves, is_owed, spec)
}

/// Options not chosen, cheapest first, for the report.
pub(super) fn alternatives(
    ways: &BTreeMap<&JobId, Vec<VictimOption>>,
    taken: &BTreeSet<&JobId>,
) -> Vec<Alternative> {
    let mut out: Vec<(i64, Alternative)> = Vec::new();
    for (id, ways) in ways {
        let Some(way) = ways.iter().min_by_key(|way| way.choice.cost).filter(|_| !taken.contains(id)) else {
            continue;
        };
        let kind = if way.to_gpus == 0 { Kind::Preempt } else { Kind::ResizeJob };
        let price = way.choice.cost / i64::from(way.choice.frees.max(1));
        out.push((
            price,
            Alternative {
                what: format!("{kind} job {id}, freeing {}", way.choice.frees),
                net_gpu_ms: -way.choice.cost,
                why_not: "the chosen jobs lose less in total".to_owned(),
            },
        ));
    }
    out.sort_by(|a, b| a.0.cmp(&b.0).then_with(|| a.1.what.cmp(&b.1.what)));
    out.into_iter().map(|(_, alternative)| alternative).take(4).collect()
}
