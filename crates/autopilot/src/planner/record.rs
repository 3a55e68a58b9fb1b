//! Record of a plan with all its inputs, from which it can be made again.

use serde::{Deserialize, Serialize};

use super::plan::{Plan, Report};
use super::plan_with_canary;
use crate::action::ActionId;
use crate::forecast::RecordedForecast;
use crate::policy::{Canary, Policy};
use crate::state::ClusterState;

/// A plan with all its inputs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PlanRecord {
    /// The plan.
    pub plan: Plan,
    /// Its report, including the answers of the forecast.
    pub report: Report,
    /// The policy.
    pub policy: Policy,
    /// The canary that decided for its owners.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub canary: Option<Box<Canary>>,
    /// The state as observed.
    pub state: ClusterState,
    /// Decisions of the previous plan still standing when this one was made; the planner saw only
    /// these.
    pub kept: Vec<ActionId>,
}

impl PlanRecord {
    /// Makes the plan again from the record. `parent` is the whole previous plan.
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

/// The plan with only these decisions.
pub(crate) fn with_decisions(plan: &Plan, kept: &[ActionId]) -> Plan {
    let mut plan = plan.clone();
    plan.decisions.retain(|decision| kept.contains(&decision.action.id));
    plan
}
