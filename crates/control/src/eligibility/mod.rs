//! What each kind of action has to do with each job, node and owner of a plan, and what would
//! change that.
//!
//! It is read from the plan's record alone: from the state that it was made from, its policy, its
//! decisions and what it considered. So it costs nothing until somebody asks. Where the planner
//! gave a reason, that reason stands; where it passed over an object without a word, the rule that
//! made it do so is named. What would change it is spelled as this program's deployment file,
//! policy and job comments have it.

mod job;
mod node;
mod owner;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

pub(crate) use owner::map_account;
use serde::Serialize;
use tidegate_autopilot::action::Kind;
use tidegate_autopilot::executor::PlanRecord;
use tidegate_autopilot::planner::{Considered, Decision};
use tidegate_autopilot::policy::{Mode, Policy};
use tidegate_autopilot::state::{ClusterState, NodeName, Object, OwnerName, PoolName};

/// Where an object stands with a kind of action.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Standing {
    /// The plan decides an action on it.
    Decided,
    /// It may be acted on, and nothing calls for it or something else is better.
    Considered,
    /// A setting, its owner or missing data keeps it out.
    NotConsidered,
}

impl Standing {
    /// The words for it in a text.
    pub fn name(self) -> &'static str {
        match self {
            Self::Decided => "decided",
            Self::Considered => "considered",
            Self::NotConsidered => "not considered",
        }
    }
}

/// Where one object stands with one kind of action, and why.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Eligibility {
    /// The object.
    pub object: Object,
    /// Kind of action; `None`: no single one.
    pub kind: Option<Kind>,
    /// For an owner: the pool of its share.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pool: Option<PoolName>,
    /// Whether it was considered.
    pub standing: Standing,
    /// Why.
    pub reason: String,
    /// The setting, comment or data that would change it. `None`: nothing needs to, or only time
    /// will.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub change: Option<String>,
}

/// Where every job, node and owner of a plan stands with each kind of action that could concern
/// it; the first entry of an object is the one that tells most. Empty if the record is without the
/// state it was made from.
pub fn eligibility(planned: &PlanRecord) -> Vec<Eligibility> {
    let view = View::of(planned);
    let mut found = Vec::new();
    for (id, job) in &planned.state.jobs {
        found.extend(job::entries(&view, id, job));
    }
    for (name, node) in &planned.state.nodes {
        found.extend(node::entries(&view, name, node));
    }
    let state = &planned.state;
    let unmapped = state.jobs.values().map(|job| &job.owner).filter(|name| !name.is_empty());
    let owners: BTreeSet<&OwnerName> = state.owners.keys().chain(unmapped).collect();
    for name in owners {
        found.extend(owner::entries(&view, name));
    }
    for entry in &mut found {
        view.add_decision(entry);
    }
    // A decision tells more than why something else was not done; otherwise the order stands.
    found.sort_by_key(|entry| entry.standing != Standing::Decided);
    found.sort_by(|a, b| (rank(&a.object), &a.object).cmp(&(rank(&b.object), &b.object)));
    found
}

/// Jobs, nodes, owners.
fn rank(object: &Object) -> u8 {
    match object {
        Object::Job(_) => 0,
        Object::Node(_) => 1,
        _ => 2,
    }
}

/// A plan's record, indexed.
struct View<'a> {
    policy: &'a Policy,
    state: &'a ClusterState,
    now_us: i64,
    considered: BTreeMap<(Kind, &'a Object), Vec<&'a Considered>>,
    decided: BTreeMap<(Kind, Object), Vec<&'a Decision>>,
    jobs_on: BTreeMap<&'a NodeName, u32>,
}

impl<'a> View<'a> {
    fn of(planned: &'a PlanRecord) -> Self {
        let mut considered: BTreeMap<(Kind, &Object), Vec<&Considered>> = BTreeMap::new();
        for entry in &planned.report.considered {
            if let Some(object) = &entry.object {
                considered.entry((entry.kind, object)).or_default().push(entry);
            }
        }
        let mut decided: BTreeMap<(Kind, Object), Vec<&Decision>> = BTreeMap::new();
        for decision in &planned.plan.decisions {
            decided.entry((decision.kind, decision.action.change.object())).or_default().push(decision);
        }
        let mut jobs_on: BTreeMap<&NodeName, u32> = BTreeMap::new();
        for node in planned.state.jobs.values().flat_map(|job| job.placement.keys()) {
            *jobs_on.entry(node).or_default() += 1;
        }
        Self {
            policy: &planned.policy,
            state: &planned.state,
            now_us: planned.plan.made_us,
            considered,
            decided,
            jobs_on,
        }
    }

    /// What the planner said of the object and kind, if it decided nothing on it.
    fn said(&self, kind: Kind, object: &Object) -> Option<&'a str> {
        let said = self.considered.get(&(kind, object))?;
        said.iter().find(|it| it.action.is_none()).map(|it| it.reason.as_str())
    }

    /// Turns an entry into the decision that the plan made on it, if it made one.
    fn add_decision(&self, entry: &mut Eligibility) {
        let Some(kind) = entry.kind else { return };
        let of_pool =
            |it: &&&Decision| entry.pool.as_ref().is_none_or(|pool| it.footprint.pools.contains(pool));
        let decided = self.decided.get(&(kind, entry.object.clone()));
        let Some(decision) = decided.and_then(|all| all.iter().find(of_pool)) else { return };
        let own = self.policy.modes.get(&kind).copied().unwrap_or(Mode::Observe);
        let held = self.policy.at_most.get(&kind).filter(|most| **most < own);
        entry.standing = Standing::Decided;
        entry.reason = decision.reason.clone();
        entry.change = match decision.mode {
            Mode::Act => None,
            Mode::Approve => {
                Some(format!("it waits for a person: tidegate autopilot approve {}", decision.action.id))
            }
            mode => Some(format!(
                "the mode of {kind} is {}: nothing is done; set {kind} = \"approve\" or \"act\" in [modes] of the policy",
                mode.name()
            )),
        };
        if let Some(most) = held {
            entry.change = Some(format!(
                "its record holds {kind} at {} for now: tidegate autopilot record shows it",
                most.name()
            ));
        }
    }
}

/// An entry of an object that is kept out.
fn not_considered(
    object: &Object,
    kind: impl Into<Option<Kind>>,
    reason: impl Into<String>,
    change: Option<String>,
) -> Eligibility {
    entry(object, kind.into(), Standing::NotConsidered, reason, change)
}

/// An entry of an object that may be acted on.
fn considered(object: &Object, kind: Kind, reason: impl Into<String>) -> Eligibility {
    entry(object, Some(kind), Standing::Considered, reason, None)
}

fn entry(
    object: &Object,
    kind: Option<Kind>,
    standing: Standing,
    reason: impl Into<String>,
    change: Option<String>,
) -> Eligibility {
    Eligibility { object: object.clone(), kind, pool: None, standing, reason: reason.into(), change }
}
