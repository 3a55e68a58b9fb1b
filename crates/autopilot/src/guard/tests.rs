//! Each rule by itself, and invariants over whole histories.

mod promises;
mod rates;
mod requirements;
mod rules;
mod whole;

use super::*;
use crate::action::{Change, Precondition};
use crate::fixture::{NOW, S, cluster};

/// All kinds act; nothing else is changed.
const ACTS: &str = "
    [modes]
    resize_job = \"act\"
    lend = \"act\"
    reclaim = \"act\"
    adjust_reservation = \"act\"
    drain_node = \"act\"
    return_node = \"act\"
    preempt = \"act\"
";

fn acts(more: &str) -> Policy {
    Policy::parse(&format!("{more}\n{ACTS}")).unwrap()
}

fn on() -> History {
    History { switch: KillSwitch::On, ..History::default() }
}

fn action(change: Change, preconditions: Vec<Precondition>) -> Action {
    Action {
        id: "x-1".into(),
        generation: 1,
        change,
        preconditions,
        inverse: None,
        expires_us: NOW + 60 * S,
        effect_ends_us: None,
        notice_ms: 0,
        after: Vec::new(),
    }
}

fn drain(node: &str) -> Action {
    let change = Change::DrainNode { node: node.into(), reason: "ecc".into() };
    action(change, vec![Precondition::NodeTakesJobs { node: node.into() }])
}

fn preempt(state: &ClusterState, job: &str) -> Action {
    let found = &state.jobs[job];
    let change = Change::Preempt { job: job.into(), frees_gpus: found.held_gpus() };
    let runs = Precondition::JobRuns {
        job: job.into(),
        restarts: found.restarts,
        placement: found.placement.clone(),
    };
    action(change, vec![runs])
}

fn resize(state: &ClusterState, job: &str, to_gpus: u32) -> Action {
    let found = &state.jobs[job];
    let keep_nodes = found.placement.keys().cloned().collect();
    let change = Change::ResizeJob {
        job: job.into(),
        from_gpus: found.held_gpus(),
        to_gpus,
        keep_nodes,
        add_nodes: [].into(),
    };
    Action { change, ..preempt(state, job) }
}

fn lend(nodes: &[&str]) -> Action {
    let nodes = nodes.iter().map(|node| (*node).to_owned()).collect::<std::collections::BTreeSet<_>>();
    let free = Precondition::NodesFree { nodes: nodes.clone() };
    let change = Change::Lend {
        from: "serving".into(),
        to: "research".into(),
        pool: "serve".into(),
        gpus: 8 * nodes.len() as u32,
        nodes,
        extends: None,
        expires_us: NOW + 3600 * S,
        reclaim_within_ms: 900_000,
    };
    action(change, vec![free])
}

fn reclaim(nodes: &[&str], from_gpus: u32) -> Action {
    let nodes = nodes.iter().map(|node| (*node).to_owned()).collect::<std::collections::BTreeSet<_>>();
    let to_gpus = from_gpus - 8 * nodes.len() as u32;
    let is = Precondition::LoanIs { loan: "lend-1".into(), gpus: from_gpus };
    action(Change::Reclaim { loan: "lend-1".into(), from_gpus, to_gpus, nodes }, vec![is])
}

fn past(action: &Action, state: &ClusterState, ago_s: i64, outcome: ActionStatus) -> PastAction {
    let id = format!("past-{ago_s}-{}", action.change.object());
    PastAction { id, outcome, ..PastAction::begun(action, state, 0, NOW - ago_s * S) }
}

fn failed(why: &str) -> ActionStatus {
    ActionStatus::Failed { why: why.into() }
}

/// The rule that refuses. `None`: allowed.
fn rule(policy: &Policy, state: &ClusterState, history: &History, action: &Action) -> Option<Rule> {
    match verdict(policy, state, history, action, NOW) {
        Verdict::Allowed => None,
        Verdict::Refused(refusal) => {
            assert!(!refusal.why.is_empty());
            Some(refusal.rule)
        }
    }
}

fn fine(state: &ClusterState, action: &Action) {
    assert_eq!(verdict(&acts(""), state, &on(), action, NOW), Verdict::Allowed);
}

#[test]
fn ordinary_actions_are_allowed() {
    let state = cluster();
    fine(&state, &drain("s00"));
    fine(&state, &lend(&["s00", "s01"]));
}
