//! Events of rollout candidates: shadow and canary.

use tidegate_autopilot::rollout::shadow::{ShadowDecision, ShadowEvent, ShadowPlan};
use tidegate_autopilot::rollout::{Canary, CanaryEvent};
use tidegate_events::v1::{AutopilotEvent, AutopilotEventKind as EventKind};

use super::{fill_predicted, object, rule_name};

const SHADOW: &str = "shadow";
/// `role` of a canary's decisions.
pub(super) const CANARY: &str = "canary";

pub(super) fn fill_shadow(event: &mut AutopilotEvent, shadow_event: &ShadowEvent) {
    event.role = Some(SHADOW.to_owned());
    match shadow_event {
        ShadowEvent::Policy { hash, policy } => {
            event.set_kind(EventKind::ShadowPolicy);
            event.policy = Some(policy.name.clone());
            event.policy_hash = Some(hash.clone());
        }
        ShadowEvent::Planned(planned) => fill_plan(event, planned),
        ShadowEvent::Decided(decided) => fill_decision(event, decided),
    }
}

fn fill_plan(event: &mut AutopilotEvent, planned: &ShadowPlan) {
    event.set_kind(EventKind::ShadowPlanned);
    event.plan = Some(planned.plan.clone());
    event.beside_plan = Some(planned.acting_plan.clone());
    event.policy = Some(planned.policy.clone());
    event.policy_hash = Some(planned.policy_hash.clone());
    event.decisions = Some(planned.decisions);
    let only_acting = planned.only_acting.len();
    event.why = Some(format!("{} of the acting plan too, {only_acting} only there", planned.same));
}

fn fill_decision(event: &mut AutopilotEvent, decided: &ShadowDecision) {
    event.set_kind(EventKind::ShadowDecided);
    event.action = Some(decided.id.clone());
    event.plan = Some(decided.plan.clone());
    event.policy = Some(decided.policy.clone());
    event.decision_kind = Some(decided.kind.name().to_owned());
    event.object = Some(object(&decided.object));
    event.mode = Some(decided.mode.name().to_owned());
    event.gpus = Some(decided.gpus);
    fill_predicted(event, &decided.predicted);
    event.why = Some(decided.reason.clone());
    event.same_as.clone_from(&decided.same_as);
    event.rule = decided.refusal.as_ref().and_then(|refusal| rule_name(refusal.rule));
    event.refused_why = decided.refusal.as_ref().map(|refusal| refusal.why.clone());
}

pub(super) fn fill_canary(event: &mut AutopilotEvent, canary_event: &CanaryEvent) {
    event.role = Some(CANARY.to_owned());
    match canary_event {
        CanaryEvent::Began { canary: what, by, .. } => {
            let Canary { policy, owners, .. } = &**what;
            let owners: Vec<&str> = owners.iter().map(String::as_str).collect();
            let by = by.as_ref().map_or_else(String::new, |by| format!(", started anew by {by}"));
            event.set_kind(EventKind::CanaryBegan);
            event.canary = Some(what.id());
            event.policy = Some(policy.name.clone());
            event.why = Some(format!("it acts for {}{by}", owners.join(", ")));
        }
        CanaryEvent::Ended { id, policy, why, .. } => {
            event.set_kind(EventKind::CanaryEnded);
            event.canary = Some(id.clone());
            event.policy = Some(policy.clone());
            event.why = Some(why.clone());
        }
    }
}
