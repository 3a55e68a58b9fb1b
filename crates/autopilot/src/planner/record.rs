//! A plan on record: with everything it was made from, it can be made again.

use serde::{Deserialize, Serialize};

use super::plan::{Plan, Report};
use super::plan_with_canary;
use crate::action::ActionId;
use crate::forecast::RecordedForecast;
use crate::policy::{Canary, Policy};
use crate::state::ClusterState;

/// A plan with everything it was made from.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PlanRecord {
    /// The plan.
    pub plan: Plan,
    /// Why it is so; it holds what the forecast answered.
    pub report: Report,
    /// The policy.
    pub policy: Policy,
    /// The candidate that decided for its owners.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub canary: Option<Box<Canary>>,
    /// The state as it was observed.
    pub state: ClusterState,
    /// Decisions of the plan before that had not come to nothing: those are the ones it was told
    /// of.
    pub kept: Vec<ActionId>,
}

impl PlanRecord {
    /// Makes the plan again from what is on record. `parent`: the plan before, whole.
    pub fn replay(&self, parent: Option<&Plan>) -> (Plan, Report) {
        let parent = parent.map(|parent| with_decisions(parent, &self.kept));
        let forecast = RecordedForecast { answers: self.report.answers.clone() };
        plan_with_canary(
            &self.policy,
            self.canary.as_deref(),
            &self.state,
            &forecast,
            parent.as_ref(),
            self.plan.made_us,
            self.plan.seed,
        )
    }
}

/// A plan with these decisions of it alone.
pub(crate) fn with_decisions(plan: &Plan, kept: &[ActionId]) -> Plan {
    let mut plan = plan.clone();
    plan.decisions.retain(|decision| kept.contains(&decision.action.id));
    plan
}
