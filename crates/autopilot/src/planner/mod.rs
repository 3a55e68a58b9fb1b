//! The planner: plan(policy, state, forecast, parent plan, now, seed) → (plan, report). Formulas: section 4 of the field notes
//! on control; each stands in the module that uses it.
//!
//! Obligations come first: capacity is taken back before anything is given away, and a job or a GPU that a decision speaks for
//! is left alone by the ones after it.

mod advice;
mod ahead;
mod cover;
mod drain;
mod gather;
mod growers;
mod lend;
mod loss;
mod overdue;
mod plan;
mod preempt;
mod reclaim;
mod reservation;
mod resize;
mod room;
mod spare;
mod victims;
mod work;

pub use advice::{Advice, Advised};
pub use cover::{Choice, Group, cheapest};
pub use loss::{Interruption, interruption};
pub use plan::{Alternative, Considered, Decision, Plan, Predicted, Report};

use crate::action::Kind;
use crate::fingerprint::fingerprint;
use crate::forecast::DemandForecast;
use crate::policy::Policy;
use crate::state::ClusterState;
use work::Work;

/// Makes a plan. The same arguments give the same bytes.
///
/// `parent`: the plan before; a decision it holds and this one would take again keeps its id, so that it is the same one.
pub fn plan(
    policy: &Policy,
    state: &ClusterState,
    forecast: &dyn DemandForecast,
    parent: Option<&Plan>,
    now_us: i64,
    seed: u64,
) -> (Plan, Report) {
    let policy_hash = format!("{:016x}", fingerprint(policy));
    let state_hash = format!("{:016x}", fingerprint(state));
    let parent_id = parent.map(|parent| parent.id.clone());
    let id = format!("{:016x}", fingerprint(&(&policy_hash, &state_hash, &parent_id, now_us, seed)));
    let mut work = Work::new(policy, state, forecast, parent, &id, now_us, seed);
    overdue::plan(&mut work);
    reclaim::plan(&mut work);
    drain::plan_returns(&mut work);
    drain::plan_moves(&mut work);
    drain::plan_drains(&mut work);
    preempt::plan(&mut work);
    lend::plan(&mut work);
    gather::plan(&mut work);
    resize::plan(&mut work);
    reservation::plan(&mut work);
    ahead::plan(&mut work);
    for kind in Kind::ALL {
        work.say_if_silent(kind);
    }
    let advice = advice::advise(&work);
    let (decisions, report) = work.finish(&id, advice);
    let plan = Plan {
        id,
        cluster: state.cluster.clone(),
        made_us: now_us,
        observed_us: state.at_us,
        policy: policy.name.clone(),
        policy_hash,
        state_hash,
        parent: parent_id,
        seed,
        decisions,
    };
    (plan, report)
}

#[cfg(test)]
mod tests;
