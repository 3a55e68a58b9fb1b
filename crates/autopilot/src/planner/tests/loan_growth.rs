//! Loans for growth.

use super::*;
use crate::action::Change;
use crate::fixture::{cluster, elastic, loan, pending};

const GROWTH: &str = "[lend]\nfor_growth = true";

fn lent(policy: &str, state: &ClusterState) -> Vec<(u32, String, i64)> {
    let policy = Policy::parse(policy).unwrap();
    let (plan, _) = plan(&policy, state, &FixedForecast::highest(50.0), None, NOW, 7);
    let of = |decision: &Decision| match &decision.action.change {
        Change::Lend { gpus, to, .. } => Some((*gpus, to.clone(), decision.predicted.benefit_gpu_ms)),
        _ => None,
    };
    plan.decisions.iter().filter_map(of).collect()
}

#[test]
fn what_runs_and_has_no_room_may_grow_on_a_loan() {
    let mut state = cluster();
    state.jobs.insert("e".into(), elastic(&["t0", "t1", "t2", "t3"], 900_000));
    // 64 per step: eight nodes at 0.9 for an hour, less 20 s of the 29.6 GPUs' work that four nodes
    // do, less the chance of 0.2 that a tenth is lost.
    assert_eq!(lent(GROWTH, &state), [(64, "research".into(), (207_360_000 - 592_000) * 98 / 100)]);
    assert_eq!(lent("", &state), [], "only where the policy says so");
    let mut firm = state.clone();
    firm.jobs.get_mut("e").unwrap().preemptible = false;
    assert_eq!(lent(GROWTH, &firm), [], "what it would hold could not be taken back");
    // With a free node of its own it grows there.
    let mut room = state.clone();
    room.jobs.insert("e".into(), elastic(&["t0", "t1", "t2"], 900_000));
    assert_eq!(lent(GROWTH, &room), []);
    // Waiting jobs come first.
    let mut waits = state.clone();
    waits.jobs.insert("w".into(), pending(8, 60));
    assert_eq!(lent(GROWTH, &waits).iter().map(|lent| lent.0).collect::<Vec<_>>(), [8]);
    // A minute of one GPU's work is left, less than a second on twelve nodes: the pause costs more.
    let mut ends = state.clone();
    ends.jobs.get_mut("e").unwrap().remaining_work_ms = Some(60_000);
    assert_eq!(lent(GROWTH, &ends), []);
}

#[test]
fn of_several_who_would_grow_it_goes_to_the_owner_who_gains_most() {
    let mut state = cluster();
    state.jobs.insert("a".into(), elastic(&["t0", "t1"], 300_000));
    let mut other = elastic(&["t2", "t3"], 900_000);
    other.owner = "vision".into();
    state.jobs.insert("b".into(), other);
    let vision = state.owners["research"].clone();
    state.owners.insert("vision".into(), vision);
    assert_eq!(
        lent(GROWTH, &state).iter().map(|lent| (lent.0, lent.1.as_str())).collect::<Vec<_>>(),
        [(64, "vision")]
    );
}

#[test]
fn a_loan_to_a_waiting_job_comes_before_giving_growth_back() {
    // It asked for one node and holds four.
    let mut state = cluster();
    state.jobs.insert("e".into(), elastic(&["t0", "t1", "t2", "t3"], 900_000));
    state.jobs.insert("w".into(), pending(8, 60));
    let decided = |policy: &str, parent: Option<&Plan>, state: &ClusterState| {
        let policy = Policy::parse(policy).unwrap();
        let (plan, _) = plan(&policy, state, &FixedForecast::highest(50.0), parent, NOW, 7);
        let kinds = plan.decisions.iter().map(|decision| decision.kind).collect::<Vec<_>>();
        (kinds, plan)
    };
    let act = "[modes]\nlend = \"act\"\nreclaim = \"act\"";
    let (kinds, first) = decided(act, None, &state);
    assert_eq!(kinds, [Kind::Lend]);
    // A person still has to approve it, or somebody rejected it: growth goes back as well.
    assert_eq!(decided("[modes]\nlend = \"suggest\"", None, &state).0, [Kind::Lend, Kind::ResizeJob]);
    assert_eq!(decided(act, Some(&first), &state).0, [Kind::Lend, Kind::ResizeJob]);
    // Once it has come about the job starts on it by itself.
    loan(&mut state, &["s00"]);
    assert_eq!(decided(act, Some(&first), &state).0, []);
    // A job that may not be stopped cannot borrow.
    state.loans.clear();
    state.jobs.get_mut("w").unwrap().preemptible = false;
    assert_eq!(decided(act, None, &state).0, [Kind::ResizeJob]);
}
