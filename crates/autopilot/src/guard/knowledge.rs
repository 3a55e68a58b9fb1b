//! What is known, and how fresh it is.

use super::{Case, Outcome, Refusal, Rule, refuse};
use crate::action::Kind;
use crate::state::Object;

pub(super) fn expired(case: &Case<'_>) -> Option<Refusal> {
    let late_us = case.now_us - case.action.expires_us;
    (late_us >= 0).then_some(())?;
    refuse(Rule::Expired, format!("it had to be begun {} s ago", late_us / 1_000_000))
}

/// The observation is fresh for all; the sources for all but what gives back.
pub(super) fn freshness(case: &Case<'_>) -> Option<Refusal> {
    let rules = &case.policy.freshness;
    let age_us = case.now_us - case.state.at_us;
    if age_us > rules.most_s * 1_000_000 {
        return refuse(Rule::Freshness, format!("the cluster was observed {} s ago", age_us / 1_000_000));
    }
    // A clock ahead of ours makes everything look fresh.
    if age_us < -rules.most_s * 1_000_000 {
        return refuse(
            Rule::Freshness,
            format!("the cluster was observed {} s in the future", -age_us / 1_000_000),
        );
    }
    if case.gives_back {
        return None;
    }
    if let Some(name) = rules.required.iter().find(|name| !case.state.sources.contains_key(*name)) {
        return refuse(Rule::Freshness, format!("source {name} is required and unknown"));
    }
    for (name, source) in &case.state.sources {
        let most_s = rules.sources.get(name).copied().unwrap_or(rules.most_s);
        let Some(last_us) = source.last_event_us else {
            return refuse(Rule::Freshness, format!("source {name} has never told anything"));
        };
        let age_s = (case.now_us - last_us) / 1_000_000;
        if age_s > most_s {
            return refuse(
                Rule::Freshness,
                format!("source {name} is silent for {age_s} s, {most_s} are the most"),
            );
        }
    }
    None
}

pub(super) fn disagreement(case: &Case<'_>) -> Option<Refusal> {
    let disputes = &case.state.disagreements;
    let reach = &case.reach;
    let touches = |object: &Object| match object {
        Object::Node(name) => reach.nodes.contains(name),
        Object::Job(id) => reach.jobs.contains(id),
        Object::Owner(name) => reach.owners.contains(name),
        Object::Pool(name) => reach.pools.contains(name),
        Object::Loan(_) | Object::Reservation(_) => *object == case.action.change.object(),
    };
    if let Some(found) = disputes.iter().find(|found| touches(&found.object)) {
        let why = format!("of {} the log tells {}, the cluster {}", found.object, found.log, found.target);
        return refuse(Rule::Disagreement, why);
    }
    let most = case.policy.freshness.disagreements as usize;
    if disputes.len() > most && !case.gives_back {
        let why = format!("log and cluster disagree on {} objects, {most} are the most", disputes.len());
        return refuse(Rule::Disagreement, why);
    }
    None
}

pub(super) fn precondition(case: &Case<'_>) -> Option<Refusal> {
    // Whoever disturbs something says what it looked like: an action on a job or node without a word of it is none.
    let must_say = matches!(
        case.kind,
        Kind::ResizeJob | Kind::Preempt | Kind::DrainNode | Kind::ReturnNode | Kind::Reclaim | Kind::Lend
    );
    if must_say && case.action.preconditions.is_empty() {
        return refuse(Rule::Precondition, "it names no precondition");
    }
    let broken = case.action.preconditions.iter().find_map(|fact| fact.holds(case.state).err())?;
    refuse(Rule::Precondition, broken.to_string())
}

pub(super) fn order(case: &Case<'_>) -> Option<Refusal> {
    for id in &case.action.after {
        match case.history.find(id).map(|past| &past.outcome) {
            Some(Outcome::UnderWay | Outcome::Verified) => {}
            Some(Outcome::Failed { why } | Outcome::Compensated { why }) => {
                return refuse(Rule::Order, format!("{id}, which comes before, failed: {why}"));
            }
            None => return refuse(Rule::Order, format!("{id} comes before and was not begun")),
        }
    }
    None
}
