//! Shadows and canaries of a soak test, and the checks of them.

use std::collections::{BTreeMap, BTreeSet};

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use tidegate_autopilot::{
    action::{Adjustment, Change},
    executor::{ExecutorState, PlanRecord},
    intent::{IntentEvent, Transition},
    planner::Decision,
    policy::{Policy, RollbackRules},
    rollout::{
        Canary, Rollout,
        shadow::{ID_PREFIX, ShadowEvent, ShadowPlan},
    },
    state::{ClusterState, OwnerName},
};

use super::invariant::Invariant;

/// Draws a shadow for two in five seeds and a canary for two in five, from a generator of its own
/// so that a seed keeps its faults.
pub(super) fn draw(seed: u64, policy: &Policy, owners: &[OwnerName]) -> Rollout {
    let mut rng = ChaCha8Rng::seed_from_u64(seed ^ 0xca7);
    let mut other = |name: &str| {
        let mut other = Policy { name: name.to_owned(), ..policy.clone() };
        other.lend.buffer_gpus = rng.random_range(other.lend.reclaim_buffer_gpus..=32);
        other.lend.promise_quantile = if rng.random_bool(0.5) { 0.99 } else { 0.999 };
        other.resize.gain_ratio = rng.random_range(1.0..3.0);
        (rng.random_bool(0.4), other)
    };
    let ((has_shadow, shadow), (has_canary, policy)) = (other("shadow"), other("canary"));
    let mut theirs: BTreeSet<OwnerName> = owners.iter().filter(|_| rng.random_bool(0.5)).cloned().collect();
    theirs.extend(owners.last().cloned().filter(|_| theirs.is_empty()));
    let rollback = RollbackRules { decisions: 3, ..RollbackRules::default() };
    Rollout {
        shadow: has_shadow.then_some(shadow),
        canary: has_canary.then_some(Canary { policy, owners: theirs, rollback }),
    }
}

/// What the journal holds of shadows and canaries.
#[derive(Default)]
pub(super) struct RolloutCheck {
    shadows: BTreeMap<String, Policy>,
    /// The acting plan recorded last.
    beside: Option<PlanRecord>,
    /// Replayed shadow plans.
    pub(super) shadow_plans: u64,
    /// Canaries that their record ended.
    pub(super) ended: u64,
}

impl RolloutCheck {
    /// Checks an acting plan; returns what is wrong with it.
    pub(super) fn plan(&mut self, planned: &PlanRecord) -> Vec<(Invariant, String)> {
        let strays = planned.plan.decisions.iter().filter(|decision| strays(decision, planned));
        let wrong = strays.map(|decision| {
            let what = format!("{} was decided by {:?}", decision.action.id, decision.canary);
            (Invariant::Canary, what)
        });
        let wrong = wrong.collect();
        self.beside = Some(planned.clone());
        wrong
    }

    /// Checks a shadow event; returns what is wrong with it.
    pub(super) fn shadow(&mut self, event: &ShadowEvent) -> Vec<(Invariant, String)> {
        match event {
            ShadowEvent::Policy { hash, policy } => {
                drop(self.shadows.insert(hash.clone(), (**policy).clone()))
            }
            ShadowEvent::Planned(planned) => {
                self.shadow_plans += 1;
                if !self.comes_out_again(planned) {
                    let what = format!("shadow plan {} comes out otherwise", planned.plan);
                    return vec![(Invariant::Rederived, what)];
                }
            }
            ShadowEvent::Decided(decided) if decided.reason.is_empty() => {
                return vec![(Invariant::Explained, format!("nobody says why {} was decided", decided.id))];
            }
            ShadowEvent::Decided(_) => {}
        }
        Vec::new()
    }

    fn comes_out_again(&self, planned: &ShadowPlan) -> bool {
        let beside = self.beside.as_ref().filter(|beside| beside.plan.id == planned.acting_plan);
        let Some((beside, policy)) = beside.zip(self.shadows.get(&planned.policy_hash)) else { return false };
        let (plan, report) = planned.replay(policy, beside);
        planned.matches(&plan, &report)
    }
}

/// Checks that a shadow takes no step and an ended canary begins none; `known` includes the step.
pub(super) fn wrong_step(event: &IntentEvent, known: &ExecutorState) -> Option<(Invariant, String)> {
    let id = &event.action;
    if id.starts_with(ID_PREFIX) {
        return Some((Invariant::Shadow, format!("{id} is {}", event.transition.name())));
    }
    let decision = &known.intents.get(id)?.decision;
    let canary = decision.canary.as_ref().filter(|_| event.transition == Transition::Applying)?;
    let acts = known.canaries.acting().any(|(_, stands)| stands.policy == *canary);
    let gives_back = matches!(decision.action.change, Change::Reclaim { .. } | Change::ReturnNode { .. })
        || known.intents.frees_a_loan(&decision.action);
    (!acts && !gives_back).then(|| (Invariant::Canary, format!("{id} was begun when {canary} had ended")))
}

/// Whether a decision was made by the wrong policy: canary or main.
fn strays(decision: &Decision, planned: &PlanRecord) -> bool {
    let Some(canary) = &planned.canary else { return decision.canary.is_some() };
    // A follow-up belongs to the policy of the first decision.
    if !decision.action.after.is_empty() {
        return false;
    }
    let theirs = is_of(&decision.action.change, &planned.state, &canary.owners);
    theirs.is_some_and(|theirs| decision.canary.is_some() != theirs)
}

/// Whether a change concerns these owners; `None` for a job on a drained node, where both policies
/// may decide.
fn is_of(change: &Change, state: &ClusterState, owners: &BTreeSet<OwnerName>) -> Option<bool> {
    let lender = |loan: &String| state.loans.get(loan).is_some_and(|loan| owners.contains(&loan.from));
    let theirs = match change {
        Change::Lend { from, .. } => owners.contains(from),
        Change::Reclaim { loan, .. } => lender(loan),
        Change::AdjustReservation(
            Adjustment::Quota { owner, .. } | Adjustment::Reservation { owner, .. },
        ) => owners.contains(owner),
        Change::AdjustReservation(Adjustment::Commitment { .. })
        | Change::DrainNode { .. }
        | Change::ReturnNode { .. } => false,
        Change::ResizeJob { job, .. } | Change::Preempt { job, .. } => {
            let job = state.jobs.get(job)?;
            let drained = |name| state.nodes.get(name).is_some_and(|node| node.drain.is_some());
            if job.placement.keys().any(drained) {
                return None;
            }
            // A job leaving a reclaimed loan leaves it for the lender.
            let on = |node| state.loans.values().find(|loan| loan.reclaiming_nodes.contains(node));
            match job.placement.keys().find_map(on) {
                Some(loan) => owners.contains(&loan.from),
                None => owners.contains(&job.owner),
            }
        }
    };
    Some(theirs)
}
