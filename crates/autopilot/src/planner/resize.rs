//! Growth (4.2): GPUs that are free go to the elastic jobs whose throughput rises most per GPU, by the multiple-choice knapsack's greedy
//! (exact up to one item where curves are concave). A job grows only where the gain over the time the GPUs stay free outweighs the
//! pause: (x(w') - x(w)) · hold > ratio · (x(w) · pause, or the loss of a restart). What waits goes before growth.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};

use super::loss::interruption;
use super::plan::Alternative;
use super::room::Room;
use super::victims::rate_ms;
use super::work::{Wanted, Work};
use crate::action::{Change, Fact, Kind};
use crate::policy::Reach;
use crate::state::{GrowBy, Job, JobId, JobKind, LoanId, NodeName, Object, OwnerName, PoolName};

/// The next step of a job: to `to` GPUs, gaining `gain` (useful GPU time over the hold) for `more` GPUs.
#[derive(Debug, PartialEq, Eq)]
struct Step<'a> {
    gain: i64,
    more: u32,
    id: &'a JobId,
    to: u32,
}

impl Ord for Step<'_> {
    /// Greater: more gain per GPU; ties go to the job that comes first.
    fn cmp(&self, other: &Self) -> Ordering {
        let left = i128::from(self.gain) * i128::from(other.more);
        let right = i128::from(other.gain) * i128::from(self.more);
        left.cmp(&right).then_with(|| other.id.cmp(self.id)).then_with(|| other.to.cmp(&self.to))
    }
}

impl PartialOrd for Step<'_> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// GPUs that growth may use: of pools, and of loans, which only those who may be stopped can.
struct Spare<'a> {
    places: Places<'a>,
    /// Jobs that grow by this plan, and by how many GPUs: each is put on the nodes as one gang, however many steps it took.
    grown: BTreeMap<&'a JobId, (&'a Job, u32)>,
}

/// GPUs beyond what waits, and where they are.
#[derive(Debug, Clone, Default)]
struct Free {
    gpus: u32,
    room: Room,
}

#[derive(Debug, Clone)]
struct Places<'a> {
    pools: BTreeMap<&'a PoolName, Free>,
    loans: BTreeMap<&'a OwnerName, Free>,
    gangs_span: bool,
}

impl<'a> Places<'a> {
    fn of(work: &Work<'a>) -> Self {
        let free = |room: Room| Free { gpus: room.gpus(), room };
        let mut pools: BTreeMap<&PoolName, Free> =
            work.free_rooms().into_iter().map(|(pool, room)| (pool, free(room))).collect();
        for (pool, free) in &mut pools {
            // What earlier decisions of this plan gave to somebody is spoken for.
            free.gpus = free.gpus.min(work.free.get(pool).copied().unwrap_or(0));
        }
        // What this plan lends is not its owner's to grow into; what waits of the borrower takes new loans first.
        let mut loans: BTreeMap<&OwnerName, Free> = BTreeMap::new();
        for (id, loan) in work.state.loans.iter().filter(|(_, loan)| loan.reclaiming_gpus == 0) {
            let ending = loan.expires_us - work.now_us <= 2 * loan.reclaim_within_ms * 1000;
            if ending || loan.nodes.is_empty() || taken_back(work, id) {
                continue;
            }
            let entry = loans.entry(&loan.to).or_default();
            for (name, node) in loan.nodes.iter().filter_map(|name| Some((name, work.state.nodes.get(name)?)))
            {
                let gpus = node.gpus.saturating_sub(work.occupancy.held_on(name));
                entry.gpus += gpus;
                entry.room.add(gpus, node.gpus);
            }
        }
        for job in work.state.jobs.values().filter(|job| job.pending_since_us().is_some()) {
            let places = [pools.get_mut(&job.pool), loans.get_mut(&job.owner)];
            places.into_iter().flatten().for_each(|free| free.gpus = free.gpus.saturating_sub(job.gpus));
        }
        for free in pools.values_mut() {
            free.gpus = free.gpus.saturating_sub(work.policy.resize.spare_gpus);
        }
        Self { pools, loans, gangs_span: work.policy.lend.gangs_span }
    }

    /// Most GPUs by which a job could grow.
    fn gpus(&self, job: &Job) -> u32 {
        let own = self.pools.get(&job.pool).map_or(0, |free| free.gpus);
        let lent = self.loans.get(&job.owner).filter(|_| job.preemptible).map_or(0, |free| free.gpus);
        own + lent
    }

    /// Puts `gpus` more of a job on nodes, as the scheduler puts a gang there; `false`: they do not fit.
    fn put(&mut self, job: &Job, gpus: u32) -> bool {
        let (mut nowhere, mut none_lent) = (Free::default(), Free::default());
        let own = self.pools.get_mut(&job.pool).unwrap_or(&mut nowhere);
        let lent = self.loans.get_mut(&job.owner).filter(|_| job.preemptible).unwrap_or(&mut none_lent);
        for free in [&mut *own, &mut *lent] {
            if gpus <= free.gpus && free.room.take(gpus) {
                free.gpus -= gpus;
                return true;
            }
        }
        if !self.gangs_span || gpus > own.gpus + lent.gpus {
            return false;
        }
        let beside = own.room.missing_after(gpus);
        let fits = lent.room.missing_after(beside) == 0;
        own.gpus = own.gpus.saturating_sub(gpus - beside.min(gpus));
        lent.gpus = lent.gpus.saturating_sub(beside);
        fits
    }
}

impl<'a> Spare<'a> {
    fn of(work: &Work<'a>) -> Self {
        Self { places: Places::of(work), grown: BTreeMap::new() }
    }

    /// Places as they are when all have grown but `id`.
    fn beside(&self, id: &JobId) -> Places<'a> {
        let mut places = self.places.clone();
        for (_, (job, gpus)) in self.grown.iter().filter(|(other, _)| **other != id) {
            places.put(job, *gpus);
        }
        places
    }

    fn grows(&mut self, id: &'a JobId, job: &'a Job, gpus: u32) {
        self.grown.insert(id, (job, gpus));
    }
}

fn taken_back(work: &Work<'_>, id: &LoanId) -> bool {
    let takes = |change: &Change| matches!(change, Change::Reclaim { loan, .. } if loan == id);
    work.decisions().iter().any(|decision| takes(&decision.action.change))
}

pub(super) fn plan(work: &mut Work<'_>) {
    let state = work.state;
    let mut spare = Spare::of(work);
    let mut steps = BinaryHeap::new();
    let mut jobs: BTreeMap<&JobId, (&Job, u32)> = BTreeMap::new();
    for (id, job) in &state.jobs {
        let JobKind::Elastic { grow, .. } = job.kind else { continue };
        work.look(Kind::ResizeJob, 1);
        if job.running_since_us().is_none() {
            continue;
        }
        let held = job.held_gpus();
        if let Some(why) = why_not(work, id, job, grow, held, spare.places.gpus(job)) {
            work.noop(Kind::ResizeJob, Some(Object::Job(id.clone())), why, None, Vec::new());
            continue;
        }
        jobs.insert(id, (job, held));
        steps.extend(next_step(work, id, job, held, &spare.places));
    }
    while let Some(step) = steps.pop() {
        let (job, size) = jobs[&step.id];
        let places = spare.beside(step.id);
        if places.clone().put(job, step.to - job.held_gpus()) {
            spare.grows(step.id, job, step.to - job.held_gpus());
            jobs.insert(step.id, (job, step.to));
            steps.extend(next_step(work, step.id, job, step.to, &places));
        } else {
            steps.extend(next_step(work, step.id, job, size, &places));
        }
    }
    for (id, (job, to)) in jobs {
        grow(work, id, job, to);
    }
}

/// Why a job does not grow; `None`: it may.
fn why_not(work: &mut Work<'_>, id: &JobId, job: &Job, grow: GrowBy, held: u32, room: u32) -> Option<String> {
    if let Some(why) = work.protected(id, job) {
        return Some(why.to_owned());
    }
    if grow == GrowBy::Never {
        return Some("it cannot be made larger".to_owned());
    }
    if job.sizes().last().is_none_or(|most| *most <= held) {
        return Some(format!("{held} GPUs are its most"));
    }
    if job.curve.is_none() {
        return Some("how it scales is not known".to_owned());
    }
    if room == 0 {
        return Some("nothing is free beyond what waits".to_owned());
    }
    let pause_ms = job.checkpoint.resize_ms.unwrap_or(work.policy.resize.pause_s * 1000);
    let dwell_us = (work.policy.resize.dwell_pauses * pause_ms as f64 * 1000.0) as i64;
    if let Some(resized) = job.resized_us.filter(|at| work.now_us - at < dwell_us) {
        return Some(format!(
            "resized {} s ago, rests for {} s",
            (work.now_us - resized) / 1_000_000,
            dwell_us / 1_000_000
        ));
    }
    let reach = Reach {
        owners: vec![job.owner.clone()],
        pools: vec![job.pool.clone()],
        jobs: vec![id.clone()],
        ..Reach::default()
    };
    (work.policy.mode(Kind::ResizeJob, &reach) == crate::policy::Mode::Stop)
        .then(|| "the policy says stop for it".to_owned())
}

/// How long a job could use more GPUs: as long as they stay free, and as long as it has work at this size.
fn hold_ms(work: &Work<'_>, job: &Job, gpus: u32) -> i64 {
    let hold = work.policy.resize.hold_s * 1000;
    let rate = job.curve.as_ref().map_or(u64::from(gpus) * 1_000_000, |curve| curve.rate_ppm(gpus));
    let left = job.remaining_work_ms.map(|work_ms| i128::from(work_ms) * 1_000_000 / i128::from(rate.max(1)));
    left.map_or(hold, |left| hold.min(i64::try_from(left).unwrap_or(i64::MAX)))
}

/// The larger size with the most gain per GPU among those there is room for in `places`; `None`: none gains.
fn next_step<'a>(
    work: &Work<'_>,
    id: &'a JobId,
    job: &Job,
    size: u32,
    places: &Places<'_>,
) -> Option<Step<'a>> {
    let limit = work.state.share(&job.owner, &job.pool).and_then(|share| share.limit_gpus);
    let used = work.occupancy.used(&job.owner, &job.pool);
    let (held, room) = (job.held_gpus(), places.gpus(job));
    let within = |to: u32| to - held <= room && limit.is_none_or(|limit| used + (to - held) <= limit);
    let sizes = job.sizes();
    let from = sizes.partition_point(|other| *other <= size);
    let step = |to: u32| {
        let hold = hold_ms(work, job, to);
        Step { gain: rate_ms(job, to, hold) - rate_ms(job, size, hold), more: to - size, id, to }
    };
    let larger = sizes[from..].iter().copied().take_while(|to| within(*to));
    larger.filter(|to| places.clone().put(job, to - held)).map(step).filter(|step| step.gain > 0).max()
}

fn grow(work: &mut Work<'_>, id: &JobId, job: &Job, to: u32) {
    let held = job.held_gpus();
    let object = Object::Job(id.clone());
    if to <= held {
        let reason = "others gain more from what is free".to_owned();
        return work.noop(Kind::ResizeJob, Some(object), reason, None, Vec::new());
    }
    let hold = hold_ms(work, job, to);
    let gain = rate_ms(job, to, hold) - rate_ms(job, held, hold);
    let pause_ms = job.checkpoint.resize_ms.unwrap_or(work.policy.resize.pause_s * 1000);
    let by = if let JobKind::Elastic { grow, .. } = job.kind { grow } else { GrowBy::Never };
    let (cost, notice) = match by {
        GrowBy::Requeue => interruption(job, held, work.now_us, &work.policy.preempt).least(),
        GrowBy::Resize | GrowBy::Satellites | GrowBy::Never => (rate_ms(job, held, pause_ms), false),
    };
    let predicted = work.predict(gain as f64, cost as f64, None, 0.8, hold);
    let reason = format!(
        "from {held} to {to} GPUs gains {:.2} GPU-hours in {} s and costs {:.2}",
        gain as f64 / 3.6e6,
        hold / 1000,
        cost as f64 / 3.6e6
    );
    if (gain as f64) < work.policy.resize.gain_ratio * cost as f64 || !work.worth_it(&predicted) {
        let reason = format!("{reason}: not enough");
        return work.noop(Kind::ResizeJob, Some(object), reason, Some(predicted), Vec::new());
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
        why_not: "growing gains more, also at worst".to_owned(),
    };
    work.decide(Wanted {
        change: resize(held, to),
        inverse: Some(resize(to, held)),
        preconditions: vec![Fact::goes_on(id, job)],
        effect_ends_us: None,
        notice_ms: if notice { work.policy.preempt.notice_s * 1000 } else { 0 },
        after: Vec::new(),
        predicted,
        reason,
        alternatives: vec![noop],
    });
}
