//! Notices: every decision that ends processes of a job that asked for one gives it.

use super::*;
use crate::action::Change;
use crate::fixture::{S, cluster, elastic, gang, loan, pending};
use crate::state::{GrowBy, Health, JobKind, Loan};

/// Notice of the shipped policy.
const NOTICE_MS: i64 = 120_000;

/// Notices of the decisions about jobs, in the plan of a state whose jobs all take notices.
/// Their saves take `save_ms`. Then of the same state whose jobs take none.
fn notices(state: &ClusterState, save_ms: Option<i64>) -> [Vec<(Kind, i64)>; 2] {
    [true, false].map(|on_notice| {
        let mut state = state.clone();
        for job in state.jobs.values_mut() {
            (job.checkpoint.on_notice, job.checkpoint.save_ms) = (on_notice, save_ms);
        }
        let (plan, _) = planned(&state, &FixedForecast::highest(128.0));
        let of_jobs = plan.decisions.iter().filter(|decision| decision.action.change.job().is_some());
        of_jobs.map(|decision| (decision.kind, decision.action.notice_ms)).collect()
    })
}

/// Each decision about a job of the state gives notice, however long a save takes or if nobody
/// knows; and none does if no job takes notices.
fn every_disturbance_is_announced(state: &ClusterState, kinds: &[Kind]) {
    // A save of a whole hour is longer than the notice; the job asked for it all the same.
    for save_ms in [None, Some(1_000), Some(3_600_000)] {
        let [announced, silent] = notices(state, save_ms);
        let expected = |notice_ms| kinds.iter().map(|kind| (*kind, notice_ms)).collect::<Vec<_>>();
        assert_eq!(announced, expected(NOTICE_MS), "{save_ms:?}");
        assert_eq!(silent, expected(0), "{save_ms:?}");
    }
}

/// A job that waits for `gpus`, for which others may be stopped.
fn urgent(gpus: u32) -> crate::state::Job {
    let mut waits = pending(gpus, 4_000);
    (waits.preemptible, waits.priority) = (false, 10);
    waits
}

#[test]
fn before_a_stop_for_a_waiting_job() {
    let mut state = cluster();
    state.jobs.insert("a".into(), gang(&["t0", "t1"]));
    state.jobs.insert("b".into(), gang(&["t2", "t3"]));
    state.jobs.insert("w".into(), urgent(16));
    every_disturbance_is_announced(&state, &[Kind::Preempt]);
}

#[test]
fn before_a_shrink() {
    let mut state = cluster();
    state.jobs.insert("e".into(), elastic(&["t0", "t1"], 300_000));
    state.jobs.insert("g".into(), gang(&["t2", "t3"]));
    state.jobs.insert("w".into(), urgent(8));
    every_disturbance_is_announced(&state, &[Kind::ResizeJob]);
}

#[test]
fn before_a_restart_at_a_larger_size_and_not_before_growth_in_place() {
    let mut state = cluster();
    state.jobs.insert("a".into(), elastic(&["t0"], 900_000));
    let in_place = [vec![(Kind::ResizeJob, 0)], vec![(Kind::ResizeJob, 0)]];
    assert_eq!(notices(&state, None), in_place, "none of its processes ends");
    let JobKind::Elastic { grow, .. } = &mut state.jobs.get_mut("a").unwrap().kind else { panic!() };
    *grow = GrowBy::Requeue;
    every_disturbance_is_announced(&state, &[Kind::ResizeJob]);
}

#[test]
fn before_jobs_leave_a_loan_and_again_when_it_is_overdue() {
    let mut state = cluster();
    loan(&mut state, &["s00", "s01", "s02"]);
    state.jobs.insert("a".into(), gang(&["s00"]));
    state.jobs.insert("e".into(), elastic(&["s01", "s02"], 900_000));
    let share = state.owners.get_mut("serving").unwrap().shares.get_mut("serve").unwrap();
    share.demand_gpus = Some(128);
    every_disturbance_is_announced(&state, &[Kind::Preempt, Kind::Preempt]);
    let mut overdue = state.clone();
    let lent: &mut Loan = overdue.loans.get_mut("lend-1").unwrap();
    lent.reclaiming_nodes = lent.nodes.clone();
    (lent.reclaiming_gpus, lent.reclaiming_since_us) = (24, Some(NOW - 600 * S));
    every_disturbance_is_announced(&overdue, &[Kind::Preempt, Kind::Preempt]);
}

#[test]
fn before_a_gang_leaves_a_slow_node_and_the_node_itself_gets_none() {
    let mut state = cluster();
    let mut job = gang(&["s00", "s01", "s02", "s03"]);
    job.expected_end_us = Some(NOW + 40_000 * S);
    state.jobs.insert("g".into(), job);
    state.nodes.get_mut("s02").unwrap().health = Health { slowdown_ppm: Some(100_000), ..Health::default() };
    every_disturbance_is_announced(&state, &[Kind::Preempt]);
    state.jobs.get_mut("g").unwrap().checkpoint.on_notice = true;
    let (plan, _) = planned(&state, &FixedForecast::highest(128.0));
    assert_eq!(of_kind(&plan, Kind::DrainNode)[0].action.notice_ms, 0);
}

#[test]
fn before_a_small_job_is_moved_for_a_gang() {
    let part = |node: &str, gpus: u32| crate::state::Job {
        gpus,
        placement: [(node.to_owned(), gpus)].into(),
        ..gang(&[])
    };
    let mut state = cluster();
    state.jobs.insert("a".into(), gang(&["t0"]));
    state.jobs.insert("b".into(), part("t1", 2));
    state.jobs.insert("c".into(), part("t2", 6));
    state.jobs.insert("d".into(), part("t3", 4));
    state.jobs.insert("w".into(), pending(8, 900));
    every_disturbance_is_announced(&state, &[Kind::Preempt]);
}

#[test]
fn the_notice_is_the_policys_and_the_action_stands_that_much_longer() {
    let mut state = cluster();
    let mut job = gang(&["t0", "t1", "t2", "t3"]);
    job.checkpoint.save_ms = None;
    state.jobs.insert("a".into(), job);
    state.jobs.insert("w".into(), urgent(16));
    let stop = |state: &ClusterState, policy: &str| {
        let policy = Policy::parse(policy).unwrap();
        let (plan, _) = plan(&policy, state, &FixedForecast::highest(128.0), None, NOW, 7);
        let decision = of_kind(&plan, Kind::Preempt)[0];
        assert!(matches!(decision.action.change, Change::Preempt { .. }));
        (decision.action.notice_ms, decision.action.expires_us)
    };
    let (none, expires_us) = stop(&state, "");
    assert_eq!(none, 0);
    state.jobs.get_mut("a").unwrap().checkpoint.on_notice = true;
    assert_eq!(stop(&state, "[preempt]\nnotice_s = 300"), (300_000, expires_us + 300 * S));
    assert_eq!(stop(&state, "[preempt]\nnotice_s = 0").0, 0, "the site gives no notices");
}
