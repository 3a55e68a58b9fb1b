//! Rest after a change, longer rest after a failure, and an eye on to and fro.

use super::{Case, Outcome, Past, Refusal, Rule, history::direction, refuse, subject};
use crate::action::{Change, Kind};

const DAY_US: i64 = 86_400_000_000;

pub(super) fn rests(case: &Case<'_>) -> Option<Refusal> {
    cooldown(case).or_else(|| if case.gives_back { None } else { dwell(case).or_else(|| oscillation(case)) })
}

fn dwell(case: &Case<'_>) -> Option<Refusal> {
    let dwell_s = match &case.action.change {
        Change::Lend { extends: Some(_), .. } => return None,
        Change::Lend { .. } => case.policy.lend.step_every_s,
        _ => case.policy.stability.dwell_s,
    };
    let subject = subject(&case.action.change, case.state);
    let changed =
        |past: &&Past| matches!(past.outcome, Outcome::UnderWay | Outcome::Verified) && past.direction != 0;
    let last = case.history.about(&subject).rev().find(changed)?;
    let ago_us = case.now_us - last.at_us;
    (ago_us < dwell_s * 1_000_000).then_some(())?;
    refuse(Rule::Dwell, format!("{subject} was changed {} s ago, it rests for {dwell_s}", ago_us / 1_000_000))
}

/// Twice as long after each further failure in a row; identical ones in a row are left to people.
fn cooldown(case: &Case<'_>) -> Option<Refusal> {
    let subject = subject(&case.action.change, case.state);
    let mut why: Option<&String> = None;
    let (mut failures, mut identical, mut last_us) = (0u32, 0u32, i64::MIN);
    for past in case.history.about(&subject).rev().filter(|past| past.kind == case.kind) {
        match &past.outcome {
            Outcome::Failed { why: found } | Outcome::Compensated { why: found } => {
                failures += 1;
                last_us = last_us.max(past.at_us);
                if identical + 1 == failures && why.is_none_or(|why| why == found) {
                    identical += 1;
                    why = Some(found);
                }
            }
            Outcome::Verified => break,
            Outcome::UnderWay => {}
        }
    }
    if failures == 0 {
        return None;
    }
    let rules = &case.policy.stability;
    let reason = why.map_or("", String::as_str);
    // Taking back goes on trying: the owner waits.
    if identical >= rules.failures && case.kind != Kind::Reclaim {
        return refuse(
            Rule::Cooldown,
            format!("it failed {identical} times alike ({reason}): a person must look"),
        );
    }
    let rest_s = rules.cooldown_s.saturating_mul(1 << (failures - 1).min(20)).min(rules.cooldown_most_s);
    let ago_us = case.now_us - last_us;
    // An owner is owed its GPUs: a reclaim rests once, not longer each time.
    let rest_s = if case.kind == Kind::Reclaim { 0 } else { rest_s };
    (ago_us < rest_s * 1_000_000).then_some(())?;
    refuse(
        Rule::Cooldown,
        format!("it failed {} s ago ({reason}), it rests for {rest_s}", ago_us / 1_000_000),
    )
}

/// Reversals of the subject in 24 hours, this action's included.
fn oscillation(case: &Case<'_>) -> Option<Refusal> {
    let subject = subject(&case.action.change, case.state);
    let done = |past: &&Past| {
        past.at_us > case.now_us - DAY_US && matches!(past.outcome, Outcome::UnderWay | Outcome::Verified)
    };
    let steps = case.history.about(&subject).filter(done).map(|past| past.direction);
    let mut last = 0;
    let mut reversals = 0;
    for step in steps.chain([direction(&case.action.change)]).filter(|step| *step != 0) {
        reversals += u32::from(last != 0 && step != last);
        last = step;
    }
    let most = case.policy.stability.reversals;
    (reversals > most).then_some(())?;
    refuse(
        Rule::Oscillation,
        format!("{subject} would turn for the {reversals}th time in 24 hours, {most} are the most"),
    )
}
