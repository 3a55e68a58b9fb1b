//! Rollback: whether a canary has done badly enough to end.

use tidegate_units::Millis;

use crate::action::Change;
use crate::intent::{Intent, IntentLedger, Stage};
use crate::policy::RollbackRules;
use crate::scorecard::Score;

/// Ratios closer than this count as equal; they are quotients of sums.
const ROUNDING: f64 = 1e-9;

/// Evidence about a canary.
#[derive(Debug, Clone, Copy)]
pub struct CanaryRecord<'a> {
    /// Name of its policy.
    pub policy: &'a str,
    /// When it began; earlier events do not count.
    pub began_us: i64,
    /// All scores kept, oldest first.
    pub scores: &'a [Score],
    /// All intents kept.
    pub intents: &'a IntentLedger,
    /// Its decisions refused by the breaker since it began.
    pub breaker_trips: usize,
    /// Number of recent scores considered per side.
    pub window: u32,
}

impl CanaryRecord<'_> {
    fn is_own(&self, canary: Option<&String>, at_us: i64) -> bool {
        canary.is_some_and(|policy| policy == self.policy) && at_us >= self.began_us
    }

    fn own(&self) -> impl Iterator<Item = &Intent> {
        self.intents.all().filter(|intent| self.is_own(intent.decision.canary.as_ref(), intent.at_us()))
    }
}

/// Why it must end. `None`: it may continue. Reports the first limit exceeded.
pub fn reason(rules: &RollbackRules, record: &CanaryRecord<'_>, now_us: i64) -> Option<String> {
    failures(rules, record)
        .or_else(|| trips(rules, record))
        .or_else(|| unmet(rules, record, now_us))
        .or_else(|| loss(rules, record))
        .or_else(|| worse(rules, record))
}

/// Its latest finished actions failed in a row.
fn failures(rules: &RollbackRules, record: &CanaryRecord<'_>) -> Option<String> {
    let mut over: Vec<(i64, &str, bool)> = record.own().filter_map(outcome).collect();
    over.sort_unstable_by(|a, b| b.cmp(a));
    let failed = over.iter().take_while(|(_, _, failed)| *failed).count();
    (failed >= rules.failures as usize).then(|| {
        format!("its last {failed} actions failed; at most {} may", rules.failures.saturating_sub(1))
    })
}

/// Begin, id and failure of a finished action. `None`: not begun or not finished.
fn outcome(intent: &Intent) -> Option<(i64, &str, bool)> {
    let failed = match intent.stage {
        Stage::Verified { .. } => false,
        Stage::Failed { .. } | Stage::Compensating { .. } | Stage::Compensated { .. } => true,
        _ => return None,
    };
    Some((intent.at_us(), &intent.decision.action.id, failed))
}

fn trips(rules: &RollbackRules, record: &CanaryRecord<'_>) -> Option<String> {
    let trips = record.breaker_trips;
    (trips >= rules.breaker_trips as usize).then(|| {
        format!("the breaker refused {trips} of its decisions; {} end the canary", rules.breaker_trips)
    })
}

/// Its reclaims that took, or have been taking, longer than promised to the lender.
fn unmet(rules: &RollbackRules, record: &CanaryRecord<'_>, now_us: i64) -> Option<String> {
    let late: Vec<&str> =
        record.own().filter(|intent| is_late(intent, record.intents, now_us)).map(id).collect();
    (late.len() >= rules.unmet as usize).then(|| {
        format!(
            "{} of its reclaims took longer than promised; {} end the canary: {}",
            late.len(),
            rules.unmet,
            late.join(", ")
        )
    })
}

fn id(intent: &Intent) -> &str {
    &intent.decision.action.id
}

fn is_late(intent: &Intent, intents: &IntentLedger, now_us: i64) -> bool {
    let Change::Reclaim { loan, .. } = &intent.decision.action.change else { return false };
    let back_us = match intent.stage {
        Stage::Verified { at_us } => at_us,
        Stage::Applying { .. } => now_us,
        _ => return false,
    };
    let promised_ms = intents.get(loan).and_then(|lent| match lent.decision.action.change {
        Change::Lend { reclaim_within_ms, .. } => Some(reclaim_within_ms),
        _ => None,
    });
    promised_ms.is_some_and(|promised_ms| back_us - intent.at_us() > Millis(promised_ms).to_micros().0)
}

/// Sum of its determinable net results, GPUs × ms.
fn loss(rules: &RollbackRules, record: &CanaryRecord<'_>) -> Option<String> {
    let own = record.scores.iter().filter(|score| record.is_own(score.canary.as_ref(), score.decided_us));
    let net: i64 = own.filter_map(Score::known_net_gpu_ms).fold(0, i64::saturating_add);
    let hours = net as f64 / 3.6e6;
    (net < 0 && -hours >= rules.loss_gpu_hours).then(|| {
        format!(
            "its decisions lost {:.1} GPU-hours against doing nothing; {} end the canary",
            -hours, rules.loss_gpu_hours
        )
    })
}

/// Compares both sides by Σ realised / Σ predicted of their determinable net results.
fn worse(rules: &RollbackRules, record: &CanaryRecord<'_>) -> Option<String> {
    let own = share(record, |score| record.is_own(score.canary.as_ref(), score.decided_us));
    let base = share(record, |score| score.canary.is_none());
    let ((own, own_count), (base, base_count)) = own.zip(base)?;
    if own_count.min(base_count) < rules.decisions as usize || own > base - rules.worse - ROUNDING {
        return None;
    }
    Some(format!(
        "its {own_count} scored decisions realised {own:.2} of their prediction, the {base_count} others {base:.2}: worse by more than {}",
        rules.worse
    ))
}

/// Ratio of realised to predicted for the newest scores, and their number. `None`: nothing was
/// predicted.
fn share(record: &CanaryRecord<'_>, of: impl Fn(&Score) -> bool) -> Option<(f64, usize)> {
    let newest = record.scores.iter().rev().filter(|score| of(score));
    let said: Vec<(i64, i64)> = newest
        .filter_map(|score| Some((score.known_net_gpu_ms()?, score.predicted_gpu_ms)))
        .take(record.window as usize)
        .collect();
    let sum = |of: fn(&(i64, i64)) -> i64| said.iter().map(|pair| of(pair) as f64).sum::<f64>();
    let promised = sum(|(_, predicted)| *predicted);
    (promised > 0.0).then(|| (sum(|(realised, _)| *realised) / promised, said.len()))
}
