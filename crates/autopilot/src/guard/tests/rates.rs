//! Budgets, breaker and rests.

use super::*;
use crate::fixture::{elastic, gang, loan};

fn with(past: Vec<PastAction>) -> History {
    History { past, ..on() }
}

/// Drains of other nodes, all in the rack of s00.
fn drains(state: &ClusterState, ago_s: &[i64]) -> Vec<PastAction> {
    ago_s.iter().map(|ago| past(&drain("s01"), state, *ago, ActionStatus::Verified)).collect()
}

#[test]
fn budgets_bound_an_hour_a_day_and_gpus() {
    let state = cluster();
    let few = acts("[budgets.drain_node]\nper_hour = 2\nper_day = 4\n[blast]\nfleet_share = 1.0");
    let history = |ago: &[i64]| with(drains(&state, ago));
    assert_eq!(rule(&few, &state, &history(&[3599]), &drain("s00")), None);
    assert_eq!(rule(&few, &state, &history(&[3598, 3599]), &drain("s00")), Some(Rule::Budget));
    assert_eq!(rule(&few, &state, &history(&[3600, 3599]), &drain("s00")), None, "an hour is over");
    assert_eq!(rule(&few, &state, &history(&[9000, 9001, 9002, 9003]), &drain("s00")), Some(Rule::Budget));
    let small = acts("[budgets.lend]\ngpus_per_hour = 24\ngpus_share_per_hour = 0.0");
    let lent = with(vec![past(&lend(&["s01", "s02"]), &state, 400, ActionStatus::Verified)]);
    assert_eq!(rule(&small, &state, &lent, &lend(&["s03"])), None);
    assert_eq!(rule(&small, &state, &lent, &lend(&["s03", "s04"])), Some(Rule::Budget));
    // A quarter of the 160 GPUs is 40.
    let share = acts("[budgets.lend]\ngpus_per_hour = 24\ngpus_share_per_hour = 0.25");
    assert_eq!(rule(&share, &state, &lent, &lend(&["s03", "s04", "s05"])), None);
    assert_eq!(rule(&share, &state, &lent, &lend(&["s03", "s04", "s05", "s06"])), Some(Rule::Budget));
}

/// Extends the loan of s00 and s01 until `more_s` from now.
fn extend(nodes: &[&str], more_s: i64) -> Action {
    let mut action = lend(nodes);
    let Change::Lend { extends, expires_us, .. } = &mut action.change else { panic!() };
    (*extends, *expires_us) = (Some("lend-1".into()), NOW + more_s * S);
    action.preconditions = vec![Precondition::LoanIs { loan: "lend-1".into(), gpus: 16 }];
    action
}

#[test]
fn extending_a_loan_uses_no_budget_and_happens_once_per_term() {
    let mut state = cluster();
    loan(&mut state, &["s00", "s01"]);
    state.loans.get_mut("lend-1").unwrap().expires_us = NOW + 1_800 * S;
    let none = acts("[budgets.lend]\nper_hour = 1");
    let spent = with(vec![past(&lend(&["s05"]), &state, 2_000, ActionStatus::Verified)]);
    assert_eq!(rule(&none, &state, &spent, &lend(&["s06"])), Some(Rule::Budget));
    assert_eq!(rule(&none, &state, &spent, &extend(&["s00", "s01"], 3_600)), None);
    // Nor does an earlier one.
    let before = with(vec![past(&extend(&["s00", "s01"], 3_600), &state, 2_000, ActionStatus::Verified)]);
    assert_eq!(rule(&none, &state, &before, &lend(&["s06"])), None);
    assert_eq!(
        rule(&none, &state, &on(), &extend(&["s00", "s01"], 3_601)),
        Some(Rule::Dwell),
        "a term at most"
    );
    let mut longer = extend(&["s00", "s01"], 3_600);
    let Change::Lend { expires_us, .. } = &mut longer.change else { panic!() };
    *expires_us += 1;
    assert_eq!(rule(&none, &state, &on(), &longer), Some(Rule::Dwell), "seconds are not rounded");
    let going = with(vec![past(&extend(&["s00", "s01"], 3_600), &state, 60, ActionStatus::UnderWay)]);
    assert_eq!(rule(&none, &state, &going, &extend(&["s00", "s01"], 3_600)), Some(Rule::Busy));
    let other = [extend(&["s00"], 3_600), extend(&["s00", "s01", "s02"], 3_600)];
    other.iter().for_each(|other| assert_eq!(rule(&none, &state, &on(), other), Some(Rule::Selection)));
    state.loans.get_mut("lend-1").unwrap().expires_us += 1;
    assert_eq!(rule(&none, &state, &on(), &extend(&["s00", "s01"], 3_600)), Some(Rule::Dwell), "too early");
}

#[test]
fn a_lender_reverses_by_share_of_quota_and_not_when_a_loan_lasted_its_term() {
    let mut state = cluster();
    loan(&mut state, &["s00", "s01", "s02", "s03"]);
    let shares = |lasted_us: Option<i64>, turns: i64| {
        let turn = |at: i64| {
            let back = PastAction {
                lasted_us,
                ..past(&reclaim(&["s00"], 32), &state, 80_000 - 2_000 * at, ActionStatus::Verified)
            };
            let out = past(&lend(&["s00"]), &state, 79_000 - 2_000 * at, ActionStatus::Verified);
            [back, out].map(|past| PastAction { gpus: 64, ..past })
        };
        with((0..turns).flat_map(turn).collect())
    };
    // 64 of 128 GPUs come and go, half a reversal each time; three are allowed. Back, out, back,
    // out ...: 2 n - 1 halves, and one more of 8 GPUs is a sixteenth.
    let young = Some(1_800 * S);
    let ask = |history: &History| {
        rule(&acts(""), &state, history, &reclaim(&["s00"], 32)).is_none()
            && rule(&acts(""), &state, history, &lend(&["s08"])).is_none()
    };
    assert!(ask(&shares(young, 3)), "two and a half");
    assert_eq!(rule(&acts(""), &state, &shares(young, 4), &lend(&["s08"])), Some(Rule::Oscillation));
    assert!(ask(&shares(Some(3_600 * S), 40)), "each had lasted its term");
}

/// An elastic job on one node of 8 GPUs, which asked for `gpus`. Three times it grew to a second
/// node and gave it back after `held_s` seconds.
fn grown_thrice(gpus: u32, held_s: i64) -> (ClusterState, History) {
    let mut small = cluster();
    small.jobs.insert("e".into(), crate::state::Job { gpus, ..elastic(&["t0"], 500_000) });
    let cycle = |at: i64| {
        let back_s = 70_000 - 10_000 * at;
        let mut grown = small.clone();
        let resized_us = Some(NOW - (back_s + held_s) * S);
        let job = crate::state::Job { gpus, resized_us, ..elastic(&["t0", "t1"], 500_000) };
        grown.jobs.insert("e".into(), job);
        let grow = past(&resize(&small, "e", 16), &small, back_s + held_s, ActionStatus::Verified);
        [grow, past(&resize(&grown, "e", 8), &grown, back_s, ActionStatus::Verified)]
    };
    let history = with((0..3).flat_map(cycle).collect());
    (small, history)
}

#[test]
fn growth_that_lasted_as_expected_is_given_back_without_counting_as_a_reversal() {
    let grows = |policy: &Policy, asked: u32, held_s: i64| {
        let (state, history) = grown_thrice(asked, held_s);
        rule(policy, &state, &history, &resize(&state, "e", 16))
    };
    assert_eq!(grows(&acts(""), 8, 3_600), None);
    assert_eq!(grows(&acts(""), 8, 3_599), Some(Rule::Oscillation), "five reversals, three are allowed");
    assert_eq!(grows(&acts("[resize]\nhold_s = 4000"), 8, 3_600), Some(Rule::Oscillation));
    assert_eq!(grows(&acts(""), 16, 3_600), Some(Rule::Oscillation), "this took what it had asked for");
}

#[test]
fn few_actions_run_at_once_and_one_per_object() {
    let mut state = cluster();
    let history =
        with((1..3).map(|i| past(&drain("s01"), &state, 2000 + i, ActionStatus::UnderWay)).collect());
    assert_eq!(rule(&acts(""), &state, &history, &drain("s00")), Some(Rule::Concurrency));
    let mut history = with(vec![past(&drain("s00"), &state, 2000, ActionStatus::UnderWay)]);
    assert_eq!(rule(&acts(""), &state, &history, &drain("s00")), Some(Rule::Busy));
    state.jobs.insert("e".into(), elastic(&["t0"], 500_000));
    history.past.push(past(&resize(&state, "e", 16), &state, 2000, ActionStatus::UnderWay));
    assert_eq!(rule(&acts(""), &state, &history, &preempt(&state, "e")), Some(Rule::Busy));
}

#[test]
fn the_breaker_stops_all_but_restoring_actions() {
    let mut state = cluster();
    loan(&mut state, &["s08"]);
    state.jobs.insert("g".into(), gang(&["t0"]));
    // 160 GPUs: 32 may be touched.
    let mut history =
        with((0..4).map(|i| past(&drain("s01"), &state, 2000 + i, ActionStatus::Verified)).collect());
    assert_eq!(rule(&acts("[blast]\nfleet_share = 0.25"), &state, &history, &preempt(&state, "g")), None);
    assert_eq!(rule(&acts(""), &state, &history, &preempt(&state, "g")), Some(Rule::Breaker));
    assert_eq!(rule(&acts(""), &state, &history, &reclaim(&["s08"], 8)), None);
    history.past =
        (0..5).map(|i| past(&lend(&["s01"]), &state, 2000 + i, failed(&format!("no {i}")))).collect();
    assert_eq!(rule(&acts(""), &state, &history, &drain("s00")), Some(Rule::Breaker));
    assert_eq!(rule(&acts(""), &state, &history, &reclaim(&["s08"], 8)), None);
    history.past.iter_mut().for_each(|past| past.at_us -= 3600 * S);
    assert_eq!(rule(&acts(""), &state, &history, &drain("s00")), None, "the window is over");
}

#[test]
fn racks_are_drained_one_at_a_time() {
    let mut state = cluster();
    let history = with(vec![past(&drain("s05"), &state, 2000, ActionStatus::UnderWay)]);
    assert_eq!(rule(&acts(""), &state, &history, &drain("s00")), Some(Rule::FailureDomain));
    assert_eq!(rule(&acts(""), &state, &history, &drain("s04")), None, "the same rack");
    let by = crate::state::DrainedBy::Autopilot { action: "d".into(), generation: 1 };
    state.nodes.get_mut("s05").unwrap().drain =
        Some(crate::state::Drain { by, since_us: None, reason: "d".into() });
    assert_eq!(rule(&acts(""), &state, &on(), &drain("s00")), Some(Rule::FailureDomain));
}

#[test]
fn an_owners_daily_loss_is_limited() {
    let mut state = cluster();
    state.jobs.insert("g".into(), gang(&["t0"]));
    // Stopping g loses 8 x 660 s = 1.47 GPU-hours; 64 are allowed.
    let mut lost = past(&preempt(&state, "g"), &state, 80_000, ActionStatus::Verified);
    lost.subject = crate::state::Object::Job("other".into());
    lost.lost_gpu_ms = 62 * 3_600_000;
    let mut history = with(vec![lost]);
    assert_eq!(rule(&acts(""), &state, &history, &preempt(&state, "g")), None);
    history.past[0].lost_gpu_ms = 63 * 3_600_000;
    assert_eq!(rule(&acts(""), &state, &history, &preempt(&state, "g")), Some(Rule::OwnerLoss));
    // A share of what its 32 GPUs provide in a day: 0.1 x 768 is 76.8.
    assert_eq!(rule(&acts("[blast]\nowner_lost_share = 0.1"), &state, &history, &preempt(&state, "g")), None);
    // What it returned from a loan, or lost by pausing to grow, was not lost to the autopilot.
    for own in [
        PastAction { counts_as: Kind::Reclaim, ..history.past[0].clone() },
        PastAction { direction: 1, ..history.past[0].clone() },
    ] {
        assert_eq!(rule(&acts(""), &state, &with(vec![own]), &preempt(&state, "g")), None);
    }
    state.jobs.insert("e".into(), elastic(&["t1"], 500_000));
    assert_eq!(rule(&acts(""), &state, &history, &resize(&state, "e", 16)), None, "growing is its own gain");
    history.past[0].at_us = NOW - 86_400 * S;
    assert_eq!(rule(&acts(""), &state, &history, &preempt(&state, "g")), None);
}

#[test]
fn an_object_rests_after_a_change_and_a_lender_between_steps() {
    let state = cluster();
    let history = |ago| with(vec![past(&drain("s00"), &state, ago, ActionStatus::Verified)]);
    assert_eq!(rule(&acts(""), &state, &history(899), &drain("s00")), Some(Rule::Dwell));
    assert_eq!(rule(&acts(""), &state, &history(900), &drain("s00")), None);
    let lent = |ago| with(vec![past(&lend(&["s00"]), &state, ago, ActionStatus::Verified)]);
    assert_eq!(rule(&acts(""), &state, &lent(299), &lend(&["s01"])), Some(Rule::Dwell));
    assert_eq!(rule(&acts(""), &state, &lent(300), &lend(&["s01"])), None);
    let mut lent_out = cluster();
    loan(&mut lent_out, &["s00"]);
    assert_eq!(
        rule(&acts(""), &lent_out, &lent(10), &reclaim(&["s00"], 8)),
        None,
        "taking back waits for nothing"
    );
}

#[test]
fn rests_grow_with_failures_and_identical_ones_are_left_to_people() {
    let state = cluster();
    let fails = |times: &[(i64, &str)]| {
        with(times.iter().map(|(ago, why)| past(&drain("s00"), &state, *ago, failed(why))).collect())
    };
    assert_eq!(rule(&acts(""), &state, &fails(&[(899, "a")]), &drain("s00")), Some(Rule::Cooldown));
    assert_eq!(rule(&acts(""), &state, &fails(&[(900, "a")]), &drain("s00")), None);
    assert_eq!(
        rule(&acts(""), &state, &fails(&[(5000, "b"), (1799, "a")]), &drain("s00")),
        Some(Rule::Cooldown)
    );
    assert_eq!(rule(&acts(""), &state, &fails(&[(5000, "b"), (1800, "a")]), &drain("s00")), None);
    assert_eq!(
        rule(&acts(""), &state, &fails(&[(50_000, "a"), (40_000, "a")]), &drain("s00")),
        Some(Rule::Cooldown)
    );
    let mut lent = cluster();
    loan(&mut lent, &["s00"]);
    let one = |ago| past(&reclaim(&["s00"], 8), &lent, ago, failed("busy"));
    assert_eq!(rule(&acts(""), &lent, &with(vec![one(60), one(50)]), &reclaim(&["s00"], 8)), None);
}

#[test]
fn reversals_are_limited() {
    let mut state = cluster();
    state.jobs.insert("e".into(), elastic(&["t0", "t1"], 500_000));
    let turns = |count: i64| {
        let one = |at: i64| {
            let mut step =
                past(&resize(&state, "e", 24), &state, 80_000 - 5_000 * at, ActionStatus::Verified);
            step.direction = if at % 2 == 0 { 1 } else { -1 };
            step
        };
        with((0..count).map(one).collect())
    };
    // Up, down, up: two reversals; a shrink would be the third, and three are allowed. After one
    // more step it would be the fourth.
    assert_eq!(rule(&acts(""), &state, &turns(3), &resize(&state, "e", 8)), None);
    assert_eq!(rule(&acts(""), &state, &turns(4), &resize(&state, "e", 24)), Some(Rule::Oscillation));
    assert_eq!(rule(&acts(""), &state, &turns(4), &resize(&state, "e", 8)), None, "on in the same direction");
    // A job may always give back what it grew by, but not what it asked for.
    assert_eq!(rule(&acts(""), &state, &turns(7), &resize(&state, "e", 8)), None);
    let many = turns(7);
    state.jobs.get_mut("e").unwrap().gpus = 16;
    assert_eq!(rule(&acts(""), &state, &many, &resize(&state, "e", 8)), Some(Rule::Oscillation));
}

#[test]
fn leaving_a_loan_uses_the_reclaim_budget_and_ignores_freezes() {
    let mut state = cluster();
    loan(&mut state, &["s00", "s01"]);
    state.jobs.insert("b".into(), gang(&["s00"]));
    state.jobs.insert("c".into(), gang(&["s01"]));
    state.jobs.insert("g".into(), gang(&["t0"]));
    let spent = |of: &str| with(vec![past(&preempt(&state, of), &state, 2000, ActionStatus::Verified)]);
    let one = acts("[budgets.preempt]\nper_hour = 1");
    assert_eq!(rule(&one, &state, &spent("g"), &preempt(&state, "b")), None);
    assert_eq!(rule(&one, &state, &spent("b"), &preempt(&state, "g")), None);
    let none = acts("[budgets.reclaim]\nper_hour = 1");
    assert_eq!(rule(&none, &state, &spent("c"), &preempt(&state, "b")), Some(Rule::Budget));
    let frozen = acts("calendar = [{ name = \"launch\", from = \"00:00\", to = \"00:00\" }]");
    assert_eq!(rule(&frozen, &state, &on(), &preempt(&state, "b")), Some(Rule::Calendar));
    let lent = state.loans.get_mut("lend-1").unwrap();
    (lent.reclaiming_gpus, lent.reclaiming_nodes) = (8, ["s00".to_owned()].into());
    assert_eq!(rule(&frozen, &state, &on(), &preempt(&state, "b")), None);
    assert_eq!(
        rule(&frozen, &state, &on(), &preempt(&state, "c")),
        Some(Rule::Calendar),
        "its node stays lent"
    );
}
