//! The planner: a pure function from policy, state, forecast, parent plan, time and seed to a plan
//! and its report.
//!
//! Each module states the formula it uses; docs/control.md, section 4, lists them with their
//! sources. Obligations come first: capacity is reclaimed before any is given away, and later
//! stages leave alone the jobs and GPUs an earlier decision has claimed.

mod advice;
mod builder;
mod cover;
mod defragment;
mod drain;
mod lend;
mod loan_growth;
mod notice;
mod overdue;
mod owner_filter;
mod peak_reservation;
mod plan;
mod preempt;
mod promises;
mod quota;
mod reclaim;
mod record;
mod reserved;
mod resize;
mod room;
mod spare;
mod surplus;
mod victims;
mod waiting;

pub use cover::{Choice, Group, cheapest};
pub use plan::{Advice, Advised, Alternative, Considered, Decision, Plan, Predicted, Report};
pub use record::PlanRecord;
pub(crate) use record::with_decisions;

use crate::action::Kind;
use crate::fingerprint::fingerprint;
use crate::forecast::DemandForecast;
use crate::policy::{Canary, Policy};
use crate::state::ClusterState;
use builder::PlanBuilder;
use owner_filter::OwnerFilter;

/// Planning stages in order: obligations first.
const STAGES: [fn(&mut PlanBuilder<'_>); 12] = [
    overdue::plan,
    reclaim::plan,
    drain::plan_returns,
    drain::plan_moves,
    drain::plan_drains,
    lend::plan,
    surplus::plan,
    preempt::plan,
    defragment::plan,
    resize::plan,
    quota::plan,
    peak_reservation::plan,
];

/// Makes a plan. The same arguments give the same bytes.
///
/// A decision that the `parent` plan already holds keeps its id.
pub fn plan(
    policy: &Policy,
    state: &ClusterState,
    forecast: &dyn DemandForecast,
    parent: Option<&Plan>,
    now_us: i64,
    seed: u64,
) -> (Plan, Report) {
    plan_with_canary(policy, None, state, forecast, parent, now_us, seed)
}

/// Makes a plan in which a canary decides for its owners and `policy` for the rest.
///
/// They take turns at each stage and leave alone what the other has claimed. `policy` goes first,
/// so it decides as it would without a canary; the canary gets what is left.
pub fn plan_with_canary(
    policy: &Policy,
    canary: Option<&Canary>,
    state: &ClusterState,
    forecast: &dyn DemandForecast,
    parent: Option<&Plan>,
    now_us: i64,
    seed: u64,
) -> (Plan, Report) {
    let policy_hash = format!("{:016x}", fingerprint(policy));
    let canary_hash = canary.map(|canary| format!("{:016x}", fingerprint(canary)));
    let state_hash = format!("{:016x}", fingerprint(state));
    let parent_id = parent.map(|parent| parent.id.clone());
    let made_from = (&policy_hash, &state_hash, &parent_id, now_us, seed);
    let id = match &canary_hash {
        None => fingerprint(&made_from),
        Some(canary_hash) => fingerprint(&(made_from, canary_hash)),
    };
    let id = format!("{id:016x}");
    let mut builder = PlanBuilder::new(policy, state, forecast, parent, &id, now_us, seed);
    for stage in STAGES {
        builder.switch_policy(
            policy,
            canary.map_or(OwnerFilter::All, |canary| OwnerFilter::Except(&canary.owners)),
            None,
        );
        stage(&mut builder);
        if let Some(canary) = canary {
            builder.switch_policy(
                &canary.policy,
                OwnerFilter::Only(&canary.owners),
                Some(&canary.policy.name),
            );
            stage(&mut builder);
        }
    }
    builder.switch_policy(policy, OwnerFilter::All, None);
    for kind in Kind::ALL {
        builder.note_if_idle(kind);
    }
    let advice = advice::advise(&builder);
    let (decisions, report) = builder.finish(&id, advice);
    let plan = Plan {
        id,
        cluster: state.cluster.clone(),
        made_us: now_us,
        observed_us: state.at_us,
        policy: policy.name.clone(),
        policy_hash,
        canary_hash,
        state_hash,
        parent: parent_id,
        seed,
        decisions,
    };
    (plan, report)
}

#[cfg(test)]
mod tests;
