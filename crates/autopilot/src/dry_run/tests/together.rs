//! What two actions break together, and neither alone.

use super::*;
use crate::action::Adjustment;
use crate::fixture::{elastic, gang};
use crate::state::{Reservation, Writer};

#[test]
fn two_actions_do_not_take_the_same_free_gpus() {
    let mut state = cluster();
    state.jobs.insert("a".into(), elastic(&["t0"], 900_000));
    state.jobs.insert("b".into(), elastic(&["t1"], 900_000));
    let (first, second) = (grow("g1", &state, "a", 24), grow("g2", &state, "b", 24));
    for alone in [&first, &second] {
        assert!(run(&state, &[plain(alone)]).refused.is_empty(), "16 GPUs are free");
    }
    let both = run(&state, &[plain(&first), plain(&second)]);
    let why = "there is no room for 16 more GPUs of job b where it may run: 0 of train are free, after g1";
    assert_eq!(refused(&both, "g2"), why);
    assert_eq!(goes_on(&both, "g1").jobs, [("a".into(), 24)].into(), "the rest of the batch stays");
    assert_eq!(goes_on(&both, "g1").free_gpus, [("train".into(), 0)].into());
    // What is under way and not visible yet counts as well.
    let behind = run_behind(&state, &[first], &[plain(&second)]);
    assert_eq!(refused(&behind, "g2"), why.trim_end_matches(", after g1"));
}

#[test]
fn what_a_job_still_leaves_is_no_room_for_growth() {
    let mut state = cluster();
    state.jobs.insert("a".into(), elastic(&["t0"], 900_000));
    state.jobs.insert("b".into(), elastic(&["t1", "t2", "t3"], 900_000));
    let (shrinks, grows) = (shrink("s", &state, "b", &["t1"]), grow("g", &state, "a", 24));
    let both = run(&state, &[plain(&shrinks), plain(&grows)]);
    assert!(refused(&both, "g").contains("0 of train are free"), "{both:?}");
    assert_eq!(goes_on(&both, "s").jobs, [("b".into(), 8)].into());
    assert_eq!(goes_on(&both, "s").free_gpus, [("train".into(), 16)].into(), "it is free in the end");
    // A waiting job starts there.
    state.jobs.insert("waits".into(), crate::fixture::pending(16, 60));
    let alone = run(&state, &[plain(&shrinks)]);
    assert_eq!(goes_on(&alone, "s").starts, [("waits".into(), 16)].into());
}

#[test]
fn owners_stay_within_their_limits() {
    let mut state = cluster();
    state.owners.get_mut("research").unwrap().shares.get_mut("train").unwrap().limit_gpus = Some(24);
    state.jobs.insert("a".into(), elastic(&["t0"], 900_000));
    state.jobs.insert("b".into(), elastic(&["t1"], 900_000));
    let (first, second) = (grow("g1", &state, "a", 16), grow("g2", &state, "b", 16));
    let both = run(&state, &[plain(&first), plain(&second)]);
    let why = "research would use 32 GPUs of train, 24 before and 8 more; its limit is 24, after g1";
    assert_eq!(refused(&both, "g2"), why);
    goes_on(&both, "g1");
    // A lower limit that comes first counts, whatever the observation says.
    let cut =
        Adjustment::Quota { owner: "research".into(), pool: "train".into(), from_gpus: 32, to_gpus: 16 };
    let cut = action("q", Change::AdjustReservation(cut));
    assert!(refused(&run(&state, &[plain(&cut), plain(&first)]), "g1").contains("its limit is 16"));
}

#[test]
fn lenders_keep_what_they_need_when_quota_and_loan_go_together() {
    let state = cluster();
    let cut = |to_gpus| {
        let (owner, pool) = ("serving".to_owned(), "serve".to_owned());
        action("q", Change::AdjustReservation(Adjustment::Quota { owner, pool, from_gpus: 128, to_gpus }))
    };
    let loan = lend("l", &["s10", "s11", "s12", "s13"]);
    let low = cut(64);
    for alone in [&loan, &low] {
        assert!(run(&state, &[plain(alone)]).refused.is_empty());
    }
    let why = "serving would keep 32 of 64 GPUs of serve with 32 lent; 40 must stay, after l";
    assert_eq!(refused(&run(&state, &[plain(&loan), plain(&low)]), "q"), why);
    let why = "serving would keep 32 of its 64 GPUs of serve with 32 lent; 40 must stay, after q";
    assert_eq!(refused(&run(&state, &[plain(&low), plain(&loan)]), "l"), why);
    let enough = cut(72);
    assert!(run(&state, &[plain(&loan), plain(&enough)]).refused.is_empty());
}

#[test]
fn a_lent_node_is_free_and_lent_once() {
    let state = cluster();
    let (first, second) = (lend("l1", &["s10", "s11"]), lend("l2", &["s11", "s12"]));
    let both = run(&state, &[plain(&first), plain(&second)]);
    assert_eq!(refused(&both, "l2"), "node s11 is lent to research, after l1");
    assert_eq!(
        goes_on(&both, "l1").nodes["s10"],
        NodeUse { takes_jobs: true, lent_to: Some("research".into()) }
    );
    let mut state = cluster();
    let home = Job { pool: "serve".into(), owner: "serving".into(), ..elastic(&["s10"], 900_000) };
    state.jobs.insert("a".into(), home);
    let mut grows = grow("g", &state, "a", 16);
    if let Change::ResizeJob { add_nodes, .. } = &mut grows.change {
        add_nodes.insert("s11".into());
    }
    let both = run(&state, &[plain(&grows), plain(&lend("l1", &["s11"]))]);
    assert_eq!(refused(&both, "l1"), "8 GPUs of node s11 are held by jobs that nobody moves, after g");
    let both = run(&state, &[plain(&drain("d", "s11")), plain(&lend("l1", &["s11"]))]);
    assert_eq!(refused(&both, "l1"), "node s11 takes no jobs, after d");
}

#[test]
fn pools_keep_their_floor_and_what_is_reserved_after_the_whole_batch() {
    let mut state = cluster();
    state.pools.get_mut("train").unwrap().floor_gpus = 20;
    let (first, second) = (drain("d1", "t0"), drain("d2", "t1"));
    let both = run(&state, &[plain(&first), plain(&second)]);
    assert_eq!(refused(&both, "d2"), "pool train would have 16 GPUs in service, 20 must stay, after d1");
    assert_eq!(goes_on(&both, "d1").nodes["t0"], NodeUse { takes_jobs: false, lent_to: None });

    let mut state = cluster();
    let reserve = |id: &str, to_gpus| {
        let (name, owner, pool) = (format!("r-{id}"), "research".to_owned(), "train".to_owned());
        let (start_us, end_us) = (NOW + 600 * S, NOW + 7_200 * S);
        let what = Adjustment::Reservation { name, owner, pool, from_gpus: 0, to_gpus, start_us, end_us };
        action(id, Change::AdjustReservation(what))
    };
    let (most, more) = (reserve("r1", 24), reserve("r2", 16));
    let both = run(&state, &[plain(&most), plain(&more)]);
    assert_eq!(refused(&both, "r2"), "40 GPUs of train would be reserved, and 32 are in service, after r1");
    let both = run(&state, &[plain(&most), plain(&first), plain(&second)]);
    assert_eq!(
        refused(&both, "d2"),
        "24 GPUs of train would be reserved, and 16 are in service, after r1, d1"
    );
    // A pool that is short already may still lose a bad node: that is for the guard to say.
    let found = Reservation {
        owner: "research".into(),
        pool: "train".into(),
        gpus: 32,
        nodes: [].into(),
        start_us: NOW + 600 * S,
        end_us: None,
        writer: Writer::Other,
    };
    state.reservations.insert("theirs".into(), found);
    assert!(run(&state, &[plain(&first)]).refused.is_empty());
}

#[test]
fn a_reservation_keeps_others_off_its_nodes_and_lets_its_owner_grow() {
    let mut state = cluster();
    state.jobs.insert("a".into(), elastic(&["t0"], 900_000));
    state.jobs.insert("b".into(), Job { owner: "other".into(), ..elastic(&["t1"], 900_000) });
    let (owner, pool) = ("research".to_owned(), "train".to_owned());
    let nodes = ["t2".to_owned(), "t3".to_owned()].into();
    let (start_us, end_us, writer) = (NOW - S, Some(NOW + 60 * S), Writer::Other);
    let found = Reservation { owner, pool, gpus: 16, nodes, start_us, end_us, writer };
    state.reservations.insert("r".into(), found);
    let (ours, theirs) = (grow("g1", &state, "a", 16), grow("g2", &state, "b", 16));
    let both = run(&state, &[plain(&theirs), plain(&ours)]);
    let why = "there is no room for 8 more GPUs of job b where it may run: 16 of train are free, but not \
               together or not for it";
    assert_eq!(refused(&both, "g2"), why);
    goes_on(&both, "g1");
    state.reservations.get_mut("r").unwrap().end_us = Some(NOW);
    assert!(run(&state, &[plain(&theirs)]).refused.is_empty(), "it is over");
}

#[test]
fn a_job_is_stopped_once() {
    let mut state = cluster();
    state.jobs.insert("a".into(), gang(&["t0"]));
    let (first, second) = (preempt("p1", &state, "a"), preempt("p2", &state, "a"));
    let both = run(&state, &[plain(&first), plain(&second)]);
    assert_eq!(refused(&both, "p2"), "job a holds no GPU any more: another action stops it, after p1");
}
