//! The promise to each owner.

use super::*;
use crate::action::Adjustment;
use crate::fixture::{elastic, gang, loan, pending};
use crate::state::{OwnerPromise, Waits};

const MINUTE_MS: i64 = 60_000;

/// Before the autopilot acted 95 % waited within an hour; now they wait within so many minutes.
fn waiting(state: &mut ClusterState, owner: &str, minutes: i64) {
    let owner = state.owners.get_mut(owner).unwrap();
    owner.waits = Some(Waits { p95_ms: minutes * MINUTE_MS, jobs: 400 });
    let before = Some(Waits { p95_ms: 60 * MINUTE_MS, jobs: 400 });
    owner.promise = Some(OwnerPromise { before, unmet_ms: 0 });
}

fn quota(from_gpus: u32, to_gpus: u32) -> Action {
    let (owner, pool) = ("research".to_owned(), "train".to_owned());
    action(Change::AdjustReservation(Adjustment::Quota { owner, pool, from_gpus, to_gpus }), Vec::new())
}

/// Whether the promise is what refuses it, whatever else would.
fn breaks(state: &ClusterState, action: &Action) -> bool {
    refusals(&acts(""), state, &on(), action, NOW).iter().any(|refusal| refusal.rule == Rule::Promise)
}

#[test]
fn nothing_more_is_taken_from_an_owner_whose_promise_is_broken() {
    let mut state = cluster();
    state.jobs.insert("gang".into(), gang(&["t0"]));
    let asked = crate::state::Job { gpus: 16, ..elastic(&["t1", "t2"], 500_000) };
    state.jobs.insert("elastic".into(), asked);
    let taking = |state: &ClusterState| {
        [preempt(state, "gang"), resize(state, "elastic", 8), quota(32, 24), lend(&["s00"])]
    };
    waiting(&mut state, "research", 66);
    waiting(&mut state, "serving", 66);
    assert!(taking(&state).iter().all(|action| !breaks(&state, action)), "an hour and a tenth is promised");
    // One of both waits longer: what takes from it is refused, what takes from the other is not.
    waiting(&mut state, "research", 71);
    assert_eq!(taking(&state).map(|action| breaks(&state, &action)), [true, true, true, false]);
    waiting(&mut state, "research", 66);
    waiting(&mut state, "serving", 71);
    assert_eq!(taking(&state).map(|action| breaks(&state, &action)), [false, false, false, true]);
    // What is given to it, and what makes its nodes good again, goes on.
    waiting(&mut state, "research", 71);
    loan(&mut state, &["s00"]);
    for action in [quota(24, 32), drain("t3"), reclaim(&["s00"], 8)] {
        assert!(!breaks(&state, &action), "{action:?}");
    }
    // So does what its job grew by beyond what it asked for.
    state.jobs.get_mut("elastic").unwrap().gpus = 8;
    assert!(!breaks(&state, &resize(&state, "elastic", 8)));
    let measured = acts("[promise]\nkeep = false");
    let refused = refusals(&measured, &state, &on(), &preempt(&state, "gang"), NOW);
    assert!(refused.iter().all(|refusal| refusal.rule != Rule::Promise), "{refused:?}");
}

#[test]
fn growth_waits_for_others_whose_promise_is_broken_only_where_they_wait() {
    let mut state = cluster();
    state.jobs.insert("elastic".into(), elastic(&["t1"], 500_000));
    let mut waits = pending(8, 60);
    waits.owner = "serving".into();
    state.jobs.insert("waits".into(), waits);
    waiting(&mut state, "serving", 71);
    assert!(breaks(&state, &resize(&state, "elastic", 16)));
    state.jobs.get_mut("waits").unwrap().pool = "serve".into();
    assert!(!breaks(&state, &resize(&state, "elastic", 16)), "it waits in another pool");
    // Its own growth is its own gain.
    waiting(&mut state, "research", 71);
    state.jobs.insert("own".into(), pending(8, 60));
    assert!(!breaks(&state, &resize(&state, "elastic", 16)));
}

#[test]
fn an_owner_that_lacked_what_it_lent_lends_no_more() {
    let mut state = cluster();
    let serving = state.owners.get_mut("serving").unwrap();
    serving.promise = Some(OwnerPromise { before: None, unmet_ms: 121 * MINUTE_MS });
    assert_eq!(rule(&acts(""), &state, &on(), &lend(&["s00"])), Some(Rule::Promise));
    let longer = acts("[promise]\nowner_unmet_minutes = { serving = 121 }");
    assert_eq!(rule(&longer, &state, &on(), &lend(&["s00"])), None);
}
