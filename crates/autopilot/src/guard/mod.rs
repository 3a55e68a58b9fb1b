//! The guard: decides whether an action may begin now.
//!
//! It is a pure list of checks, run again immediately before each action. Every refusal names its
//! rule. The tests of a rule stand beside it, and `tests/requirements.rs` maps the safety
//! requirements of docs/control.md to tests.
//!
//! Restoring actions (a reclaim, what a reclaim frees, the return of a node that we drained) pass
//! rules that only limit further change: freezes, the breaker, rests, demotions, stale sources.
//! They do not pass rules that protect somebody: do-not-disrupt, job floors, the kill switch,
//! budgets, and what a person rejected.

mod authority;
mod evidence;
mod floors;
mod footprint;
mod history;
mod promise;
mod rate;
mod selection;
mod stability;

use serde::{Deserialize, Serialize};

pub use floors::{pool_floor, pool_gpus};
pub use footprint::{footprint, gpus_touched};
pub use history::{ActionStatus, Approval, History, KillSwitch, PastAction, Rejection, counts_as, subject};

use crate::action::{Action, Kind};
use crate::policy::{Footprint, Policy};
use crate::state::ClusterState;

/// A rule of the guard.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Rule {
    /// The kill switch is off or cannot be read.
    Switch,
    /// The action's id was already carried out.
    Duplicate,
    /// A person rejected the same kind of action on the same object within a day.
    Rejected,
    /// The action's deadline has passed.
    Expired,
    /// The action selects nothing, too much, or by pattern.
    Selection,
    /// The mode does not allow it.
    Mode,
    /// It spends money or may be irreversible.
    Irreversible,
    /// The job's owner has not opted in.
    OptIn,
    /// The job or node is marked, or the job may never be stopped.
    Protected,
    /// Somebody else changed the object last.
    Foreign,
    /// A calendar freeze applies.
    Calendar,
    /// The observation or a source is too old or missing.
    Freshness,
    /// Log and target disagree.
    Disagreement,
    /// The forecast bounds it relies on do not hold.
    Forecast,
    /// A precondition does not hold.
    Precondition,
    /// An action that must come first has not begun or failed.
    Order,
    /// The object is already being changed.
    Busy,
    /// The budget of the kind is used up.
    Budget,
    /// Too many actions of the kind are in flight.
    Concurrency,
    /// Too much was touched or failed recently.
    Breaker,
    /// Another failure domain is already out.
    FailureDomain,
    /// The owner has lost enough work today.
    OwnerLoss,
    /// The object changed recently.
    Dwell,
    /// The object's last change failed.
    Cooldown,
    /// The object would reverse too often.
    Oscillation,
    /// Something would fall below its floor.
    Floor,
    /// The promise to an owner that it takes from does not hold.
    Promise,
    /// A dry run of the whole batch on a copy of the state contradicts it. No check of this guard:
    /// [`crate::dry_run`] looks at all actions of a step together.
    DryRun,
}

/// A refusal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusal {
    /// The rule that refuses.
    pub rule: Rule,
    /// The reason, with numbers.
    pub why: String,
}

/// Answer of the guard.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "verdict", rename_all = "snake_case")]
pub enum Verdict {
    /// May begin now.
    Allowed,
    /// May not.
    Refused(Refusal),
}

/// Input of the checks.
struct Context<'a> {
    policy: &'a Policy,
    state: &'a ClusterState,
    history: &'a History,
    action: &'a Action,
    now_us: i64,
    kind: Kind,
    footprint: Footprint,
    gpus: u32,
    /// It restores capacity the autopilot took.
    restores: bool,
}

type Check = fn(&Context<'_>) -> Option<Refusal>;

/// In order of evaluation; checks that need no knowledge of the cluster come first.
const CHECKS: [Check; 25] = [
    authority::switch,
    history::duplicate,
    authority::rejected,
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
    promise::promise,
    stability::rests,
    floors::floors,
];

fn refuse(rule: Rule, why: impl Into<String>) -> Option<Refusal> {
    Some(Refusal { rule, why: why.into() })
}

/// Whether `action` may begin at `now_us` given `state`. A refusal names the first rule that
/// refuses.
pub fn verdict(
    policy: &Policy,
    state: &ClusterState,
    history: &History,
    action: &Action,
    now_us: i64,
) -> Verdict {
    let ctx = Context::new(policy, state, history, action, now_us);
    CHECKS.iter().find_map(|check| check(&ctx)).map_or(Verdict::Allowed, Verdict::Refused)
}

/// All refusals, for people who ask why.
pub fn refusals(
    policy: &Policy,
    state: &ClusterState,
    history: &History,
    action: &Action,
    now_us: i64,
) -> Vec<Refusal> {
    let ctx = Context::new(policy, state, history, action, now_us);
    CHECKS.iter().filter_map(|check| check(&ctx)).collect()
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
