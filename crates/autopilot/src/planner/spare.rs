//! Spare GPUs for growth, in pools and on loans; only preemptible jobs may use loans.
//!
//! Each growing job is placed as one gang, in order of job names, whatever number of steps it took.
//! So the room for one job is what all others leave. Every growth step asks for it, and recomputing
//! it each time would be quadratic in the number of jobs. In a pool where all growth took whole
//! nodes, the order does not matter and the remainder is a difference; only other pools are
//! recomputed.

use std::collections::BTreeMap;

use tidegate_units::Millis;

use super::builder::PlanBuilder;
use super::plan::Decision;
use super::room::Room;
use crate::action::Change;
use crate::state::{Job, JobId, LoanId, OwnerName, PoolName};

/// GPUs beyond what waits, and where they are.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Free {
    gpus: u32,
    room: Room,
}

impl Free {
    fn of(room: Room) -> Self {
        Self { gpus: room.gpus(), room }
    }

    fn set(&mut self, other: &Self) {
        self.gpus = other.gpus;
        self.room.set(&other.room);
    }

    fn take(&mut self, gpus: u32) -> bool {
        let fits = gpus <= self.gpus && self.room.take(gpus);
        self.gpus -= if fits { gpus } else { 0 };
        fits
    }

    fn give_back(&mut self, gpus: u32) {
        self.gpus += gpus;
        self.room.give_back(gpus);
    }
}

/// Where a job may grow, as indices into the [`Free`] list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Places {
    /// Its pool.
    own: Option<usize>,
    /// Its owner's loans.
    lent: Option<usize>,
}

/// Free GPUs for one job.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct FreeForJob {
    own: Free,
    lent: Free,
    gangs_span: bool,
}

impl FreeForJob {
    /// Most GPUs by which the job could grow.
    pub(super) fn gpus(&self) -> u32 {
        self.own.gpus + self.lent.gpus
    }

    /// Whether `gpus` more can be placed.
    pub(super) fn fits(&self, gpus: u32) -> bool {
        let in_one = |free: &Free| gpus <= free.gpus && free.room.missing(gpus) == 0;
        let spans = || {
            self.gangs_span && gpus <= self.gpus() && self.lent.room.missing(self.own.room.missing(gpus)) == 0
        };
        in_one(&self.own) || in_one(&self.lent) || spans()
    }
}

/// Places `gpus` as the scheduler places a gang: on its own nodes, otherwise on lent ones,
/// otherwise across both.
fn put(own: &mut Free, lent: &mut Free, gangs_span: bool, gpus: u32) {
    if own.take(gpus) || lent.take(gpus) || !gangs_span || gpus > own.gpus + lent.gpus {
        return;
    }
    let beside = own.room.missing_after(gpus);
    lent.room.missing_after(beside);
    own.gpus = own.gpus.saturating_sub(gpus - beside);
    lent.gpus = lent.gpus.saturating_sub(beside);
}

/// Spare GPUs and the jobs that grow into them.
pub(super) struct Spare<'a> {
    pools: BTreeMap<&'a PoolName, usize>,
    loans: BTreeMap<&'a OwnerName, usize>,
    gangs_span: bool,
    /// Before any growth; pools first.
    all: Vec<Free>,
    /// After all growth.
    left: Vec<Free>,
    /// Growing jobs and their growth, by index of the job, where the order does not matter.
    plain: BTreeMap<usize, (Places, u32)>,
    /// The same where the order matters.
    rough: BTreeMap<usize, (Places, u32)>,
    /// Pools whose jobs are in `rough`.
    rough_pools: Vec<bool>,
    scratch: Vec<Free>,
}

impl<'a> Spare<'a> {
    pub(super) fn of(builder: &PlanBuilder<'a>) -> Self {
        let mut pools: BTreeMap<&PoolName, Free> =
            builder.free_rooms().into_iter().map(|(pool, room)| (pool, Free::of(room))).collect();
        for (pool, free) in &mut pools {
            // GPUs that earlier decisions of this plan gave away are taken.
            free.gpus = free.gpus.min(builder.free.get(pool).copied().unwrap_or(0));
        }
        let mut loans = lent(builder);
        for job in builder.state.jobs.values().filter(|job| job.pending_since_us().is_some()) {
            let places = [pools.get_mut(&job.pool), loans.get_mut(&job.owner)];
            places.into_iter().flatten().for_each(|free| free.gpus = free.gpus.saturating_sub(job.gpus));
        }
        // If the first policy's jobs already grow there, the second policy waits until they have.
        for job in builder.decisions().iter().filter_map(grows).filter_map(|id| builder.state.jobs.get(id)) {
            let places = [pools.get_mut(&job.pool), loans.get_mut(&job.owner)];
            places.into_iter().flatten().for_each(|free| free.gpus = 0);
        }
        for free in pools.values_mut() {
            free.gpus = free.gpus.saturating_sub(builder.policy.resize.spare_gpus);
        }
        Self::with(pools, loans, builder.policy.lend.gangs_span)
    }

    fn with(
        pools: BTreeMap<&'a PoolName, Free>,
        loans: BTreeMap<&'a OwnerName, Free>,
        gangs_span: bool,
    ) -> Self {
        let rough_pools = vec![false; pools.len()];
        let first = pools.len();
        let index = |(at, (name, _)): (usize, (&&'a String, &Free))| (*name, at);
        let pool_at = pools.iter().enumerate().map(index).collect();
        let loan_at = loans.iter().enumerate().map(index).map(|(name, at)| (name, first + at)).collect();
        let all: Vec<Free> = pools.into_values().chain(loans.into_values()).collect();
        Self {
            pools: pool_at,
            loans: loan_at,
            gangs_span,
            left: all.clone(),
            scratch: all.clone(),
            all,
            plain: BTreeMap::new(),
            rough: BTreeMap::new(),
            rough_pools,
        }
    }

    pub(super) fn places(&self, job: &Job) -> Places {
        let lent = self.loans.get(&job.owner).copied().filter(|_| job.preemptible);
        Places { own: self.pools.get(&job.pool).copied(), lent }
    }

    /// Free GPUs for the job at index `at`, which may grow at `places`, once all others have grown.
    pub(super) fn free_for(&mut self, at: usize, places: Places) -> FreeForJob {
        let from = if self.rough.contains_key(&at) {
            replay(&mut self.scratch, &self.all, &self.rough, Some(at), self.gangs_span);
            &self.scratch
        } else {
            &self.left
        };
        let copy = |place: Option<usize>| place.map_or_else(Free::default, |place| from[place].clone());
        let mut own = copy(places.own);
        if let Some((_, gpus)) = self.plain.get(&at) {
            own.give_back(*gpus);
        }
        FreeForJob { own, lent: copy(places.lent), gangs_span: self.gangs_span }
    }

    /// Grows the job at index `at` by `gpus` in total, which must fit beside the others.
    pub(super) fn grows(&mut self, at: usize, places: Places, gpus: u32) {
        if let Some(own) = places.own.filter(|own| !self.rough_pools[*own]) {
            let free = &mut self.left[own];
            if let Some((_, before)) = self.plain.remove(&at) {
                free.give_back(before);
            }
            if free.room.in_whole_nodes(gpus) && free.take(gpus) {
                self.plain.insert(at, (places, gpus));
                return;
            }
            self.rough_pools[own] = true;
            let (rough, plain): (BTreeMap<_, _>, BTreeMap<_, _>) =
                std::mem::take(&mut self.plain).into_iter().partition(|(_, (at, _))| at.own == Some(own));
            self.plain = plain;
            self.rough.extend(rough);
        }
        self.rough.insert(at, (places, gpus));
        // Unordered pools keep their remainder; none of their jobs is on a loan.
        let pools = self.rough_pools.len();
        for (place, free) in self.left.iter_mut().enumerate() {
            if place >= pools || self.rough_pools[place] {
                free.set(&self.all[place]);
            }
        }
        replay_on(&mut self.left, &self.rough, None, self.gangs_span);
    }
}

/// Recomputes `onto` with the growth of all of `grown` except `without`.
fn replay(
    onto: &mut [Free],
    all: &[Free],
    grown: &BTreeMap<usize, (Places, u32)>,
    without: Option<usize>,
    gangs_span: bool,
) {
    onto.iter_mut().zip(all).for_each(|(free, all)| free.set(all));
    replay_on(onto, grown, without, gangs_span);
}

fn replay_on(
    onto: &mut [Free],
    grown: &BTreeMap<usize, (Places, u32)>,
    without: Option<usize>,
    gangs_span: bool,
) {
    for (_, (places, gpus)) in grown.iter().filter(|(at, _)| Some(**at) != without) {
        let mut take =
            |place: Option<usize>| place.map_or_else(Free::default, |place| std::mem::take(&mut onto[place]));
        let (mut own, mut lent) = (take(places.own), take(places.lent));
        put(&mut own, &mut lent, gangs_span, *gpus);
        for (place, free) in [(places.own, own), (places.lent, lent)] {
            if let Some(place) = place {
                onto[place] = free;
            }
        }
    }
}

/// Loans that owners hold and keep. New loans of this plan are left to waiting jobs.
fn lent<'a>(builder: &PlanBuilder<'a>) -> BTreeMap<&'a OwnerName, Free> {
    let mut loans: BTreeMap<&OwnerName, Free> = BTreeMap::new();
    for (id, loan) in builder.state.loans.iter().filter(|(_, loan)| loan.reclaiming_gpus == 0) {
        let ending = loan.expires_us - builder.now_us <= 2 * Millis(loan.reclaim_within_ms).to_micros().0;
        if ending || loan.nodes.is_empty() || taken_back(builder, id) {
            continue;
        }
        let entry = loans.entry(&loan.to).or_default();
        for (name, node) in loan.nodes.iter().filter_map(|name| Some((name, builder.state.nodes.get(name)?)))
        {
            let gpus = node.gpus.saturating_sub(builder.occupancy.held_on(name));
            entry.gpus += gpus;
            entry.room.add(gpus, node.gpus);
        }
    }
    loans
}

/// The job that a decision grows.
fn grows(decision: &Decision) -> Option<&JobId> {
    match &decision.action.change {
        Change::ResizeJob { job, from_gpus, to_gpus, .. } => (to_gpus > from_gpus).then_some(job),
        _ => None,
    }
}

fn taken_back(builder: &PlanBuilder<'_>, id: &LoanId) -> bool {
    let takes = |change: &Change| matches!(change, Change::Reclaim { loan, .. } if loan == id);
    builder.decisions().iter().any(|decision| takes(&decision.action.change))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two pools of 8-GPU nodes and two loans, one of 4-GPU nodes.
    fn spare(names: &[String; 4], gangs_span: bool) -> Spare<'_> {
        let free = |nodes: u32, size: u32, part: u32| {
            let mut room = Room::default();
            (0..nodes).for_each(|_| room.add(size, size));
            room.add(part, size);
            Free::of(room)
        };
        let pools = [(&names[0], free(9, 8, 5)), (&names[1], free(6, 8, 0))];
        let loans = [(&names[2], free(3, 8, 2)), (&names[3], free(5, 4, 3))];
        Spare::with(pools.into(), loans.into(), gangs_span)
    }

    #[test]
    fn free_gpus_for_a_job_equal_a_full_recomputation() {
        let names = ["p", "q", "a", "b"].map(str::to_owned);
        let mut random = 11u64;
        let mut next = |below: usize| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (random >> 33) as usize % below
        };
        let (mut plain, mut rough) = (0, 0);
        for round in 0..400 {
            let mut spare = spare(&names, round % 2 == 0);
            let all = spare.all.clone();
            let mut grown: BTreeMap<usize, (Places, u32)> = BTreeMap::new();
            let place = |at: usize| Places {
                own: [Some(0), Some(1), None][at % 7 % 3],
                lent: [Some(2), Some(3), None][at % 5 % 3],
            };
            for _ in 0..40 {
                let at = next(16);
                let beside = spare.free_for(at, place(at));
                let mut anew = all.clone();
                replay_on(&mut anew, &grown, Some(at), round % 2 == 0);
                let there = |place: Option<usize>| place.map_or_else(Free::default, |at| anew[at].clone());
                let expected =
                    FreeForJob { own: there(place(at).own), lent: there(place(at).lent), ..beside.clone() };
                assert_eq!(beside, expected, "round {round}, job {at} of {grown:?}");
                // In some rounds all growth takes whole nodes.
                let gpus = if round % 4 < 2 { 8 * (1 + next(3)) } else { 1 + next(17) } as u32;
                if beside.fits(gpus) {
                    spare.grows(at, place(at), gpus);
                    grown.insert(at, (place(at), gpus));
                }
            }
            plain += spare.plain.len();
            rough += spare.rough.len();
        }
        assert!(plain > 500 && rough > 500, "{plain} and {rough}: both ways are taken");
    }
}
