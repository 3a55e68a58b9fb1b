//! What the service reports: its status for monitoring and for people who steer, and lines for
//! people.

use tidegate_autopilot::action::ActionId;
use tidegate_autopilot::executor::{Executor, Journal, OnlineForecast, Role, StepReport, Switched};
use tidegate_autopilot::intent::{Intent, Stage};
use tidegate_autopilot::policy::Mode;
use tidegate_autopilot::slo::ObjectiveStatus;
use tidegate_events::Micros;

/// Status after one step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServiceStatus {
    /// Cluster.
    pub cluster: String,
    /// Time of the step, seconds since 1970.
    pub stepped_s: i64,
    /// Whether this process holds the lease.
    pub leads: bool,
    /// Who holds it instead, as far as is known.
    pub leader: Option<String>,
    /// Status of each objective of the policy's `[slo]`.
    pub objectives: Vec<ObjectiveStatus>,
    /// The switch as the journal knows it.
    pub switched: Option<Switched>,
    /// Actions that have not begun, by id.
    pub waiting: Vec<WaitingAction>,
}

impl ServiceStatus {
    /// Status after a step of an executor on a cluster.
    pub fn after<J: Journal, F: OnlineForecast>(
        cluster: &str,
        executor: &Executor<J, F>,
        step: &StepReport,
        now_us: i64,
    ) -> Self {
        let state = executor.state();
        Self {
            cluster: cluster.to_owned(),
            stepped_s: Micros(now_us).floor_secs(),
            leads: matches!(step.role, Role::Leading { .. }),
            leader: match &step.role {
                Role::Standby(held) => Some(held.holder.clone()),
                Role::Leading { .. } | Role::Fenced => None,
            },
            objectives: state.slo.status(&executor.policy().slo, now_us),
            switched: state.switched.clone(),
            waiting: state.intents.open().filter_map(WaitingAction::of).collect(),
        }
    }
}

/// An action that has not begun, for people who decide about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WaitingAction {
    /// The action.
    pub action: ActionId,
    /// The plan that decided it.
    pub plan: String,
    /// Kind of decision, as the policy spells it.
    pub kind: &'static str,
    /// What it changes.
    pub object: String,
    /// Mode of the decision.
    pub mode: &'static str,
    /// `proposed`, `approved` or `leased`.
    pub stage: &'static str,
    /// Whether it begins only once a person approves it.
    pub needs_approval: bool,
    /// Who approved it.
    pub approved_by: Option<String>,
    /// Until when it may begin, microseconds since 1970.
    pub expires_us: i64,
    /// The planner's reason.
    pub why: String,
}

impl WaitingAction {
    /// The action of an intent, unless it has begun or is over.
    fn of(intent: &Intent) -> Option<Self> {
        let stage = match intent.stage {
            Stage::Proposed => "proposed",
            Stage::Approved => "approved",
            Stage::Leased { .. } => "leased",
            _ => return None,
        };
        let decision = &intent.decision;
        Some(Self {
            action: decision.action.id.clone(),
            plan: intent.plan.clone(),
            kind: decision.kind.name(),
            object: decision.action.change.object().to_string(),
            mode: decision.mode.name(),
            stage,
            needs_approval: decision.mode == Mode::Approve && intent.stage == Stage::Proposed,
            approved_by: intent.approved_by.clone(),
            expires_us: decision.action.expires_us,
            why: decision.reason.clone(),
        })
    }
}

/// Turns step reports into lines for people.
#[derive(Debug, Default)]
pub(super) struct StepLines {
    role: Option<Role>,
}

impl StepLines {
    /// Whether the last step was made as the holder of the lease.
    pub(super) fn leads(&self) -> bool {
        matches!(self.role, Some(Role::Leading { .. }))
    }

    /// Lines for one step: a change of role, the plan, and the transitions of actions.
    pub(super) fn lines(&mut self, step: &StepReport) -> Vec<String> {
        let mut lines = Vec::new();
        if self.role.as_ref() != Some(&step.role) {
            match &step.role {
                Role::Leading { generation } => {
                    lines.push(format!("holds the lease, generation {generation}"));
                }
                // The holder renews its lease all the time: that is no news.
                Role::Standby(_) if matches!(self.role, Some(Role::Standby(_))) => {}
                Role::Standby(held) => lines
                    .push(format!("waits: {} holds the lease, generation {}", held.holder, held.generation)),
                Role::Fenced => lines.push("another took the lease: it begins nothing".to_owned()),
            }
            self.role = Some(step.role.clone());
        }
        if let Some((plan, decisions)) = &step.planned {
            lines.push(format!("plan {plan}: {decisions} decisions"));
        }
        lines.extend(step.steps.iter().map(|(action, transition)| format!("  {action} {transition}")));
        lines
    }
}
