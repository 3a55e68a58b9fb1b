//! Which way a change of a policy goes: towards doing more, which takes two people, or towards
//! doing less, which takes one. Pure.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Mode, Policy};

/// Which change of a key lets the autopilot do more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Widens {
    /// A greater number.
    Up,
    /// A smaller number.
    Down,
    /// `true`.
    On,
    /// `false`.
    Off,
    /// A mode nearer to acting.
    Mode,
    /// An entry of the list that is gone or another: entries keep things from being done.
    Less,
    /// A scope that lets more be done, or whose place among the others is another.
    Scopes,
    /// Any change: it moves what is decided in either direction.
    Any,
    /// None: it changes nothing that is done.
    Never,
}

/// Every key of a policy and its direction; `*` stands for a name that a user or a kind gives. A
/// test walks the shipped policy, so a key without a line here is found; when the program runs it
/// counts as one that widens.
const KEYS: &[(&str, Widens)] = &[
    ("format", Widens::Never),
    ("name", Widens::Never),
    ("require_opt_in", Widens::Off),
    ("scopes", Widens::Scopes),
    ("calendar", Widens::Less),
    ("utc_offset_minutes", Widens::Any),
    ("services", Widens::Less),
    ("modes.*", Widens::Mode),
    ("at_most.*", Widens::Never), // The record's word, in no file.
    ("budgets.*.per_hour", Widens::Up),
    ("budgets.*.per_day", Widens::Up),
    ("budgets.*.gpus_per_hour", Widens::Up),
    ("budgets.*.gpus_share_per_hour", Widens::Up),
    ("budgets.*.concurrent", Widens::Up),
    ("blast.fleet_share", Widens::Up),
    ("blast.window_s", Widens::Down), // Less is counted in a shorter one.
    ("blast.failures", Widens::Up),
    ("blast.racks", Widens::Up),
    ("blast.objects", Widens::Up),
    ("blast.owner_lost_gpu_hours", Widens::Up),
    ("blast.owner_lost_share", Widens::Up),
    ("floors.in_service_share", Widens::Down),
    ("floors.pools.*", Widens::Down),
    ("floors.owners.*", Widens::Down),
    ("stability.dwell_s", Widens::Down),
    ("stability.cooldown_s", Widens::Down),
    ("stability.cooldown_most_s", Widens::Down),
    ("stability.failures", Widens::Up),
    ("stability.reversals", Widens::Up),
    ("freshness.most_s", Widens::Up),
    ("freshness.sources.*", Widens::Up),
    ("freshness.required", Widens::Less),
    ("freshness.plan_s", Widens::Up),
    ("freshness.person_s", Widens::Up),
    ("freshness.disagreements", Widens::Up),
    ("forecast.source", Widens::Any),
    ("forecast.most_age_s", Widens::Up),
    ("worth.useful_micros_per_gpu_hour", Widens::Any),
    ("worth.missing_micros_per_gpu_hour", Widens::Any),
    ("worth.least_net_gpu_hours", Widens::Down),
    ("worth.caution", Widens::Down),
    ("worth.relative_error", Widens::Down),
    ("lend.least_quantile", Widens::Down),
    ("lend.promise_quantile", Widens::Down),
    ("lend.buffer_gpus", Widens::Down),
    ("lend.reclaim_buffer_gpus", Widens::Down),
    ("lend.term_s", Widens::Up),
    ("lend.reclaim_within_s", Widens::Up),
    ("lend.step_gpus", Widens::Up),
    ("lend.step_share", Widens::Up),
    ("lend.step_every_s", Widens::Down),
    ("lend.reclaim_chance", Widens::Down),
    ("lend.lost_per_lent", Widens::Down),
    ("lend.least_coverage", Widens::Down),
    ("lend.across_models", Widens::On),
    ("lend.gangs_span", Widens::Any),
    ("lend.for_growth", Widens::On),
    ("resize.dwell_pauses", Widens::Down),
    ("resize.hold_s", Widens::Up),
    ("resize.pause_s", Widens::Down),
    ("resize.gain_ratio", Widens::Down),
    ("resize.spare_gpus", Widens::Down),
    ("reservation.quantile", Widens::Down),
    ("reservation.horizon_s", Widens::Any),
    ("reservation.step_gpus", Widens::Up),
    ("reservation.price_ratio", Widens::Any),
    ("reservation.term_days", Widens::Any),
    ("reservation.ahead.*", Widens::Up),
    ("reservation.ahead_s", Widens::Up),
    ("drain.bad", Widens::Down),
    ("drain.families", Widens::Down),
    ("drain.slowdown", Widens::Down),
    ("drain.good_for_s", Widens::Down),
    ("drain.repair_s", Widens::Any),
    ("preempt.per_job_per_day", Widens::Up),
    ("preempt.least_run_s", Widens::Down),
    ("preempt.after_wait_s", Widens::Down),
    ("preempt.gather_after_s", Widens::Down),
    ("preempt.restart_s", Widens::Down),
    ("preempt.notice_s", Widens::Down),
    ("advice.most", Widens::Never),
    ("advice.keeps_share", Widens::Never),
    ("record.decisions", Widens::Any), // Both promotion and demotion count by it.
    ("record.verified", Widens::Down),
    ("record.realised", Widens::Down),
    ("record.verified_down", Widens::Down),
    ("record.realised_down", Widens::Down),
    ("record.window", Widens::Any),
    ("shadow.policy", Widens::Never),
    ("canary.policy", Widens::Any), // It is signed itself, too.
    ("canary.owners", Widens::Any),
    ("canary.rollback.decisions", Widens::Up),
    ("canary.rollback.worse", Widens::Up),
    ("canary.rollback.loss_gpu_hours", Widens::Up),
    ("canary.rollback.failures", Widens::Up),
    ("canary.rollback.breaker_trips", Widens::Up),
    ("canary.rollback.unmet", Widens::Up),
    ("slo.promises", Widens::Down),
    ("slo.verified", Widens::Down),
    ("slo.cycles", Widens::Down),
    ("slo.window_days", Widens::Never), // What is told, not what is done.
    ("slo.least_bad", Widens::Up),
    ("slo.step_down", Widens::Off),
];

/// A key that differs between two policies.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PolicyChange {
    /// The key, from the top.
    pub key: String,
    /// Its value before, as JSON; `None`: not there.
    pub before: Option<String>,
    /// Its value after.
    pub after: Option<String>,
    /// Whether it lets the autopilot do more.
    pub widens: bool,
}

/// What differs between two policies, by key.
pub fn changes(before: &Policy, after: &Policy) -> Vec<PolicyChange> {
    let (old, new) = (json(before), json(after));
    let mut paths = BTreeSet::new();
    leaves(&old, &mut Vec::new(), &mut paths);
    leaves(&new, &mut Vec::new(), &mut paths);
    let differs = |path: &&Vec<String>| at(&old, path) != at(&new, path);
    let told = |path: &Vec<String>| PolicyChange {
        key: path.join("."),
        before: at(&old, path).map(ToString::to_string),
        after: at(&new, path).map(ToString::to_string),
        widens: direction(path).is_none_or(|widens| {
            let of = |whole, policy| meant(path, at(whole, path), policy);
            goes_wider(widens, of(&old, before).as_ref(), of(&new, after).as_ref())
        }),
    };
    paths.iter().filter(differs).map(told).collect()
}

/// People who must sign a policy that follows on `before`: two where any key widens, else one.
pub fn signers_needed(before: &Policy, after: &Policy) -> usize {
    if changes(before, after).iter().any(|changed| changed.widens) { 2 } else { 1 }
}

fn json(policy: &Policy) -> Value {
    serde_json::to_value(policy).expect("a policy is plain data, and plain data has JSON")
}

/// Paths of all values that are no table; a list is one value.
fn leaves(value: &Value, path: &mut Vec<String>, into: &mut BTreeSet<Vec<String>>) {
    let Value::Object(table) = value else {
        into.insert(path.clone());
        return;
    };
    for (key, value) in table {
        path.push(key.clone());
        leaves(value, path, into);
        path.pop();
    }
}

fn at<'a>(whole: &'a Value, path: &[String]) -> Option<&'a Value> {
    path.iter().try_fold(whole, |value, key| value.get(key))
}

/// Names that users give may hold dots, so paths are compared part by part.
fn direction(path: &[String]) -> Option<Widens> {
    let fits = |pattern: &str| {
        let parts: Vec<&str> = pattern.split('.').collect();
        parts.len() == path.len() && parts.iter().zip(path).all(|(part, key)| *part == "*" || part == key)
    };
    KEYS.iter().find(|(pattern, _)| fits(pattern)).map(|(_, widens)| *widens)
}

/// What holds where a value is not there: a source's age is that of all sources; of the rest 0,
/// `false`, an empty list.
fn meant(path: &[String], value: Option<&Value>, policy: &Policy) -> Option<Value> {
    let of_a_source = path.len() == 3 && path[0] == "freshness" && path[1] == "sources";
    match value {
        None if of_a_source => Some(policy.freshness.most_s.into()),
        // On record from before there were alerts.
        None if path == ["slo", "least_bad"] => Some(u32::MAX.into()),
        value => value.cloned(),
    }
}

fn goes_wider(widens: Widens, before: Option<&Value>, after: Option<&Value>) -> bool {
    let number = |value: Option<&Value>| value.map_or(Some(0.0), Value::as_f64);
    let on = |value: Option<&Value>| value.and_then(Value::as_bool).unwrap_or(false);
    let mode = |value: Option<&Value>| -> Option<Mode> {
        value.map_or(Some(Mode::Observe), |value| serde_json::from_value(value.clone()).ok())
    };
    // What cannot be compared counts as wider.
    match widens {
        Widens::Up => number(before).zip(number(after)).is_none_or(|(before, after)| after > before),
        Widens::Down => number(before).zip(number(after)).is_none_or(|(before, after)| after < before),
        Widens::On => on(after) && !on(before),
        Widens::Off => on(before) && !on(after),
        Widens::Mode => mode(before).zip(mode(after)).is_none_or(|(before, after)| after > before),
        Widens::Less => !entries(before).iter().all(|entry| entries(after).contains(entry)),
        Widens::Scopes => scopes_go_wider(entries(before), entries(after)),
        Widens::Any => before != after,
        Widens::Never => false,
    }
}

fn entries(value: Option<&Value>) -> &[Value] {
    value.and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

/// The last scope that fits decides, and a `stop` that fits always does: so a new `stop` keeps
/// things from being done wherever it stands, and all others must be there in the same order, for
/// the same objects, with modes no nearer to acting.
fn scopes_go_wider(before: &[Value], after: &[Value]) -> bool {
    let apart = |scope: &Value| -> (Option<Mode>, Value) {
        let mut about = scope.clone();
        let mode = about.as_object_mut().and_then(|fields| fields.remove("mode"));
        (mode.and_then(|mode| serde_json::from_value(mode).ok()), about)
    };
    let mut after = after.iter().map(apart);
    for (mode, about) in before.iter().map(apart) {
        loop {
            match after.next() {
                Some((new, same)) if same == about && new <= mode => break,
                Some((Some(Mode::Stop), _)) => {}
                _ => return true,
            }
        }
    }
    after.any(|(mode, _)| mode != Some(Mode::Stop))
}

#[cfg(test)]
mod tests;
