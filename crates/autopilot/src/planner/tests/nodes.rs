//! Draining and returning nodes.

use super::*;
use crate::action::Change;
use crate::fixture::{S, cluster, gang};
use crate::state::{Drain, DrainedBy, Health};

fn drained(plan: &Plan) -> Vec<Object> {
    of_kind(plan, Kind::DrainNode).iter().map(|decision| decision.action.change.object()).collect()
}

fn bad(bad_ppm: u32, families: &[&str]) -> Health {
    Health {
        bad_ppm: Some(bad_ppm),
        families: families.iter().map(|family| (*family).to_owned()).collect(),
        ..Health::default()
    }
}

#[test]
fn a_node_is_drained_on_two_kinds_of_evidence_or_one_fatal_signal() {
    let mut state = cluster();
    state.nodes.get_mut("s01").unwrap().health = bad(970_000, &["ecc", "xid"]);
    state.nodes.get_mut("s05").unwrap().health = bad(970_000, &["xid"]);
    state.nodes.get_mut("s09").unwrap().health = bad(900_000, &["ecc", "xid"]);
    let (plan, report) = planned(&state, &FixedForecast::highest(128.0));
    assert_eq!(drained(&plan), [Object::Node("s01".into())]);
    // p = 0.97: 8 GPUs away for 8 hours against 0.03 of that; nobody runs on it.
    let predicted = of_kind(&plan, Kind::DrainNode)[0].predicted;
    assert_eq!((predicted.benefit_gpu_ms, predicted.cost_gpu_ms), (223_488_000, 6_912_000));
    assert_eq!(noops(&report, Kind::DrainNode).len(), 2);
    // A fatal signal in another rack goes first, and racks are drained one at a time.
    state.nodes.get_mut("s05").unwrap().health.fatal = true;
    let (plan, report) = planned(&state, &FixedForecast::highest(128.0));
    assert_eq!(drained(&plan), [Object::Node("s05".into())]);
    assert!(noops(&report, Kind::DrainNode).iter().any(|why| why.contains("nodes of other racks")));
}

#[test]
fn pools_keep_their_floors() {
    let mut state = cluster();
    state.nodes.get_mut("t0").unwrap().health = Health { fatal: true, ..Health::default() };
    let (plan, report) = planned(&state, &FixedForecast::highest(128.0));
    assert_eq!(drained(&plan), [], "24 of 32 GPUs are less than eight tenths");
    assert!(noops(&report, Kind::DrainNode)[0].starts_with("pool train would fall below its floor"));
}

#[test]
fn a_straggler_goes_when_what_is_left_outweighs_moving() {
    let mut state = cluster();
    let mut job = gang(&["s00", "s01", "s02", "s03"]);
    // Moving loses 32 x 660 s = 21,120 GPU-s. A slowdown of 0.1 over 10,000 s costs 32,000 GPU-s.
    job.expected_end_us = Some(NOW + 10_000 * S);
    state.jobs.insert("g".into(), job);
    state.nodes.get_mut("s02").unwrap().health.slowdown_ppm = Some(100_000);
    let (plan, _) = planned(&state, &FixedForecast::highest(128.0));
    assert!(plan.decisions.is_empty(), "at the cautious ends it is 21,760 against 27,878");
    state.jobs.get_mut("g").unwrap().expected_end_us = Some(NOW + 20_000 * S);
    let (plan, _) = planned(&state, &FixedForecast::highest(128.0));
    assert_eq!(drained(&plan), [Object::Node("s02".into())]);
    let moved = of_kind(&plan, Kind::Preempt)[0];
    assert_eq!(moved.action.after, [plan.decisions[0].action.id.clone()]);
    assert_eq!(moved.serves, Some(Object::Node("s02".into())));
    assert_eq!((moved.predicted.benefit_gpu_ms, moved.predicted.cost_gpu_ms), (64_000_000, 21_120_000));
    // Drained, but the gang is still there, so the move is tried again.
    let by = DrainedBy::Autopilot { action: "drain_node-1".into(), generation: 2 };
    state.nodes.get_mut("s02").unwrap().drain = Some(Drain { by, since_us: None, reason: "slow".into() });
    let (plan, _) = planned(&state, &FixedForecast::highest(128.0));
    assert_eq!(plan.decisions.len(), 1);
    assert_eq!(plan.decisions[0].action.change, Change::Preempt { job: "g".into(), frees_gpus: 32 });
    state.nodes.get_mut("s02").unwrap().drain = None;
    state.jobs.get_mut("g").unwrap().opt_in = false;
    assert!(planned(&state, &FixedForecast::highest(128.0)).0.decisions.is_empty());
}

#[test]
fn only_our_own_drains_are_undone_and_only_when_healthy() {
    let mut state = cluster();
    let drain = |by| Some(Drain { by, since_us: Some(NOW - 3600 * S), reason: "disk".into() });
    let ours = || DrainedBy::Autopilot { action: "drain_node-1".into(), generation: 2 };
    state.nodes.get_mut("s01").unwrap().drain = drain(DrainedBy::Other);
    let well = |since_s: i64| Health {
        bad_ppm: Some(10_000),
        checked_good_us: Some(NOW - since_s * S),
        ..Health::default()
    };
    state.nodes.get_mut("s01").unwrap().health = well(7_200);
    let node = state.nodes.get_mut("s02").unwrap();
    (node.drain, node.health) = (drain(ours()), well(599));
    let (plan, report) = planned(&state, &FixedForecast::highest(128.0));
    assert!(plan.decisions.is_empty());
    let why = noops(&report, Kind::ReturnNode);
    assert_eq!(
        why,
        ["drained by someone else: disk", "health checks have passed for 599 s; the policy requires 600 s"]
    );
    state.nodes.get_mut("s02").unwrap().health = well(600);
    let (plan, _) = planned(&state, &FixedForecast::highest(128.0));
    let expected = Change::ReturnNode { node: "s02".into(), drained_by: "drain_node-1".into() };
    assert_eq!(plan.decisions[0].action.change, expected);
    state.nodes.get_mut("s02").unwrap().health.bad_ppm = None;
    let (plan, _) = planned(&state, &FixedForecast::highest(128.0));
    assert!(plan.decisions.is_empty(), "unknown is not well");
}
