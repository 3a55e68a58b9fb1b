//! Direction of a policy change. Widening lets the autopilot do more and needs two signatures;
//! narrowing needs one.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Mode, Policy};

/// Which change of a key widens a policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Widens {
    /// A larger number.
    Up,
    /// A smaller number.
    Down,
    /// `true`.
    On,
    /// `false`.
    Off,
    /// A mode closer to `act`.
    Mode,
    /// Removing or altering a list entry: entries restrict.
    Less,
    /// A more permissive scope, or a new order of scopes.
    Scopes,
    /// Any change: it may shift decisions either way.
    Any,
    /// No change: the key does not affect actions.
    Never,
}

/// Direction of every policy key; `*` stands for a name given by a user or a kind. A test walks the
/// shipped policy to find keys missing here. At run time a missing key counts as widening.
const KEYS: &[(&str, Widens)] = &[
    ("format", Widens::Never),
    ("name", Widens::Never),
    ("require_opt_in", Widens::Off),
    ("scopes", Widens::Scopes),
    ("calendar", Widens::Less),
    ("utc_offset_minutes", Widens::Any),
    ("services", Widens::Less),
    ("modes.*", Widens::Mode),
    ("at_most.*", Widens::Never), // Set by the scorecard, in no file.
    ("budgets.*.per_hour", Widens::Up),
    ("budgets.*.per_day", Widens::Up),
    ("budgets.*.gpus_per_hour", Widens::Up),
    ("budgets.*.gpus_share_per_hour", Widens::Up),
    ("budgets.*.concurrent", Widens::Up),
    ("blast.fleet_share", Widens::Up),
    ("blast.window_s", Widens::Down), // A shorter window counts less.
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
    // A name left out falls back on the level for all, which may be lower or higher.
    ("lend.owner_promise_quantile.*", Widens::Any),
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
    ("resize.trial_gain", Widens::Up),
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
    ("promise.keep", Widens::Off),
    ("promise.wait_longer", Widens::Up),
    ("promise.wait_slack_s", Widens::Up),
    ("promise.least_jobs", Widens::Up), // Fewer waits than this break nothing.
    ("promise.unmet_minutes", Widens::Up),
    // A name left out falls back on what is derived, which may be more or less.
    ("promise.owner_wait_p95_s.*", Widens::Any),
    ("promise.owner_unmet_minutes.*", Widens::Any),
    ("record.decisions", Widens::Any), // Used by promotion and demotion.
    ("record.verified", Widens::Down),
    ("record.realised", Widens::Down),
    ("record.verified_down", Widens::Down),
    ("record.realised_down", Widens::Down),
    ("record.calibrated_least", Widens::Down),
    ("record.calibrated_most", Widens::Up),
    ("record.window", Widens::Any),
    ("shadow.policy", Widens::Never),
    ("canary.policy", Widens::Any), // It needs signatures of its own.
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
    ("slo.window_days", Widens::Never), // Affects reports only.
    ("slo.least_bad", Widens::Up),
    ("slo.step_down", Widens::Off),
];

/// A key that differs between two policies.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PolicyChange {
    /// Full key path.
    pub key: String,
    /// JSON value before. `None`: absent.
    pub before: Option<String>,
    /// JSON value after.
    pub after: Option<String>,
    /// Whether the change widens the policy.
    pub widens: bool,
}

/// Differences between two policies, by key.
pub fn changes(before: &Policy, after: &Policy) -> Vec<PolicyChange> {
    let (old, new) = (json(before), json(after));
    let mut paths = BTreeSet::new();
    leaves(&old, &mut Vec::new(), &mut paths);
    leaves(&new, &mut Vec::new(), &mut paths);
    let differs = |path: &&Vec<String>| at(&old, path) != at(&new, path);
    let change = |path: &Vec<String>| PolicyChange {
        key: path.join("."),
        before: at(&old, path).map(ToString::to_string),
        after: at(&new, path).map(ToString::to_string),
        widens: direction(path).is_none_or(|widens| {
            let of = |whole, policy| meant(path, at(whole, path), policy);
            goes_wider(widens, of(&old, before).as_ref(), of(&new, after).as_ref())
        }),
    };
    paths.iter().filter(differs).map(change).collect()
}

/// Signatures a policy needs to follow `before`: two if any key widens, otherwise one.
pub fn signers_needed(before: &Policy, after: &Policy) -> usize {
    if changes(before, after).iter().any(|changed| changed.widens) { 2 } else { 1 }
}

fn json(policy: &Policy) -> Value {
    serde_json::to_value(policy).expect("a policy is plain data, and plain data has JSON")
}

/// Collects the paths of all values that are not tables. A list counts as one value.
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

/// Compares paths part by part, because names given by users may contain dots.
fn direction(path: &[String]) -> Option<Widens> {
    let fits = |pattern: &str| {
        let parts: Vec<&str> = pattern.split('.').collect();
        parts.len() == path.len() && parts.iter().zip(path).all(|(part, key)| *part == "*" || part == key)
    };
    KEYS.iter().find(|(pattern, _)| fits(pattern)).map(|(_, widens)| *widens)
}

/// Effective value of an absent key. A source's age falls back to that of all sources; the rest to
/// 0, `false` or an empty list.
fn meant(path: &[String], value: Option<&Value>, policy: &Policy) -> Option<Value> {
    let of_a_source = path.len() == 3 && path[0] == "freshness" && path[1] == "sources";
    match value {
        None if of_a_source => Some(policy.freshness.most_s.into()),
        // Recorded before alerts existed.
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
    // Values that cannot be compared count as widening.
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

/// The last matching scope decides, and a matching `stop` always wins. So a new `stop` narrows
/// wherever it stands; all other scopes must remain, in order, for the same objects, with no more
/// permissive mode.
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
