//! What broken promises forbid.

use super::*;
use crate::fixture::{S, cluster, gang, loan, pending};
use crate::guard::{History, KillSwitch, Rule, refusals};
use crate::state::{Job, OwnerPromise, Waits};

const MINUTE_MS: i64 = 60_000;

/// 95 % of the owner's jobs waited within an hour before; now they do within two.
fn break_promise(state: &mut ClusterState, owner: &str) {
    let waits = |minutes| Some(Waits { p95_ms: minutes * MINUTE_MS, jobs: 400 });
    let entry = state.owners.entry(owner.to_owned()).or_default();
    entry.waits = waits(120);
    entry.promise = Some(OwnerPromise { before: waits(60), unmet_ms: 0 });
}

/// Four nodes held by stoppable gangs, two of `vision` and two of `research`, and a job of higher
/// priority that waits for one node. Those of `vision` lose less.
fn full() -> ClusterState {
    let mut state = cluster();
    for (id, node, owner) in
        [("v0", "t0", "vision"), ("v1", "t1", "vision"), ("r2", "t2", "research"), ("r3", "t3", "research")]
    {
        let lost = Job { owner: owner.into(), preemptible: true, ..gang(&[node]) };
        state.jobs.insert(id.into(), lost);
    }
    for id in ["r2", "r3"] {
        state.jobs.get_mut(id).unwrap().checkpoint.requeue_ms = Some(3 * MINUTE_MS);
    }
    let waits = Job { preemptible: false, priority: 10, ..pending(8, 10_000) };
    state.jobs.insert("waits".into(), waits);
    state
}

fn stopped(plan: &Plan) -> Vec<&str> {
    let stops = of_kind(plan, Kind::Preempt).into_iter();
    stops.filter_map(|decision| decision.action.change.job()).map(String::as_str).collect()
}

#[test]
fn room_is_made_by_another_owner_where_a_promise_is_broken() {
    let forecast = FixedForecast::highest(128.0);
    let mut state = full();
    assert_eq!(stopped(&planned(&state, &forecast).0), ["v0"], "it loses least");
    break_promise(&mut state, "vision");
    assert_eq!(stopped(&planned(&state, &forecast).0), ["r2"]);
    break_promise(&mut state, "research");
    let (plan, report) = planned(&state, &forecast);
    assert!(stopped(&plan).is_empty());
    let why = noops(&report, Kind::Preempt);
    assert!(
        why.iter()
            .any(|why| why.ends_with("nothing is taken from research, vision, whose promise is broken")),
        "{why:?}"
    );
}

#[test]
fn a_lender_whose_promise_is_broken_neither_lends_nor_renews() {
    let mut state = full();
    state.jobs.get_mut("waits").unwrap().preemptible = true;
    let forecast = FixedForecast::highest(8.0);
    assert_eq!(of_kind(&planned(&state, &forecast).0, Kind::Lend).len(), 1);
    break_promise(&mut state, "serving");
    let (plan, report) = planned(&state, &forecast);
    assert!(of_kind(&plan, Kind::Lend).is_empty());
    let why = noops(&report, Kind::Lend);
    assert!(why.iter().any(|why| why.contains("the promise to serving is broken")), "{why:?}");
    // A loan in use that ends soon: renewed, or taken back.
    let mut state = cluster();
    loan(&mut state, &["s00"]);
    state.loans.get_mut("lend-1").unwrap().expires_us = NOW + 1_800 * S;
    state.jobs.insert("on".into(), Job { preemptible: true, ..gang(&["s00"]) });
    let kinds = |state: &ClusterState| {
        let plan = planned(state, &forecast).0;
        [Kind::Lend, Kind::Reclaim].map(|kind| of_kind(&plan, kind).len())
    };
    assert_eq!(kinds(&state), [1, 0]);
    break_promise(&mut state, "serving");
    assert_eq!(kinds(&state), [0, 1]);
}

/// Whatever promises are broken, the guard finds none of them in what a plan decides.
#[test]
fn no_plan_asks_for_what_a_promise_forbids() {
    let policy = Policy::auto();
    let history = History { switch: KillSwitch::On, ..History::default() };
    let owners = ["research", "vision", "serving"];
    let (mut with, mut without) = (0, 0);
    for seed in 0..600u64 {
        let (mut state, says) = super::whole::random(seed);
        for (at, job) in state.jobs.values_mut().enumerate() {
            job.owner = owners[(seed as usize + at) % 2].into();
        }
        without += plan(&policy, &state, &says, None, NOW, seed).0.decisions.len();
        for (at, owner) in owners.into_iter().enumerate() {
            if seed >> at & 1 == 1 {
                break_promise(&mut state, owner);
            }
        }
        let (plan, _) = plan(&policy, &state, &says, None, NOW, seed);
        with += plan.decisions.len();
        for decision in &plan.decisions {
            let refused = refusals(&policy, &state, &history, &decision.action, NOW);
            let promise = refused.iter().find(|refusal| refusal.rule == Rule::Promise);
            assert!(promise.is_none(), "seed {seed}: {promise:?}");
        }
    }
    assert!(with > 500 && with < without, "{with} of {without} decisions are left");
}
