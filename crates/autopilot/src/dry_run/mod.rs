//! Dry run: a batch of actions on a copy of the observed cluster, before any of it is sent
//! (docs/control.md, requirement 31).
//!
//! The guard looks at one action and the observed state. Here each action of a step is applied to a
//! copy by the scheduler's rules, behind the ones under way and the ones before it. What jobs leave
//! is free only once all is done: a job takes its time to end. Then the waiting jobs start. What
//! breaks an invariant on the copy is refused by [`Rule::DryRun`] with numbers, and the rest of the
//! batch stays. Actions that restore are never refused: the dry run reports what it found and lets
//! them go on. What the copy shows at the end is [`Expected`] of each action, and is compared with
//! the observation after it was verified.
//!
//! The rules are written for this purpose alone. `crates/sim` has its own, and is the truth against
//! which these are tested.

mod checks;
mod copy;
mod expected;
mod packing;
mod queue;
mod rules;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

pub use expected::{Compared, Difference, Expected, NodeUse};

use crate::action::{Action, ActionId, Adjustment, Change};
use crate::guard::{Refusal, Rule};
use crate::policy::Policy;
use crate::state::{ClusterState, JobId};
use copy::ClusterCopy;
use queue::Started;

/// Most starts that are expected of one action: a long line is not recorded with each.
const MOST_STARTS: usize = 64;

/// An action that is about to begin.
#[derive(Debug, Clone, Copy)]
pub struct Candidate<'a> {
    /// The action.
    pub action: &'a Action,
    /// It restores capacity the autopilot took: reported, never refused.
    pub restores: bool,
    /// Waiting job that it was decided for.
    pub makes_room_for: Option<&'a JobId>,
}

/// What a dry run found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Actions that break an invariant.
    pub refused: BTreeMap<ActionId, Refusal>,
    /// What is expected of the others.
    pub expected: BTreeMap<ActionId, Expected>,
    /// Objects looked at: what it cost.
    pub visited: u64,
}

impl Outcome {
    /// Whether an action was tried: it is refused, or something is expected of it.
    pub fn has_tried(&self, action: &str) -> bool {
        self.refused.contains_key(action) || self.expected.contains_key(action)
    }

    /// Adds what another run found.
    pub fn extend(&mut self, other: Self) {
        self.refused.extend(other.refused);
        self.expected.extend(other.expected);
        self.visited += other.visited;
    }
}

/// Tries `batch` in order on a copy of `state`, on which `under_way` is in effect already.
/// `may_begin` is asked for each action, with the ones before it that go on: what it does not let
/// begin is left out. What is refused at the end, because of the whole batch, is left out of
/// another run.
pub fn try_batch<'a>(
    policy: &'a Policy,
    state: &'a ClusterState,
    under_way: &'a [Action],
    batch: &[Candidate<'a>],
    now_us: i64,
    mut may_begin: impl FnMut(&Candidate<'a>, &[Candidate<'a>]) -> bool,
) -> Outcome {
    let mut outcome = Outcome::default();
    loop {
        let mut run = DryRun::new(policy, state, under_way, now_us);
        for candidate in batch {
            if outcome.refused.contains_key(&candidate.action.id) || !may_begin(candidate, &run.admitted) {
                continue;
            }
            if let Err(refusal) = run.admit(*candidate) {
                outcome.refused.insert(candidate.action.id.clone(), refusal);
            }
        }
        let (failed, expected, visited) = run.finish();
        outcome.visited += visited;
        if failed.is_empty() {
            outcome.expected = expected;
            return outcome;
        }
        outcome.refused.extend(failed);
    }
}

/// A dry run in progress.
#[derive(Debug, Clone)]
pub struct DryRun<'a> {
    copy: ClusterCopy<'a>,
    /// The observed cluster with nothing tried on it. `None`: not needed yet.
    observed: Option<ClusterCopy<'a>>,
    admitted: Vec<Candidate<'a>>,
    reports: BTreeMap<&'a str, Vec<String>>,
}

impl<'a> DryRun<'a> {
    /// A copy of `state` on which `under_way` is in effect.
    pub fn new(policy: &'a Policy, state: &'a ClusterState, under_way: &'a [Action], now_us: i64) -> Self {
        let mut copy = ClusterCopy::of(policy, state, now_us);
        under_way.iter().for_each(|action| rules::apply(&mut copy, action));
        Self { copy, observed: None, admitted: Vec::new(), reports: BTreeMap::new() }
    }

    /// Tries an action behind those before it.
    ///
    /// # Errors
    /// What it breaks; the copy is as before. Never for an action that restores.
    pub fn admit(&mut self, candidate: Candidate<'a>) -> Result<(), Refusal> {
        let action = candidate.action;
        if let Some(why) = self.conflict(candidate) {
            if !candidate.restores {
                return Err(Refusal { rule: Rule::DryRun, why });
            }
            self.reports.entry(&action.id).or_default().push(why);
        }
        rules::apply(&mut self.copy, action);
        self.admitted.push(candidate);
        Ok(())
    }

    fn conflict(&mut self, candidate: Candidate<'a>) -> Option<String> {
        let action = candidate.action;
        if let Some(job) = candidate.makes_room_for
            && self.copy.state.jobs.get(job).is_none_or(|job| job.pending_since_us().is_none())
        {
            return Some(format!("job {job}, for which it makes room, waits no longer"));
        }
        let conflict = checks::check(&mut self.copy, action).err()?;
        if conflict.only_together {
            let ClusterCopy { policy, state, now_us, .. } = self.copy;
            let observed = self.observed.get_or_insert_with(|| ClusterCopy::of(policy, state, now_us));
            checks::check(observed, action).ok()?;
        }
        let before: Vec<&str> = self.admitted.iter().map(|it| it.action.id.as_str()).collect();
        Some(match before.len() {
            0 => conflict.why,
            1..=3 => format!("{}, after {}", conflict.why, before.join(", ")),
            more => format!("{}, after {more} others of the batch", conflict.why),
        })
    }

    /// Starts the waiting jobs, and returns what the whole batch breaks, what is expected of each
    /// action, and the objects looked at.
    fn finish(mut self) -> (BTreeMap<ActionId, Refusal>, BTreeMap<ActionId, Expected>, u64) {
        rules::settle(&mut self.copy);
        let made_for = self.admitted.iter().filter_map(|it| it.makes_room_for.map(String::as_str));
        let sought: BTreeSet<&str> = made_for.chain(self.copy.requeued.keys().copied()).collect();
        let started = queue::start_waiting(&mut self.copy, &sought);
        let failed = self.failed(&started);
        let expected = match failed.is_empty() && !self.admitted.is_empty() {
            true => self.expected(&started),
            false => BTreeMap::new(),
        };
        let observed = self.observed.as_ref().map_or(0, |observed| observed.visited);
        (failed, expected, self.copy.visited + observed)
    }

    /// Actions whose purpose the whole batch does not reach.
    fn failed(&self, started: &Started<'a>) -> BTreeMap<ActionId, Refusal> {
        let starts = |job: &str| started.certain.contains_key(job) || started.possible.contains(job);
        let mut failed = BTreeMap::new();
        for Candidate { action, restores, makes_room_for } in &self.admitted {
            let why = match (makes_room_for, &action.change) {
                (Some(job), _) if !starts(job) => {
                    let gpus = self.copy.state.jobs.get(*job).map_or(0, |job| job.gpus);
                    format!(
                        "job {job}, for which it makes room, could not start with {gpus} GPUs all the same"
                    )
                }
                (_, Change::ResizeJob { job, to_gpus, .. })
                    if self.copy.requeued.contains_key(job.as_str()) =>
                {
                    format!("job {job} stops to grow, and could not start again with {to_gpus} GPUs")
                }
                _ => continue,
            };
            if !restores {
                failed.insert(action.id.clone(), Refusal { rule: Rule::DryRun, why });
            }
        }
        failed
    }

    fn expected(&mut self, started: &Started<'a>) -> BTreeMap<ActionId, Expected> {
        let ids: Vec<&str> = self.admitted.iter().map(|it| it.action.id.as_str()).collect();
        let mut out = BTreeMap::new();
        for Candidate { action, .. } in &self.admitted {
            let mut reports = self.reports.remove(action.id.as_str()).unwrap_or_default();
            reports.extend(checks::stays_held(&mut self.copy, action));
            let pools = pools(&self.copy, action);
            let beside = ids.iter().filter(|id| **id != action.id).map(|id| (*id).to_owned()).collect();
            let free = pools.iter().filter(|pool| !started.unsettled.contains(*pool));
            let of_pools = |(id, _): &(&&str, &u32)| {
                let job = self.copy.state.jobs.get(**id);
                let placed = self.copy.placement(id);
                let mut on = placed.keys().filter_map(|node| self.copy.node(node));
                job.is_some_and(|job| pools.contains(job.pool.as_str()))
                    || on.any(|node| pools.contains(node.pool))
            };
            let starts = started.certain.iter().filter(of_pools).take(MOST_STARTS);
            let starts = starts.map(|(id, gpus)| ((*id).to_owned(), *gpus));
            let expected = Expected {
                action: action.id.clone(),
                kind: action.change.kind(),
                observed_us: self.copy.state.at_us,
                beside,
                jobs: job_of(&self.copy, action).into_iter().collect(),
                nodes: nodes_of(&self.copy, action),
                free_gpus: free.map(|pool| ((*pool).to_owned(), self.copy.free_gpus(pool))).collect(),
                starts: starts.collect(),
                reports,
            };
            out.insert(action.id.clone(), expected);
        }
        out
    }
}

/// The action's job with the GPUs it holds on the copy. A job that is stopped for others may start
/// again at any time: only one that cannot is claimed.
fn job_of(copy: &ClusterCopy<'_>, action: &Action) -> Option<(JobId, u32)> {
    let (id, gpus) = (action.change.job()?, copy.held_gpus(action.change.job()?));
    let claimed = !matches!(action.change, Change::Preempt { .. }) || gpus == 0;
    claimed.then(|| (id.clone(), gpus))
}

/// Use of the nodes that the action names. A called-back node on which jobs stay is not claimed.
fn nodes_of(copy: &ClusterCopy<'_>, action: &Action) -> BTreeMap<String, NodeUse> {
    let named: Vec<&String> = match &action.change {
        Change::DrainNode { node, .. } | Change::ReturnNode { node, .. } => vec![node],
        Change::Lend { nodes, .. } | Change::Reclaim { nodes, .. } => nodes.iter().collect(),
        _ => Vec::new(),
    };
    let settled = named.into_iter().filter_map(|name| Some((name, copy.node(name)?)));
    let settled = settled.filter(|(_, node)| !node.in_transit);
    let used = settled.map(|(name, node)| {
        let lent_to = node.lent_to.map(str::to_owned);
        (name.clone(), NodeUse { takes_jobs: node.in_service, lent_to })
    });
    used.collect()
}

/// Pools whose GPUs an action frees, takes or moves.
fn pools<'a>(copy: &ClusterCopy<'a>, action: &'a Action) -> BTreeSet<&'a str> {
    let mut out: BTreeSet<&'a str> = BTreeSet::new();
    let mut names: Vec<&str> = Vec::new();
    match &action.change {
        Change::ResizeJob { job, .. } | Change::Preempt { job, .. } => {
            let found = copy.state.jobs.get(job);
            out.extend(found.map(|job| job.pool.as_str()));
            names.extend(found.into_iter().flat_map(|job| job.placement.keys()).map(String::as_str));
            names.extend(copy.placement(job).into_keys());
        }
        Change::Lend { pool, .. } => drop(out.insert(pool)),
        Change::Reclaim { loan, .. } => {
            out.extend(copy.loans.get(loan.as_str()).map(|loan| loan.pool));
        }
        Change::AdjustReservation(
            Adjustment::Quota { pool, .. }
            | Adjustment::Reservation { pool, .. }
            | Adjustment::Commitment { pool, .. },
        ) => drop(out.insert(pool)),
        Change::DrainNode { node, .. } | Change::ReturnNode { node, .. } => names.push(node),
    }
    out.extend(names.into_iter().filter_map(|name| copy.node(name)).map(|node| node.pool));
    out
}
