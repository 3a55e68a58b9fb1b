//! Growth of elastic jobs (docs/control.md, 4.2): free GPUs go to the jobs whose throughput rises
//! most per GPU.
//!
//! It is the greedy of the multiple-choice knapsack, exact up to one item for concave curves. A job
//! grows only if the gain over the time the GPUs stay free outweighs the pause: (x(w') - x(w)) ·
//! hold > ratio · (x(w) · pause, or the loss of a restart). Waiting jobs go before growth.

use std::borrow::Cow;
use std::cmp::Ordering;
use std::collections::{BTreeSet, BinaryHeap};

use tidegate_units::{Micros, Millis};

use super::builder::{ActionSpec, PlanBuilder};
use super::plan::Alternative;
use super::spare::{FreeForJob, Places, Spare};
use super::victims::rate_ms;
use crate::action::{Change, Kind, Precondition};
use crate::policy::Footprint;
use crate::state::interruption;
use crate::state::{CurvePoint, GrowBy, Job, JobId, JobKind, NodeName, Object, ScalingCurve};

/// A job that may grow.
struct Grower<'a> {
    id: &'a JobId,
    /// With an assumed curve, where none is known.
    job: Cow<'a, Job>,
    held: u32,
    /// Sizes it may take, ascending.
    sizes: Vec<u32>,
    /// Most GPUs under its owner's limit. `None`: no limit.
    most: Option<u32>,
    places: Places,
    /// Its size in this plan.
    to: u32,
}

/// A candidate step of the job at index `at`: to `to` GPUs, which gains `gain` (useful GPU time
/// over the hold) for `more` GPUs.
#[derive(Debug, PartialEq, Eq)]
struct Step {
    gain: i64,
    more: u32,
    at: usize,
    to: u32,
}

impl Ord for Step {
    /// Orders by gain per GPU; ties go to the job that comes first.
    fn cmp(&self, other: &Self) -> Ordering {
        let left = i128::from(self.gain) * i128::from(other.more);
        let right = i128::from(other.gain) * i128::from(self.more);
        left.cmp(&right).then_with(|| other.at.cmp(&self.at)).then_with(|| other.to.cmp(&self.to))
    }
}

impl PartialOrd for Step {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

pub(super) fn plan(builder: &mut PlanBuilder<'_>) {
    let state = builder.state;
    let mut spare = Spare::of(builder);
    let mut steps = BinaryHeap::new();
    let mut growers: Vec<Grower<'_>> = Vec::new();
    for (id, job) in &state.jobs {
        let JobKind::Elastic { grow, .. } = job.kind else { continue };
        if !builder.owners.includes(&job.owner) {
            continue;
        }
        builder.count_considered(Kind::ResizeJob, 1);
        if job.running_since_us().is_none() {
            continue;
        }
        let (held, sizes, places) = (job.held_gpus(), job.sizes(), spare.places(job));
        let job = with_curve(builder, job);
        // No job has grown yet.
        let beside = spare.free_for(growers.len(), places);
        if let Some(why) = why_not(builder, id, &job, grow, held, &sizes, beside.gpus()) {
            builder.noop(Kind::ResizeJob, Some(Object::Job(id.clone())), why, None, Vec::new());
            continue;
        }
        let limit = state.share(&job.owner, &job.pool).and_then(|share| share.limit_gpus);
        let most =
            limit.map(|limit| held + limit.saturating_sub(builder.occupancy.used(&job.owner, &job.pool)));
        let grower = Grower { id, job, held, sizes, most, places, to: held };
        steps.extend(next_step(builder, growers.len(), &grower, &beside));
        growers.push(grower);
    }
    while let Some(step) = steps.pop() {
        let grower = &mut growers[step.at];
        let beside = spare.free_for(step.at, grower.places);
        if beside.fits(step.to - grower.held) {
            spare.grows(step.at, grower.places, step.to - grower.held);
            grower.to = step.to;
        }
        steps.extend(next_step(builder, step.at, grower, &beside));
    }
    for grower in growers {
        grow(builder, grower.id, &grower.job, grower.to);
    }
}

/// The job, with a curve to try where its scaling is unknown: only at a second size is it measured,
/// from the steps that it reports.
fn with_curve<'a>(builder: &PlanBuilder<'_>, job: &'a Job) -> Cow<'a, Job> {
    let (gain, held) = (builder.policy.resize.trial_gain, job.held_gpus());
    let JobKind::Elastic { max_gpus, .. } = job.kind else { return Cow::Borrowed(job) };
    let reports = job.checkpoint.step_us.is_some();
    if job.curve.is_some() || !reports || gain <= 0.0 || held == 0 || held >= max_gpus {
        return Cow::Borrowed(job);
    }
    let rate_ppm = |more: u32| u64::from(held) * 1_000_000 + (f64::from(more) * gain.min(1.0) * 1e6) as u64;
    let points = [held, max_gpus].map(|gpus| CurvePoint { gpus, rate_ppm: rate_ppm(gpus - held) });
    Cow::Owned(Job { curve: ScalingCurve::new(points.to_vec()).ok(), ..job.clone() })
}

/// Why a job does not grow. `None`: it may.
pub(super) fn why_not(
    builder: &PlanBuilder<'_>,
    id: &JobId,
    job: &Job,
    grow: GrowBy,
    held: u32,
    sizes: &[u32],
    room: u32,
) -> Option<String> {
    if let Some(why) = builder.protected(id, job) {
        return Some(why.to_owned());
    }
    if grow == GrowBy::Never {
        return Some("it cannot grow".to_owned());
    }
    if sizes.last().is_none_or(|most| *most <= held) {
        return Some(format!("{held} GPUs are its maximum"));
    }
    if job.curve.is_none() {
        return Some("its scaling is unknown".to_owned());
    }
    if let Some(why) = builder.promises.against_growth(&job.owner, &job.pool) {
        return Some(why);
    }
    if room == 0 {
        return Some("no GPUs are free beyond those that waiting jobs need".to_owned());
    }
    let pause_ms = job.checkpoint.resize_ms.unwrap_or(Millis::from_secs(builder.policy.resize.pause_s).0);
    let dwell_us = (builder.policy.resize.dwell_pauses * pause_ms as f64 * 1000.0) as i64;
    if let Some(resized) = job.resized_us.filter(|at| builder.now_us - at < dwell_us) {
        return Some(format!(
            "resized {} s ago; its size stays for {} s",
            Micros(builder.now_us - resized).floor_secs(),
            Micros(dwell_us).floor_secs()
        ));
    }
    let footprint = Footprint {
        owners: vec![job.owner.clone()],
        pools: vec![job.pool.clone()],
        jobs: vec![id.clone()],
        ..Footprint::default()
    };
    (builder.policy.mode(Kind::ResizeJob, &footprint) == crate::policy::Mode::Stop)
        .then(|| "the policy's mode for it is stop".to_owned())
}

/// How long a job could use more GPUs: while they stay free, and while it has work at this size.
pub(super) fn hold_ms(builder: &PlanBuilder<'_>, job: &Job, gpus: u32) -> i64 {
    let hold = Millis::from_secs(builder.policy.resize.hold_s).0;
    let rate = job.curve.as_ref().map_or(u64::from(gpus) * 1_000_000, |curve| curve.rate_ppm(gpus));
    let left = job.remaining_work_ms.map(|work_ms| i128::from(work_ms) * 1_000_000 / i128::from(rate.max(1)));
    left.map_or(hold, |left| hold.min(i64::try_from(left).unwrap_or(i64::MAX)))
}

/// The larger size with the highest gain per GPU that has room. `None`: no size gains.
fn next_step(builder: &PlanBuilder<'_>, at: usize, grower: &Grower<'_>, beside: &FreeForJob) -> Option<Step> {
    let (job, held) = (grower.job.as_ref(), grower.held);
    let (size, room) = (grower.to, beside.gpus());
    let within = |to: u32| to - held <= room && grower.most.is_none_or(|most| to <= most);
    let from = grower.sizes.partition_point(|other| *other <= size);
    let step = |to: u32| {
        let hold = hold_ms(builder, job, to);
        Step { gain: rate_ms(job, to, hold) - rate_ms(job, size, hold), more: to - size, at, to }
    };
    let larger = grower.sizes[from..].iter().copied().take_while(|to| within(*to));
    larger.filter(|to| beside.fits(to - held)).map(step).filter(|step| step.gain > 0).max()
}

/// Effect of growing a job over a time, in useful GPU time.
#[derive(Debug, Clone, Copy)]
pub(super) struct Gain {
    /// Additional GPUs.
    pub(super) more: u32,
    pub(super) useful: i64,
    pub(super) cost: i64,
}

impl Gain {
    pub(super) fn net(&self) -> i64 {
        self.useful - self.cost
    }
}

/// Gain of growing to `to` GPUs for `hold_ms`, and the cost of the pause or restart.
pub(super) fn gain(builder: &PlanBuilder<'_>, job: &Job, by: GrowBy, to: u32, hold_ms: i64) -> Gain {
    let held = job.held_gpus();
    let useful = rate_ms(job, to, hold_ms) - rate_ms(job, held, hold_ms);
    let pause_ms = job.checkpoint.resize_ms.unwrap_or(Millis::from_secs(builder.policy.resize.pause_s).0);
    let cost = match by {
        GrowBy::Requeue => interruption(job, held, builder.now_us, &builder.policy.preempt).planned_gpu_ms(),
        GrowBy::Resize | GrowBy::Satellites | GrowBy::Never => rate_ms(job, held, pause_ms),
    };
    Gain { more: to - held, useful, cost }
}

fn grow(builder: &mut PlanBuilder<'_>, id: &JobId, job: &Job, to: u32) {
    let held = job.held_gpus();
    let object = Object::Job(id.clone());
    if to <= held {
        let reason = "other jobs gain more from the free GPUs".to_owned();
        return builder.noop(Kind::ResizeJob, Some(object), reason, None, Vec::new());
    }
    let hold = hold_ms(builder, job, to);
    let by = if let JobKind::Elastic { grow, .. } = job.kind { grow } else { GrowBy::Never };
    let Gain { useful: gain, cost, .. } = self::gain(builder, job, by, to, hold);
    let predicted = builder.predict_corrected(Kind::ResizeJob, (gain as f64, cost as f64), 0.8, hold);
    let reason = format!(
        "growing from {held} to {to} GPUs gains {:.2} GPU-hours in {} s and costs {:.2}",
        gain as f64 / 3.6e6,
        Millis(hold).floor_secs(),
        cost as f64 / 3.6e6
    );
    if (gain as f64) < builder.policy.resize.gain_ratio * cost as f64 || !builder.worth_it(&predicted) {
        let reason = format!("{reason}: too little");
        return builder.noop(Kind::ResizeJob, Some(object), reason, Some(predicted), Vec::new());
    }
    let keep: BTreeSet<NodeName> = job.placement.keys().cloned().collect();
    let resize = |from_gpus, to_gpus| Change::ResizeJob {
        job: id.clone(),
        from_gpus,
        to_gpus,
        keep_nodes: keep.clone(),
        add_nodes: BTreeSet::new(),
    };
    let noop = Alternative {
        what: "noop".to_owned(),
        net_gpu_ms: 0,
        why_not: "growing gains more, even in the worst case".to_owned(),
    };
    builder.decide(ActionSpec {
        change: resize(held, to),
        inverse: Some(resize(to, held)),
        preconditions: vec![Precondition::job_unchanged(id, job)],
        effect_ends_us: None,
        after: Vec::new(),
        predicted,
        reason,
        alternatives: vec![noop],
    });
}
