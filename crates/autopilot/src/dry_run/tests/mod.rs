//! Batches on a small cluster whose right answer is plain, and properties on any.

mod batches;
mod comparing;
mod cost;
mod together;

use super::*;
use crate::action::Precondition;
use crate::fixture::{NOW, S, cluster};
use crate::state::{GrowBy, Job, JobKind};

fn action(id: &str, change: Change) -> Action {
    Action {
        id: id.into(),
        generation: 1,
        change,
        preconditions: Vec::new(),
        inverse: None,
        expires_us: NOW + 60 * S,
        effect_ends_us: None,
        notice_ms: 0,
        after: Vec::new(),
    }
}

fn grow(id: &str, state: &ClusterState, job: &str, to_gpus: u32) -> Action {
    let found = &state.jobs[job];
    let change = Change::ResizeJob {
        job: job.into(),
        from_gpus: found.held_gpus(),
        to_gpus,
        keep_nodes: found.placement.keys().cloned().collect(),
        add_nodes: [].into(),
    };
    Action { preconditions: vec![Precondition::job_unchanged(&job.into(), found)], ..action(id, change) }
}

fn shrink(id: &str, state: &ClusterState, job: &str, keep: &[&str]) -> Action {
    let found = &state.jobs[job];
    let keep_nodes: BTreeSet<String> = keep.iter().map(|node| (*node).to_owned()).collect();
    let to_gpus = keep_nodes.iter().map(|node| found.placement[node]).sum();
    let from_gpus = found.held_gpus();
    let add_nodes = BTreeSet::new();
    action(id, Change::ResizeJob { job: job.into(), from_gpus, to_gpus, keep_nodes, add_nodes })
}

fn preempt(id: &str, state: &ClusterState, job: &str) -> Action {
    let found = &state.jobs[job];
    let change = Change::Preempt { job: job.into(), frees_gpus: found.held_gpus() };
    Action { preconditions: vec![Precondition::job_unchanged(&job.into(), found)], ..action(id, change) }
}

fn drain(id: &str, node: &str) -> Action {
    action(id, Change::DrainNode { node: node.into(), reason: "ecc".into() })
}

fn lend(id: &str, nodes: &[&str]) -> Action {
    let change = Change::Lend {
        from: "serving".into(),
        to: "research".into(),
        pool: "serve".into(),
        gpus: 8 * nodes.len() as u32,
        nodes: nodes.iter().map(|node| (*node).into()).collect(),
        extends: None,
        expires_us: NOW + 3_600 * S,
        reclaim_within_ms: 900_000,
    };
    action(id, change)
}

fn plain(action: &Action) -> Candidate<'_> {
    Candidate { action, restores: false, makes_room_for: None }
}

fn restoring(action: &Action) -> Candidate<'_> {
    Candidate { restores: true, ..plain(action) }
}

/// The shipped policy, under which drains are not held back by the floor of the pool.
fn policy() -> Policy {
    Policy::parse("[floors]\nin_service_share = 0.0\n[lend]\ngangs_span = true").unwrap()
}

fn run(state: &ClusterState, batch: &[Candidate<'_>]) -> Outcome {
    run_behind(state, &[], batch)
}

fn run_behind(state: &ClusterState, under_way: &[Action], batch: &[Candidate<'_>]) -> Outcome {
    try_batch(&policy(), state, under_way, batch, NOW, |_, _| true)
}

/// The reason why an action was refused, by the rule of dry runs.
fn refused<'o>(outcome: &'o Outcome, id: &str) -> &'o str {
    let refusal = outcome.refused.get(id).unwrap_or_else(|| panic!("{id} goes on: {outcome:?}"));
    assert_eq!(refusal.rule, Rule::DryRun);
    &refusal.why
}

fn goes_on<'o>(outcome: &'o Outcome, id: &str) -> &'o Expected {
    outcome.expected.get(id).unwrap_or_else(|| panic!("{id} does not go on: {outcome:?}"))
}

fn grows_by(mut job: Job, by: GrowBy) -> Job {
    if let JobKind::Elastic { grow, .. } = &mut job.kind {
        *grow = by;
    }
    job
}
