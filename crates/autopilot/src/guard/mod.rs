//! The guard: whether an action may be carried out now. Pure, and asked again immediately before
//! acting. Every refusal names its rule; the tests of a rule stand beside it, and
//! `tests/requirements.rs` says which safety requirement each test is for.
//!
//! What gives back (a reclaim, what a reclaim frees, the return of a node that we drained) is let
//! through where a rule only means to keep things from being changed further: freezes, the breaker,
//! rests, demotions, stale sources. It is never let through where a rule protects somebody:
//! do-not-disrupt, floors of jobs, the kill switch, budgets.

mod authority;
mod evidence;
mod floors;
mod footprint;
mod history;
mod rate;
mod selection;
mod stability;

use serde::{Deserialize, Serialize};

pub use floors::{pool_floor, pool_gpus};
pub use footprint::{footprint, gpus_touched};
pub use history::{ActionStatus, Approval, History, KillSwitch, PastAction, counts_as, subject};

use crate::action::{Action, Kind};
use crate::policy::{Footprint, Policy};
use crate::state::ClusterState;

/// A rule of the guard.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Rule {
    /// The kill switch is off, or cannot be read.
    Switch,
    /// The action's id was carried out already.
    Duplicate,
    /// The action's time is over.
    Expired,
    /// The action selects nothing, too much, or by pattern.
    Selection,
    /// The mode does not let it be done.
    Mode,
    /// Money is spent or something may not come back.
    Irreversible,
    /// A job whose owner has not opted in.
    OptIn,
    /// A job or node that is marked, or a job that is never stopped.
    Protected,
    /// Somebody else wrote it last.
    Foreign,
    /// The calendar has a freeze.
    Calendar,
    /// The observation or a source is too old, or missing.
    Freshness,
    /// Log and cluster tell different things.
    Disagreement,
    /// Published bounds of the demand it is about do not hold.
    Forecast,
    /// What must be true is not.
    Precondition,
    /// An action that must come before has not, or failed.
    Order,
    /// The object is being changed.
    Busy,
    /// The budget of the kind is used up.
    Budget,
    /// Too many of the kind are under way.
    Concurrency,
    /// Too much was touched or failed lately.
    Breaker,
    /// Another failure domain is out already.
    FailureDomain,
    /// The owner has lost enough to us today.
    OwnerLoss,
    /// The object was changed a short time ago.
    Dwell,
    /// The object's last change failed.
    Cooldown,
    /// The object goes to and fro.
    Oscillation,
    /// Something would be below its floor.
    Floor,
}

/// A rule that says no, and why.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusal {
    /// The rule.
    pub rule: Rule,
    /// Why, with the numbers.
    pub why: String,
}

/// What the guard says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "verdict", rename_all = "snake_case")]
pub enum Verdict {
    /// It may be done now.
    Allowed,
    /// It may not.
    Refused(Refusal),
}

/// What rules look at.
struct Context<'a> {
    policy: &'a Policy,
    state: &'a ClusterState,
    history: &'a History,
    action: &'a Action,
    now_us: i64,
    kind: Kind,
    footprint: Footprint,
    gpus: u32,
    /// It gives back what the autopilot took.
    restores: bool,
}

type Check = fn(&Context<'_>) -> Option<Refusal>;

/// In the order in which they are asked: first what needs no knowledge of the cluster.
const CHECKS: [Check; 23] = [
    authority::switch,
    history::duplicate,
    evidence::expired,
    selection::selection,
    evidence::freshness,
    authority::mode,
    authority::irreversible,
    authority::calendar,
    authority::protected,
    authority::opt_in,
    authority::foreign,
    evidence::disagreement,
    evidence::forecast,
    evidence::precondition,
    evidence::order,
    rate::busy,
    rate::budget,
    rate::concurrency,
    rate::breaker,
    rate::failure_domain,
    rate::owner_loss,
    stability::rests,
    floors::floors,
];

fn refuse(rule: Rule, why: impl Into<String>) -> Option<Refusal> {
    Some(Refusal { rule, why: why.into() })
}

/// Whether `action` may be carried out at `now_us` on what `state` tells: the first rule that says
/// no.
pub fn verdict(
    policy: &Policy,
    state: &ClusterState,
    history: &History,
    action: &Action,
    now_us: i64,
) -> Verdict {
    let case = Context::new(policy, state, history, action, now_us);
    CHECKS.iter().find_map(|check| check(&case)).map_or(Verdict::Allowed, Verdict::Refused)
}

/// All rules that say no, for people who ask why.
pub fn refusals(
    policy: &Policy,
    state: &ClusterState,
    history: &History,
    action: &Action,
    now_us: i64,
) -> Vec<Refusal> {
    let case = Context::new(policy, state, history, action, now_us);
    CHECKS.iter().filter_map(|check| check(&case)).collect()
}

impl<'a> Context<'a> {
    fn new(
        policy: &'a Policy,
        state: &'a ClusterState,
        history: &'a History,
        action: &'a Action,
        now_us: i64,
    ) -> Self {
        let kind = action.change.kind();
        let frees = |id: &String| history.find(id).is_some_and(|past| past.kind == Kind::Reclaim);
        let restores = matches!(kind, Kind::Reclaim | Kind::ReturnNode)
            || action.after.iter().any(frees)
            || history::leaves_a_reclaim(&action.change, state);
        let (footprint, gpus) = (footprint(&action.change, state), gpus_touched(&action.change, state));
        Self { policy, state, history, action, now_us, kind, footprint, gpus, restores }
    }
}

#[cfg(test)]
mod tests;
