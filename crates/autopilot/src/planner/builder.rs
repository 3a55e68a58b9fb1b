//! Builder of a plan: the indexed state, the capacity already committed by earlier decisions, and
//! the growing report.

use std::collections::{BTreeMap, BTreeSet};

use tidegate_units::{Micros, Millis};

use super::notice::notice_ms;
use super::owner_filter::OwnerFilter;
use super::plan::{Advice, Alternative, Considered, Decision, Plan, Predicted, Report, same_change};
use super::promises::BrokenPromises;
use super::reserved::Reserved;
use super::room::Room;
use super::waiting::WaitingJobs;
use crate::action::{Action, Change, Kind, Precondition};
use crate::fingerprint::fingerprint;
use crate::forecast::{DemandForecast, ForecastAnswer, Series, ppm};
use crate::guard::footprint;
use crate::policy::{Footprint, Mode, Policy};
use crate::state::{ClusterState, Job, JobId, JobState, LoanId, NodeName, Object, Occupancy, PoolName};

/// Most alternatives reported per decision.
const ALTERNATIVES: usize = 8;

pub(super) struct PlanBuilder<'a> {
    pub(super) policy: &'a Policy,
    /// Owners this policy decides for.
    pub(super) owners: OwnerFilter<'a>,
    /// Name of the canary policy that decides now, if one does.
    canary: Option<&'a str>,
    pub(super) state: &'a ClusterState,
    pub(super) occupancy: Occupancy<'a>,
    pub(super) now_us: i64,
    pub(super) seed: u64,
    /// Jobs by node.
    pub(super) jobs_on: BTreeMap<&'a NodeName, Vec<&'a JobId>>,
    /// Loan of each node that is lent whole.
    pub(super) loan_of: BTreeMap<&'a NodeName, &'a LoanId>,
    /// Jobs disturbed by a decision of this plan.
    pub(super) disturbed: BTreeSet<&'a JobId>,
    /// Free GPUs by pool, outside of loans and not yet given away by this plan.
    pub(super) free: BTreeMap<&'a PoolName, u32>,
    /// Sorted by pool.
    schedulable: Vec<SchedulableNode<'a>>,
    /// GPUs by pool on nodes that are not lent and take no jobs.
    out: BTreeMap<&'a PoolName, u32>,
    /// Nodes that reservations keep for one owner.
    pub(super) reserved: Reserved<'a>,
    /// Promises that are broken under this policy.
    pub(super) promises: BrokenPromises<'a>,
    forecast: &'a dyn DemandForecast,
    /// Unexpired decisions of the parent plan, by kind and object.
    held: BTreeMap<(Kind, Object), Vec<&'a Decision>>,
    plan_id: &'a str,
    decisions: Vec<Decision>,
    report: Report,
    /// Jobs still waiting for a loan. `None`: not computed yet.
    pub(super) waiting: Option<WaitingJobs<'a>>,
    /// Waiting jobs that will start on loans of their owner, those of this plan included.
    pub(super) on_loans: BTreeSet<&'a JobId>,
}

/// A node on which the scheduler may start any owner's job: in service, not on loan, and not in
/// another owner's reservation.
struct SchedulableNode<'a> {
    pool: &'a PoolName,
    name: &'a NodeName,
    /// Idle GPUs.
    free: u32,
    /// All GPUs, idle or held.
    gpus: u32,
}

/// Specification of an action to decide on.
pub(super) struct ActionSpec {
    pub(super) change: Change,
    pub(super) inverse: Option<Change>,
    pub(super) preconditions: Vec<Precondition>,
    pub(super) effect_ends_us: Option<i64>,
    pub(super) after: Vec<String>,
    pub(super) predicted: Predicted,
    pub(super) reason: String,
    pub(super) alternatives: Vec<Alternative>,
}

impl<'a> PlanBuilder<'a> {
    pub(super) fn new(
        policy: &'a Policy,
        state: &'a ClusterState,
        forecast: &'a dyn DemandForecast,
        parent: Option<&'a Plan>,
        plan_id: &'a str,
        now_us: i64,
        seed: u64,
    ) -> Self {
        let occupancy = Occupancy::of(state);
        let mut jobs_on: BTreeMap<&NodeName, Vec<&JobId>> = BTreeMap::new();
        for (id, job) in &state.jobs {
            for node in job.placement.keys() {
                jobs_on.entry(node).or_default().push(id);
            }
        }
        let mut loan_of = BTreeMap::new();
        for (id, loan) in &state.loans {
            loan_of.extend(loan.nodes.iter().map(|node| (node, id)));
        }
        let reserved = Reserved::of(policy, state, &occupancy, now_us);
        let mut schedulable: Vec<SchedulableNode<'_>> = Vec::new();
        let mut out: BTreeMap<&PoolName, u32> = BTreeMap::new();
        for (name, node) in state.nodes.iter().filter(|(name, _)| !loan_of.contains_key(name)) {
            if !node.takes_jobs() {
                *out.entry(&node.pool).or_default() += node.gpus;
            } else if !reserved.keeps(name) {
                let free = node.gpus.saturating_sub(occupancy.held_on(name));
                schedulable.push(SchedulableNode { pool: &node.pool, name, free, gpus: node.gpus });
            }
        }
        schedulable.sort_by_key(|node| node.pool);
        let free = schedulable.chunk_by(|a, b| a.pool == b.pool);
        let free = free.map(|nodes| (nodes[0].pool, nodes.iter().map(|node| node.free).sum())).collect();
        let mut held: BTreeMap<(Kind, Object), Vec<&Decision>> = BTreeMap::new();
        let unexpired = |decision: &&Decision| decision.action.expires_us > now_us;
        for decision in parent.into_iter().flat_map(|parent| &parent.decisions).filter(unexpired) {
            held.entry((decision.kind, decision.action.change.object())).or_default().push(decision);
        }
        let report = Report {
            plan: plan_id.to_owned(),
            considered: Vec::new(),
            answers: Vec::new(),
            advice: Vec::new(),
            looked_at: BTreeMap::new(),
        };
        let (disturbed, decisions) = (BTreeSet::new(), Vec::new());
        Self {
            policy,
            owners: OwnerFilter::All,
            canary: None,
            state,
            occupancy,
            now_us,
            seed,
            jobs_on,
            loan_of,
            disturbed,
            free,
            schedulable,
            out,
            reserved,
            promises: BrokenPromises::of(&policy.promise, state),
            forecast,
            held,
            plan_id,
            decisions,
            report,
            waiting: None,
            on_loans: BTreeSet::new(),
        }
    }

    /// Lets `policy` decide for the given owners from here on.
    pub(super) fn switch_policy(
        &mut self,
        policy: &'a Policy,
        part: OwnerFilter<'a>,
        canary: Option<&'a str>,
    ) {
        if self.policy.promise != policy.promise {
            self.promises = BrokenPromises::of(&policy.promise, self.state);
        }
        (self.policy, self.owners, self.canary) = (policy, part, canary);
    }

    /// Free GPUs by pool, node by node. Leaves out nodes that are lent or reserved for one owner,
    /// and those that this plan lends or drains.
    pub(super) fn free_rooms(&self) -> BTreeMap<&'a PoolName, Room> {
        let mut gone: BTreeSet<&NodeName> = BTreeSet::new();
        for decision in &self.decisions {
            match &decision.action.change {
                Change::Lend { nodes, .. } => gone.extend(nodes),
                Change::DrainNode { node, .. } => drop(gone.insert(node)),
                _ => {}
            }
        }
        let room_of = |nodes: &[SchedulableNode<'a>]| {
            let mut room = Room::default();
            let left = nodes.iter().filter(|node| !gone.contains(node.name));
            left.for_each(|node| room.add(node.free, node.gpus));
            (nodes[0].pool, room)
        };
        self.schedulable.chunk_by(|a, b| a.pool == b.pool).map(room_of).collect()
    }

    /// GPUs out of service in a pool that belongs to this owner alone. They are not part of what it
    /// has.
    pub(super) fn out_of_service(&self, of: Series<'_>) -> u32 {
        let has = |owner: &&crate::state::Owner| {
            owner.shares.get(of.pool).is_some_and(|share| share.quota_gpus > 0)
        };
        if self.state.owners.values().filter(has).count() > 1 {
            return 0;
        }
        self.out.iter().find(|(pool, _)| pool.as_str() == of.pool).map_or(0, |(_, gpus)| *gpus)
    }

    /// Room for jobs of `owner` on loans it keeps.
    pub(super) fn room_on_loans(&self, owner: &str) -> Room {
        let mut room = Room::default();
        for (id, loan) in self.state.loans.iter().filter(|(_, loan)| loan.to == owner) {
            for name in loan.nodes.difference(&loan.reclaiming_nodes) {
                let Some(node) = self.state.nodes.get(name).filter(|node| node.takes_jobs()) else {
                    continue;
                };
                room.add(node.gpus.saturating_sub(self.occupancy.held_on(name)), node.gpus);
            }
            if loan.nodes.is_empty() {
                let jobs = self.state.jobs.values().filter(|job| job.loan.as_ref() == Some(id));
                let held: u32 = jobs.map(Job::held_gpus).sum();
                room.add_loose(loan.gpus.saturating_sub(loan.reclaiming_gpus).saturating_sub(held));
            }
        }
        room
    }

    /// Whether the mode of `kind` is `stop` for this footprint. Reports it.
    pub(super) fn stopped(&mut self, kind: Kind, footprint: &Footprint, object: Object) -> bool {
        let stopped = self.policy.mode(kind, footprint) == Mode::Stop;
        if stopped {
            self.noop(kind, Some(object), "the policy's mode for it is stop".to_owned(), None, Vec::new());
        }
        stopped
    }

    pub(super) fn count_considered(&mut self, kind: Kind, objects: usize) {
        let objects = u32::try_from(objects).unwrap_or(u32::MAX);
        *self.report.looked_at.entry(kind).or_default() += objects;
    }

    pub(super) fn noop(
        &mut self,
        kind: Kind,
        object: Option<Object>,
        reason: String,
        predicted: Option<Predicted>,
        alternatives: Vec<Alternative>,
    ) {
        self.report.considered.push(Considered {
            kind,
            object,
            action: None,
            reason,
            predicted,
            alternatives,
        });
    }

    /// Reports that nothing called for `kind`, if nothing was reported about it.
    pub(super) fn note_if_idle(&mut self, kind: Kind) {
        if !self.report.considered.iter().any(|considered| considered.kind == kind) {
            let looked = self.report.looked_at.get(&kind).copied().unwrap_or(0);
            self.noop(kind, None, format!("{looked} considered; none needs it"), None, Vec::new());
        }
    }

    /// A prediction with cautious ends. `relative_error` is the relative standard deviation of
    /// benefit and cost. `None`: the policy's.
    pub(super) fn predict(
        &self,
        benefit: f64,
        cost: f64,
        relative_error: Option<f64>,
        confidence: f64,
        over_ms: i64,
    ) -> Predicted {
        let worth = &self.policy.worth;
        let out = worth.caution * relative_error.unwrap_or(worth.relative_error);
        let whole = |value: f64| value.round().clamp(-9e18, 9e18) as i64;
        let micros = (benefit - cost) / 3.6e6 * worth.useful_micros_per_gpu_hour as f64;
        Predicted {
            benefit_gpu_ms: whole(benefit),
            raw_benefit_gpu_ms: None,
            benefit_low_gpu_ms: whole(benefit * (1.0 - out).max(0.0)),
            cost_gpu_ms: whole(cost),
            cost_high_gpu_ms: whole(cost * (1.0 + out)),
            net_micros: whole(micros),
            confidence_ppm: (confidence.clamp(0.0, 1.0) * 1e6).round() as u32,
            over_ms,
        }
    }

    /// The same, with the benefit corrected by what came of the kind's earlier predictions.
    pub(super) fn predict_corrected(
        &self,
        kind: Kind,
        (benefit, cost): (f64, f64),
        confidence: f64,
        over_ms: i64,
    ) -> Predicted {
        let factor = self.state.corrections_ppm.get(kind.name()).map(|ppm| f64::from(*ppm) / 1e6);
        let predicted = self.predict(benefit * factor.unwrap_or(1.0), cost, None, confidence, over_ms);
        let raw = benefit.round().clamp(-9e18, 9e18) as i64;
        Predicted { raw_benefit_gpu_ms: factor.map(|_| raw), ..predicted }
    }

    /// Whether the net benefit at the cautious ends exceeds the policy's minimum.
    pub(super) fn worth_it(&self, predicted: &Predicted) -> bool {
        predicted.net_low_gpu_ms() as f64 > self.policy.worth.least_net_gpu_hours * 3.6e6
    }

    /// Value of a missing GPU-hour in hours of useful work.
    pub(super) fn missing_ratio(&self) -> f64 {
        let worth = &self.policy.worth;
        worth.missing_micros_per_gpu_hour as f64 / (worth.useful_micros_per_gpu_hour.max(1)) as f64
    }

    /// Decides on an action that stands for itself, and returns its id. If the parent plan holds
    /// the same unexpired decision, its action is kept.
    pub(super) fn decide(&mut self, wanted: ActionSpec) -> String {
        self.decide_for(None, false, wanted)
    }

    /// The same, for an action that makes room for `serves`, which may be owed that room.
    pub(super) fn decide_for(
        &mut self,
        serves: Option<Object>,
        is_owed: bool,
        mut wanted: ActionSpec,
    ) -> String {
        let kind = wanted.change.kind();
        let footprint = footprint(&wanted.change, self.state);
        // Restoring actions, and those that follow another, are not held back by the kind's
        // scorecard.
        let is_free = kind.restores() || !wanted.after.is_empty();
        let mode = self.policy.mode(kind, &footprint);
        let most = self.policy.at_most.get(&kind).copied().filter(|_| !is_free);
        let mode = most.map_or(mode, |most| mode.min(most));
        let object = wanted.change.object();
        let held = self.held.get(&(kind, object)).into_iter().flatten();
        let kept = held.copied().find(|decision| same_change(&decision.action.change, &wanted.change));
        let action = match kept {
            Some(decision) => {
                Action { preconditions: wanted.preconditions, after: wanted.after, ..decision.action.clone() }
            }
            None => {
                let notice_ms = notice_ms(&wanted.change, self.state, &self.policy.preempt);
                let at = self.decisions.len();
                let id = format!("{kind}-{:016x}", fingerprint(&(self.plan_id, at, &wanted.change)));
                wanted.inverse = wanted.inverse.or_else(|| undoing(&id, &wanted.change));
                let freshness = &self.policy.freshness;
                let stands_s = if mode == Mode::Act { freshness.plan_s } else { freshness.person_s };
                Action {
                    id,
                    generation: 0,
                    change: wanted.change,
                    preconditions: wanted.preconditions,
                    inverse: wanted.inverse,
                    expires_us: self.now_us + Micros::from_secs(stands_s).0 + Millis(notice_ms).to_micros().0,
                    effect_ends_us: wanted.effect_ends_us,
                    notice_ms,
                    after: wanted.after,
                }
            }
        };
        if let Some(job) = action.change.job().and_then(|job| self.state.jobs.get_key_value(job)) {
            self.disturbed.insert(job.0);
        }
        let id = action.id.clone();
        wanted.alternatives.truncate(ALTERNATIVES);
        self.report.considered.push(Considered {
            kind,
            object: Some(action.change.object()),
            action: Some(id.clone()),
            reason: wanted.reason.clone(),
            predicted: Some(wanted.predicted),
            alternatives: wanted.alternatives,
        });
        let gpus = crate::guard::gpus_touched(&action.change, self.state);
        let (predicted, reason) = (wanted.predicted, wanted.reason);
        let canary = self.canary.map(str::to_owned);
        self.decisions.push(Decision {
            action,
            kind,
            mode,
            canary,
            serves,
            is_owed,
            footprint,
            gpus,
            predicted,
            reason,
        });
        id
    }

    /// Unexpired decisions of the parent plan.
    pub(super) fn decided_before(&self, kind: Kind, object: Object) -> impl Iterator<Item = &'a Decision> {
        self.held.get(&(kind, object)).into_iter().flatten().copied()
    }

    pub(super) fn decisions(&self) -> &[Decision] {
        &self.decisions
    }

    /// Waiting jobs that decisions of this plan make room for.
    pub(super) fn served(&self) -> BTreeSet<JobId> {
        let job = |decision: &Decision| match &decision.serves {
            Some(Object::Job(id)) => Some(id.clone()),
            _ => None,
        };
        self.decisions.iter().filter_map(job).collect()
    }

    pub(super) fn finish(self, id: &str, advice: Vec<Advice>) -> (Vec<Decision>, Report) {
        (self.decisions, Report { plan: id.to_owned(), advice, ..self.report })
    }

    // Answers are rounded to their recorded form before use, so that the record reproduces the
    // plan.
    pub(super) fn highest(&mut self, of: Series<'_>, level: f64, within_ms: i64) -> Option<f64> {
        let level_ppm = ppm(level);
        let gpus_milli = milli(self.forecast.highest_gpus(of, f64::from(level_ppm) / 1e6, within_ms));
        let (owner, pool) = (of.owner.to_owned(), of.pool.to_owned());
        self.report.answers.push(ForecastAnswer::Highest { owner, pool, level_ppm, within_ms, gpus_milli });
        gpus_milli.map(|milli| milli as f64 / 1e3)
    }

    pub(super) fn typical(&mut self, of: Series<'_>, level: f64, within_ms: i64) -> Option<f64> {
        let level_ppm = ppm(level);
        let gpus_milli = milli(self.forecast.typical_gpus(of, f64::from(level_ppm) / 1e6, within_ms));
        let (owner, pool) = (of.owner.to_owned(), of.pool.to_owned());
        self.report.answers.push(ForecastAnswer::Typical { owner, pool, level_ppm, within_ms, gpus_milli });
        gpus_milli.map(|milli| milli as f64 / 1e3)
    }

    pub(super) fn coverage(&mut self, of: Series<'_>) -> Option<f64> {
        let share_ppm = self.forecast.coverage(of).filter(|share| share.is_finite()).map(ppm);
        let (owner, pool) = (of.owner.to_owned(), of.pool.to_owned());
        self.report.answers.push(ForecastAnswer::Coverage { owner, pool, share_ppm });
        share_ppm.map(|ppm| f64::from(ppm) / 1e6)
    }

    pub(super) fn as_of(&mut self, of: Series<'_>) -> Option<i64> {
        let at_us = self.forecast.as_of_us(of);
        self.report.answers.push(ForecastAnswer::AsOf {
            owner: of.owner.to_owned(),
            pool: of.pool.to_owned(),
            at_us,
        });
        at_us
    }

    /// Why a running job may not be disturbed. `None`: it may.
    pub(super) fn protected(&self, id: &JobId, job: &Job) -> Option<&'static str> {
        if job.do_not_disrupt {
            return Some("it is marked do-not-disrupt");
        }
        if self.policy.require_opt_in && !job.opt_in {
            return Some("its owner has not opted in");
        }
        if !matches!(job.state, JobState::Running { .. }) {
            return Some("it is not running");
        }
        self.disturbed.contains(id).then_some("another decision of this plan changes it")
    }
}

/// Thousandths of a GPU, rounded up so that a bound stays a bound.
fn milli(gpus: Option<f64>) -> Option<i64> {
    // The small offset keeps whole thousandths unchanged after a round trip through floats.
    gpus.filter(|gpus| gpus.is_finite()).map(|gpus| (gpus * 1e3 - 1e-3).ceil().clamp(0.0, 9e15) as i64)
}

/// The inverse of a change that is named by its own action: a loan's reclaim, a drain's return.
fn undoing(id: &str, change: &Change) -> Option<Change> {
    match change {
        Change::Lend { gpus, nodes, extends: None, .. } => {
            Some(Change::Reclaim { loan: id.to_owned(), from_gpus: *gpus, to_gpus: 0, nodes: nodes.clone() })
        }
        Change::DrainNode { node, .. } => {
            Some(Change::ReturnNode { node: node.clone(), drained_by: id.to_owned() })
        }
        _ => None,
    }
}
