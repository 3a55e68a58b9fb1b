//! Spans of the autopilot's steps and actions. They are exported where the program exports its
//! spans, and cost nothing elsewhere.

use std::fmt::Display;

use tidegate_autopilot::action::Action;
use tidegate_autopilot::executor::{Role, StepReport};
use tidegate_autopilot::state::ClusterState;
use tidegate_autopilot::target::{Capabilities, Effect, Notice, Receipt, Target, TargetError};
use tracing::field::Empty;

/// Runs a step of an executor within a span: `plan` if it recorded a plan, else `step`. What it
/// does to the cluster is in spans below it. A step that changed nothing leaves none.
///
/// # Errors
/// As the step.
pub fn step<E: Display>(
    cluster: &str,
    step: impl FnOnce() -> Result<StepReport, E>,
) -> Result<StepReport, E> {
    let span = tracing::info_span!(
        target: "otlp",
        "step",
        otel.name = Empty,
        otlp.skip = Empty,
        tidegate.cluster = cluster,
        tidegate.leads = Empty,
        tidegate.plan = Empty,
        tidegate.decisions = Empty,
        tidegate.transitions = Empty,
        error.type = Empty,
    );
    let done = span.in_scope(step);
    let Ok(report) = &done else {
        span.record("error.type", "journal");
        return done;
    };
    span.record("tidegate.leads", matches!(report.role, Role::Leading { .. }));
    if let Some((plan, decisions)) = &report.planned {
        span.record("otel.name", "plan");
        span.record("tidegate.plan", plan.as_str());
        span.record("tidegate.decisions", *decisions);
    }
    if !report.steps.is_empty() && !span.is_disabled() {
        let steps = report.steps.iter().map(|(action, transition)| format!("{action} {transition}"));
        span.record("tidegate.transitions", steps.collect::<Vec<_>>().join(", ").as_str());
    }
    match &report.observe_error {
        Some(error) => {
            span.record("error.type", kind_of(error));
        }
        None if report.planned.is_none() && report.steps.is_empty() => {
            span.record("otlp.skip", true);
        }
        None => {}
    }
    done
}

/// A target whose notices and changes are spans.
#[derive(Debug)]
pub struct Traced<'a, T>(pub &'a mut T);

impl<T: Target> Target for Traced<'_, T> {
    fn capabilities(&self) -> Capabilities {
        self.0.capabilities()
    }

    fn observe(&mut self) -> Result<ClusterState, TargetError> {
        self.0.observe()
    }

    fn notify(&mut self, action: &Action) -> Result<Notice, TargetError> {
        asking("notice", action, || self.0.notify(action))
    }

    fn apply(&mut self, action: &Action) -> Result<Receipt, TargetError> {
        asking("act", action, || self.0.apply(action))
    }

    fn read_back(&mut self, action: &Action) -> Result<Effect, TargetError> {
        self.0.read_back(action)
    }
}

/// Asks a target something about an action within a span of that name.
fn asking<T>(
    name: &'static str,
    action: &Action,
    ask: impl FnOnce() -> Result<T, TargetError>,
) -> Result<T, TargetError> {
    let span = tracing::info_span!(
        target: "otlp",
        "action",
        otel.name = name,
        otel.kind = "client",
        tidegate.action = action.id.as_str(),
        tidegate.kind = action.change.kind().name(),
        tidegate.object = Empty,
        tidegate.generation = action.generation,
        tidegate.outcome = Empty,
        error.type = Empty,
    );
    if !span.is_disabled() {
        span.record("tidegate.object", action.change.object().to_string().as_str());
    }
    let asked = span.in_scope(ask);
    match &asked {
        Ok(_) => span.record("tidegate.outcome", "ok"),
        Err(error) => span.record("tidegate.outcome", kind_of(error)).record("error.type", kind_of(error)),
    };
    asked
}

fn kind_of(error: &TargetError) -> &'static str {
    match error {
        TargetError::Refused { .. } => "refused",
        TargetError::StaleGeneration { .. } => "stale_generation",
        TargetError::Precondition(_) => "precondition",
        TargetError::Unsupported { .. } => "unsupported",
        TargetError::Unreachable { .. } => "unreachable",
        TargetError::Unknown { .. } => "unknown",
    }
}
