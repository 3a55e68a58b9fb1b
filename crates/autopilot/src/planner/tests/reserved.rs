//! Nodes that are reserved for one owner of a pool that others use too.

use super::*;
use crate::action::Change;
use crate::fixture::{S, cluster, elastic, gang, pending};
use crate::state::{Job, Owner, Reservation, Share, Writer};

/// An elastic job of `research` on the first of four nodes, which `vision` uses too; one node is
/// reserved.
fn shared(reserved_for: &str, start_s: i64) -> ClusterState {
    let mut state = cluster();
    let share = Share { quota_gpus: 32, ..Share::default() };
    let vision = Owner { shares: [("train".to_owned(), share)].into(), ..Owner::default() };
    state.owners.insert("vision".into(), vision);
    state.jobs.insert("a".into(), elastic(&["t0"], 900_000));
    let reservation = Reservation {
        owner: reserved_for.into(),
        pool: "train".into(),
        gpus: 8,
        nodes: ["t3".to_owned()].into(),
        start_us: NOW + start_s * S,
        end_us: Some(NOW + (start_s + 7_200) * S),
        writer: Writer::Other,
    };
    state.reservations.insert("r".into(), reservation);
    state
}

fn grown(state: &ClusterState) -> Option<u32> {
    let (plan, _) = planned(state, &FixedForecast::highest(128.0));
    plan.decisions.iter().find_map(|decision| match decision.action.change {
        Change::ResizeJob { to_gpus, .. } => Some(to_gpus),
        _ => None,
    })
}

#[test]
fn nobody_grows_onto_nodes_that_are_reserved_now_or_soon() {
    assert_eq!(grown(&shared("vision", -60)), Some(24));
    assert_eq!(grown(&shared("vision", 3_600)), Some(24), "it begins while the growth would last");
    assert_eq!(grown(&shared("vision", 48 * 3_600)), Some(32));
    assert_eq!(grown(&shared("vision", -7_200)), Some(32), "it is over");
    assert_eq!(grown(&shared("operators", -60)), Some(24), "they have no share");
    assert_eq!(grown(&shared("research", -60)), Some(24), "others use the pool");
    let mut alone = shared("research", -60);
    alone.owners.remove("vision");
    assert_eq!(grown(&alone), Some(32), "it keeps nothing from anybody");
}

#[test]
fn room_is_made_for_no_job_that_starts_in_a_reservation() {
    let waits = |reserved_for: &str, start_s, gpus| {
        let mut state = shared(reserved_for, start_s);
        state.jobs.insert("a".into(), gang(&["t0", "t1", "t2"]));
        let urgent = Job { owner: "vision".into(), preemptible: false, priority: 9, ..pending(8, 7_200) };
        state.jobs.insert("w".into(), urgent);
        let mut twice = state.reservations["r"].clone();
        twice.nodes.insert("t2".into());
        state.reservations.insert("overlaps".into(), twice);
        state.jobs.get_mut("w").unwrap().gpus = gpus;
        let (plan, report) = planned(&state, &FixedForecast::highest(128.0));
        let starts =
            noops(&report, Kind::Preempt).iter().any(|why| why.contains("a reservation of its owner"));
        (of_kind(&plan, Kind::Preempt).len(), starts)
    };
    assert_eq!(waits("vision", -60, 8), (0, true), "the scheduler starts it on the reserved node");
    assert_eq!(waits("operators", -60, 8), (1, false), "that node is not for it");
    assert_eq!(waits("vision", 1_800, 8), (1, false), "the reservation has not begun");
    // One node is free, in both of two reservations.
    assert_eq!(waits("vision", -60, 16), (1, false));
}

#[test]
fn a_node_that_is_reserved_is_not_lent() {
    let mut state = shared("operators", -60);
    state.jobs.extend((0..25).map(|at| (format!("w{at:02}"), pending(8, 60))));
    let lent = |state: &ClusterState| {
        let (plan, _) = planned(state, &FixedForecast::highest(50.0));
        let nodes = |decision: &&Decision| match &decision.action.change {
            Change::Lend { nodes, .. } => nodes.len(),
            _ => 0,
        };
        of_kind(&plan, Kind::Lend).iter().map(nodes).sum::<usize>()
    };
    assert_eq!(lent(&state), 8);
    let kept = state.reservations.get_mut("r").unwrap();
    kept.nodes = (0..14).map(|at| format!("s{at:02}")).collect();
    assert_eq!(lent(&state), 2, "of sixteen nodes two are not reserved");
    state.reservations.get_mut("r").unwrap().owner = "serving".into();
    assert_eq!(lent(&state), 8, "its own standing reservation is what it lends");
}

#[test]
fn growth_is_owed_where_the_only_free_node_is_reserved_for_another_owner() {
    let mut state = shared("vision", -60);
    // Giving a node back gains nothing: each GPU does the work of one.
    state.jobs.insert("a".into(), elastic(&["t0", "t1"], 1_000_000));
    state.jobs.insert("g".into(), gang(&["t2"]));
    state.jobs.insert("w".into(), pending(8, 0));
    assert_eq!(grown(&state), Some(8));
}
