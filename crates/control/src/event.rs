//! Journal entries as events: the entry as JSON to be read back, and columns for people and SQL.

mod rollout;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use tidegate_autopilot::action::{Action, Kind};
use tidegate_autopilot::executor::{
    EntriesRefused, JournalEntry, JournalEvent, PlanRecord, PolicyAdopted, Switched,
};
use tidegate_autopilot::guard::{Refusal, Rule};
use tidegate_autopilot::intent::{IntentEvent, Transition};
use tidegate_autopilot::planner::{Decision, Predicted};
use tidegate_autopilot::promise::{PromiseEvent, Promised};
use tidegate_autopilot::scorecard::Score;
use tidegate_autopilot::slo::Alert;
use tidegate_autopilot::state::Object;
use tidegate_events::v1::{AutopilotEvent, AutopilotEventKind as EventKind, Envelope};
use tidegate_events::{Event, Micros, SchemaId};
use tidegate_log::MAX_RECORD_BYTES;

use crate::plan_archive::without_inputs;

/// Reasons for doing nothing that a plan's event lists for each kind.
const REASONS: usize = 3;
/// Bytes left free for the other fields and the key.
const MARGIN_BYTES: usize = 64 << 10;

/// Encodes an entry as event number `seq` of its generation. `body` is the entry as it is to be
/// read back, perhaps without the inputs of a plan.
///
/// # Errors
/// The entry cannot be encoded as JSON.
pub fn encode_entry(
    entry: &JournalEntry,
    body: &JournalEntry,
    cluster: &str,
    holder: &str,
    seq: u64,
) -> Result<Event, serde_json::Error> {
    let at_ms = Micros(entry.at_us).floor_millis().0;
    let mut text = serde_json::to_string(body)?;
    if let (JournalEvent::Planned(planned), true) =
        (&body.event, text.len() + MARGIN_BYTES > MAX_RECORD_BYTES)
    {
        // The state of a cluster this large does not fit a record. Without it the plan cannot be
        // made again, and `explain decision` says so.
        let event = JournalEvent::Planned(Box::new(without_inputs(planned)));
        text = serde_json::to_string(&JournalEntry { event, ..body.clone() })?;
    }
    let mut event = AutopilotEvent {
        envelope: Some(Envelope {
            cluster: cluster.to_owned(),
            source: source(cluster, holder),
            epoch: entry.generation,
            seq,
            event_time_ms: at_ms,
            observed_time_ms: at_ms,
            ..Envelope::default()
        }),
        generation: entry.generation,
        holder: holder.to_owned(),
        body: text,
        ..AutopilotEvent::default()
    };
    match &entry.event {
        JournalEvent::Lease(lease) => {
            event.set_kind(EventKind::LeaseTaken);
            event.until_ms = Some(Micros(lease.until_us).floor_millis().0);
        }
        JournalEvent::Planned(planned) => fill_plan(&mut event, planned),
        JournalEvent::Step(step) => fill_step(&mut event, step),
        JournalEvent::Scored(score) => fill_score(&mut event, score),
        JournalEvent::Measured(_) => event.set_kind(EventKind::Measured),
        JournalEvent::Shadow(shadow) => rollout::fill_shadow(&mut event, shadow),
        JournalEvent::Canary(canary) => rollout::fill_canary(&mut event, canary),
        JournalEvent::Policy(taken) => fill_policy(&mut event, taken),
        JournalEvent::Alert(alert) => fill_alert(&mut event, alert),
        JournalEvent::Cycles(cycles) => {
            event.set_kind(EventKind::Cycles);
            (event.cycles_made, event.cycles_missed) = (Some(cycles.made), Some(cycles.missed));
        }
        JournalEvent::Switched(switched) => fill_switched(&mut event, switched),
        JournalEvent::Refused(refused) => fill_refused(&mut event, refused),
        JournalEvent::Promise(promise) => fill_promise(&mut event, promise),
        JournalEvent::Expected(expected) => {
            event.set_kind(EventKind::Expected);
            event.action = Some(expected.action.clone());
            event.why = Some(expected.to_string());
        }
        JournalEvent::Compared(compared) => {
            event.set_kind(EventKind::Compared);
            event.action = Some(compared.action.clone());
            event.why = Some(compared.to_string());
        }
    }
    Ok(Event::Autopilot(event))
}

/// Source under which one process of a cluster's autopilot writes.
pub fn source(cluster: &str, holder: &str) -> String {
    format!("autopilot/{cluster}/{holder}")
}

/// Decodes the event of a record; `None` if the record is none of a journal.
pub fn decode_event(schema: u32, payload: &[u8]) -> Option<AutopilotEvent> {
    SchemaId::from_number(schema).ok().filter(|schema| *schema == SchemaId::AutopilotEvent)?;
    match Event::decode(schema, payload).ok()? {
        Event::Autopilot(event) => Some(event),
        _ => None,
    }
}

/// The entry of an event; `None` if this version cannot read it.
pub fn decode_entry(event: &AutopilotEvent) -> Option<JournalEntry> {
    serde_json::from_str(&event.body).ok()
}

fn fill_plan(event: &mut AutopilotEvent, planned: &PlanRecord) {
    let PlanRecord { plan, report, .. } = planned;
    event.set_kind(EventKind::Planned);
    event.plan = Some(plan.id.clone());
    event.parent_plan.clone_from(&plan.parent);
    event.policy = Some(plan.policy.clone());
    event.policy_hash = Some(plan.policy_hash.clone());
    event.state_hash = Some(plan.state_hash.clone());
    event.observed_ms = Some(Micros(plan.observed_us).floor_millis().0);
    event.decisions = u32::try_from(plan.decisions.len()).ok();
    let mut nothing: BTreeMap<Kind, Vec<String>> = BTreeMap::new();
    for considered in report.considered.iter().filter(|considered| considered.action.is_none()) {
        let reasons = nothing.entry(considered.kind).or_default();
        let about = considered.object.as_ref().map_or_else(String::new, |object| format!("{object}: "));
        reasons.push(format!("{about}{}", considered.reason));
    }
    let reasons_by_kind = nothing.into_iter().map(|(kind, reasons)| {
        let more = reasons.len().saturating_sub(REASONS);
        let more = if more > 0 { format!(", and of {more} more") } else { String::new() };
        format!("{kind}: {}{more}", reasons[..reasons.len().min(REASONS)].join(", "))
    });
    event.why = Some(reasons_by_kind.collect::<Vec<_>>().join("; "));
}

fn fill_step(event: &mut AutopilotEvent, step: &IntentEvent) {
    event.action = Some(step.action.clone());
    event.set_kind(match &step.transition {
        Transition::Proposed { .. } => EventKind::Proposed,
        Transition::Approved { .. } => EventKind::Approved,
        Transition::ApprovalRefused { .. } => EventKind::ApprovalRefused,
        Transition::Rejected { .. } => EventKind::Rejected,
        Transition::Leased { .. } => EventKind::Leased,
        Transition::Noticed => EventKind::Noticed,
        Transition::Acknowledged { .. } => EventKind::Acknowledged,
        Transition::NoticeIgnored => EventKind::NoticeIgnored,
        Transition::Applying => EventKind::Applying,
        Transition::Applied { .. } => EventKind::Applied,
        Transition::Verified => EventKind::Verified,
        Transition::Dropped { .. } => EventKind::Dropped,
        Transition::Failed { .. } => EventKind::ActionFailed,
        Transition::Yielded { .. } => EventKind::Yielded,
        Transition::Compensating => EventKind::Compensating,
        Transition::Compensated => EventKind::Compensated,
    });
    match &step.transition {
        Transition::Proposed { decision, plan, .. } => fill_decision(event, decision, plan),
        Transition::Approved { by, .. } => event.holder.clone_from(by),
        Transition::ApprovalRefused { by, why } => {
            event.holder.clone_from(by);
            event.why = Some(why.clone());
        }
        Transition::Rejected { by, why } => {
            event.holder.clone_from(by);
            event.why.clone_from(why);
        }
        Transition::Acknowledged { saved_step } => {
            event.why = saved_step.map(|step| format!("saved step {step}"));
        }
        Transition::Applied { receipt } => event.why = Some(receipt.done.clone()),
        Transition::Dropped { refusal: Some(Refusal { rule, why }) } => {
            event.rule = rule_name(*rule);
            event.why = Some(why.clone());
        }
        Transition::Dropped { refusal: None } => event.why = Some("its time was over".to_owned()),
        Transition::Failed { why, .. } => event.why = Some(why.clone()),
        Transition::Yielded { found } => event.why = Some(found.clone()),
        _ => {}
    }
}

fn rule_name(rule: Rule) -> Option<String> {
    serde_json::to_value(rule).ok().and_then(|name| Some(name.as_str()?.to_owned()))
}

fn fill_decision(event: &mut AutopilotEvent, decision: &Decision, plan: &str) {
    let Decision { action, kind, mode, gpus, predicted, reason, .. } = decision;
    let Action { expires_us, effect_ends_us, change, .. } = action;
    event.plan = Some(plan.to_owned());
    event.decision_kind = Some(kind.name().to_owned());
    event.object = Some(object(&change.object()));
    event.mode = Some(mode.name().to_owned());
    event.gpus = Some(*gpus);
    fill_predicted(event, predicted);
    event.expires_ms = Some(Micros(*expires_us).floor_millis().0);
    event.effect_ends_ms = effect_ends_us.map(|us| Micros(us).floor_millis().0);
    event.why = Some(reason.clone());
    fill_canary(event, decision.canary.as_ref());
}

fn fill_predicted(event: &mut AutopilotEvent, predicted: &Predicted) {
    event.benefit_gpu_ms = Some(predicted.benefit_gpu_ms);
    event.benefit_low_gpu_ms = Some(predicted.benefit_low_gpu_ms);
    event.cost_gpu_ms = Some(predicted.cost_gpu_ms);
    event.cost_high_gpu_ms = Some(predicted.cost_high_gpu_ms);
    event.net_micros = Some(predicted.net_micros);
    event.confidence_ppm = Some(predicted.confidence_ppm);
    event.over_ms = Some(predicted.over_ms);
}

fn fill_canary(event: &mut AutopilotEvent, canary: Option<&String>) {
    event.role = canary.map(|_| rollout::CANARY.to_owned());
    event.policy = canary.cloned();
}

fn fill_score(event: &mut AutopilotEvent, score: &Score) {
    event.set_kind(EventKind::Scored);
    event.action = Some(score.action.clone());
    event.decision_kind = Some(score.kind.name().to_owned());
    event.verified = Some(score.verified);
    event.predicted_gpu_ms = Some(score.predicted_gpu_ms);
    event.realised_gpu_ms = score.realised_gpu_ms;
    event.benefit_ratio_ppm = score.benefit_ratio_ppm;
    event.within = score.within;
    let bounds = score.bounds_gpu_ms();
    event.realised_low_gpu_ms = bounds.map(|bounds| bounds.low_gpu_ms);
    event.realised_high_gpu_ms = bounds.map(|bounds| bounds.high_gpu_ms);
    event.why.clone_from(&score.without);
    fill_canary(event, score.canary.as_ref());
}

fn fill_policy(event: &mut AutopilotEvent, taken: &PolicyAdopted) {
    event.set_kind(EventKind::PolicyTaken);
    event.policy = Some(taken.policy.clone());
    event.signed_by.clone_from(&taken.signed_by);
    event.widens = taken.changes.iter().filter(|key| key.widens).map(|key| key.key.clone()).collect();
}

fn fill_alert(event: &mut AutopilotEvent, alert: &Alert) {
    event.set_kind(EventKind::Alert);
    event.objective = Some(alert.series.objective.name().to_owned());
    event.decision_kind = alert.series.kind.map(|kind| kind.name().to_owned());
    event.severity = Some(alert.burn.severity().to_owned());
    event.firing = Some(alert.firing);
    event.since_ms = Some(Micros(alert.since_us).floor_millis().0);
    event.burn_rate_milli = Some(alert.burn_rate_milli);
    event.why = Some(alert.why.clone());
}

fn fill_switched(event: &mut AutopilotEvent, switched: &Switched) {
    event.set_kind(EventKind::Switched);
    // Not the empty name that nobody has.
    let by = Some(switched.by.as_str()).filter(|by| !by.is_empty());
    event.holder = by.unwrap_or("unknown").to_owned();
    event.why = Some(if switched.on { "on" } else { "off" }.to_owned());
}

fn fill_refused(event: &mut AutopilotEvent, refused: &EntriesRefused) {
    event.set_kind(EventKind::EntryRefused);
    event.why = Some(describe_refused(refused));
}

fn fill_promise(event: &mut AutopilotEvent, promise: &PromiseEvent) {
    event.set_kind(EventKind::Promise);
    event.object = Some(object(&Object::Owner(promise.owner.clone())));
    event.firing = match promise.what {
        Promised::Broken { .. } => Some(true),
        Promised::Kept => Some(false),
        Promised::Before(_) | Promised::Unmet { .. } => None,
    };
    event.why = Some(promise.describe());
}

/// Refused entries in words.
pub(crate) fn describe_refused(refused: &EntriesRefused) -> String {
    let EntriesRefused { count, offsets: (first, last), holder, why } = refused;
    format!(
        "{count} entries of the journal at offsets {first} to {last} do not count; the last, of {holder:?}: {why}"
    )
}

fn object(object: &Object) -> String {
    match object {
        Object::Node(name) => format!("node:{name}"),
        Object::Job(name) => format!("job:{name}"),
        Object::Owner(name) => format!("owner:{name}"),
        Object::Pool(name) => format!("pool:{name}"),
        Object::Loan(name) => format!("loan:{name}"),
        Object::Reservation(name) => format!("reservation:{name}"),
    }
}
