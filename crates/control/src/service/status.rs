//! What the service reports: its status for monitoring, and lines for people.

use tidegate_autopilot::executor::{Role, StepReport};
use tidegate_autopilot::slo::ObjectiveStatus;

/// Status after one step, for monitoring.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServiceStatus {
    /// Cluster.
    pub cluster: String,
    /// Time of the step, seconds since 1970.
    pub stepped_s: i64,
    /// Whether this process holds the lease.
    pub leads: bool,
    /// ObjectiveStatus of each objective of the policy's `[slo]`.
    pub objectives: Vec<ObjectiveStatus>,
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
