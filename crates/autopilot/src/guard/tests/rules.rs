//! Authority, selection, evidence and floors.

use std::collections::BTreeSet;

use tidegate_insight::forecast::{Drift, Reach};

use super::*;
use crate::action::Adjustment;
use crate::fixture::{elastic, gang, loan};
use crate::policy::Mode;
use crate::state::{
    BoundsDrift, Disagreement, Drain, DrainedBy, ForecastOrigin, Object, Reservation, Source, Writer,
};

#[test]
fn the_kill_switch_stops_everything_and_unreadable_is_off() {
    let state = cluster();
    for switch in [KillSwitch::Paused, KillSwitch::Unreadable, KillSwitch::default()] {
        let history = History { switch, ..on() };
        assert_eq!(rule(&acts(""), &state, &history, &drain("s00")), Some(Rule::Switch));
    }
    let mut lent = cluster();
    loan(&mut lent, &["s00"]);
    let paused = History { switch: KillSwitch::Paused, ..on() };
    assert_eq!(rule(&acts(""), &lent, &paused, &reclaim(&["s00"], 8)), Some(Rule::Switch));
}

#[test]
fn only_the_mode_act_acts_and_approve_asks_a_person() {
    let state = cluster();
    assert_eq!(rule(&Policy::shipped(), &state, &on(), &drain("s00")), Some(Rule::Mode));
    let with = |mode: &str| acts(&format!("scopes = [{{ kind = \"drain_node\", mode = \"{mode}\" }}]"));
    for mode in ["stop", "observe", "suggest", "approve"] {
        assert_eq!(rule(&with(mode), &state, &on(), &drain("s00")), Some(Rule::Mode), "{mode}");
    }
    let mut history = on();
    history.approvals.insert("x-1".into(), Approval { by: "ada".into(), at_us: NOW });
    assert_eq!(rule(&with("approve"), &state, &history, &drain("s00")), None);
    assert_eq!(rule(&with("suggest"), &state, &history, &drain("s00")), Some(Rule::Mode));
    // A demotion by scorecard.
    history.approvals.clear();
    history.earned.insert(Kind::DrainNode, Mode::Approve);
    assert_eq!(rule(&acts(""), &state, &history, &drain("s00")), Some(Rule::Mode));
}

#[test]
fn what_a_person_rejected_is_refused_for_a_day() {
    let state = cluster();
    let rejected = |ago_s: i64, action: &Action| Rejection {
        by: "anna".into(),
        why: Some("the rack is being moved".into()),
        at_us: NOW - ago_s * S,
        kind: action.change.kind(),
        object: action.change.object(),
    };
    let after = |ago_s| History { rejections: vec![rejected(ago_s, &drain("s00"))], ..on() };
    let Verdict::Refused(refusal) = verdict(&acts(""), &state, &after(60), &drain("s00"), NOW) else {
        panic!("allowed")
    };
    assert_eq!(refusal.rule, Rule::Rejected);
    for word in ["anna", "drain_node", "s00", "60 s ago", "the rack is being moved", "24 hours"] {
        assert!(refusal.why.contains(word), "{}", refusal.why);
    }
    assert_eq!(rule(&acts(""), &state, &after(86_399), &drain("s00")), Some(Rule::Rejected));
    assert_eq!(rule(&acts(""), &state, &after(86_400), &drain("s00")), None);
    // Another object, and another kind on the same one.
    assert_eq!(rule(&acts(""), &state, &after(60), &drain("s01")), None);
    assert_eq!(rule(&acts(""), &state, &after(60), &lend(&["s00"])), None);
    // It comes before the mode: what waits for an approval is not proposed either.
    let asks = acts("scopes = [{ kind = \"drain_node\", mode = \"approve\" }]");
    assert_eq!(rule(&asks, &state, &after(60), &drain("s00")), Some(Rule::Rejected));
    // Who approves this one later has changed their mind; an approval from before has not.
    for (approved_ago_s, expected) in [(30, None), (60, Some(Rule::Rejected)), (90, Some(Rule::Rejected))] {
        let mut history = after(60);
        let approval = Approval { by: "ben".into(), at_us: NOW - approved_ago_s * S };
        history.approvals.insert("x-1".into(), approval);
        assert_eq!(rule(&asks, &state, &history, &drain("s00")), expected, "{approved_ago_s}");
    }
    // Not even a loan is taken back that a person wants to stay.
    let mut lent = cluster();
    loan(&mut lent, &["s00"]);
    let back = reclaim(&["s00"], 8);
    let history = History { rejections: vec![rejected(60, &back)], ..on() };
    assert_eq!(rule(&acts(""), &lent, &history, &back), Some(Rule::Rejected));
}

#[test]
fn purchases_are_never_made_and_reservations_ended_only_by_people() {
    let state = cluster();
    let mut history = on();
    history.approvals.insert("x-1".into(), Approval { by: "ada".into(), at_us: NOW });
    let buy = Adjustment::Commitment { pool: "serve".into(), from_gpus: 128, to_gpus: 64, term_days: 365 };
    let buy = action(Change::AdjustReservation(buy), Vec::new());
    assert_eq!(rule(&acts(""), &state, &history, &buy), Some(Rule::Irreversible));
    let give_up = Adjustment::Reservation {
        name: "r".into(),
        owner: "research".into(),
        pool: "train".into(),
        from_gpus: 8,
        to_gpus: 0,
        start_us: NOW,
        end_us: NOW,
    };
    let give_up = action(Change::AdjustReservation(give_up), Vec::new());
    assert_eq!(rule(&acts(""), &state, &on(), &give_up), Some(Rule::Irreversible));
    assert_eq!(rule(&acts(""), &state, &history, &give_up), None);
}

#[test]
fn an_empty_selection_means_nothing_and_a_pattern_is_not_a_name() {
    let mut state = cluster();
    loan(&mut state, &["s00", "s01"]);
    state.jobs.insert("e".into(), elastic(&["t0", "t1"], 500_000));
    let mut shrink = resize(&state, "e", 8);
    let Change::ResizeJob { keep_nodes, .. } = &mut shrink.change else { panic!() };
    keep_nodes.clear();
    let mut all_back = reclaim(&["s00", "s01"], 16);
    let Change::Reclaim { nodes, .. } = &mut all_back.change else { panic!() };
    nodes.clear();
    let empty = [shrink, all_back, lend(&[]), resize(&state, "e", 16), reclaim(&[], 16)];
    for action in empty {
        assert_eq!(rule(&acts(""), &state, &on(), &action), Some(Rule::Selection), "{:?}", action.change);
    }
    for name in ["", "*", "s0?", "s[00-15]", "s00,s01", "ALL", "all", "s00 s01", "State=IDLE"] {
        assert_eq!(rule(&acts(""), &state, &on(), &drain(name)), Some(Rule::Selection), "{name}");
        assert_eq!(rule(&acts(""), &state, &on(), &lend(&["s02", name])), Some(Rule::Selection), "{name}");
    }
    assert_eq!(rule(&acts(""), &state, &on(), &drain("s99")), Some(Rule::Selection), "unknown");
    assert_eq!(
        rule(&acts("[blast]\nobjects = 1"), &state, &on(), &lend(&["s02", "s03"])),
        Some(Rule::Selection)
    );
}

#[test]
fn jobs_are_touched_only_if_their_owner_opted_in() {
    let mut state = cluster();
    loan(&mut state, &["s00"]);
    state.jobs.insert("g".into(), gang(&["t0"]));
    fine(&state, &preempt(&state, "g"));
    state.jobs.get_mut("g").unwrap().opt_in = false;
    assert_eq!(rule(&acts(""), &state, &on(), &preempt(&state, "g")), Some(Rule::OptIn));
    assert_eq!(rule(&acts("require_opt_in = false"), &state, &on(), &preempt(&state, "g")), None);
    let mut borrower = gang(&["s00"]);
    (borrower.opt_in, borrower.preemptible) = (false, false);
    state.jobs.insert("b".into(), borrower);
    fine(&state, &preempt(&state, "b"));
    state.jobs.get_mut("b").unwrap().do_not_disrupt = true;
    assert_eq!(rule(&acts(""), &state, &on(), &preempt(&state, "b")), Some(Rule::Protected));
}

#[test]
fn protected_jobs_and_nodes_are_left_alone() {
    let mut state = cluster();
    state.nodes.get_mut("s00").unwrap().do_not_disrupt = true;
    assert_eq!(rule(&acts(""), &state, &on(), &drain("s00")), Some(Rule::Protected));
    assert_eq!(rule(&acts(""), &state, &on(), &lend(&["s00"])), Some(Rule::Protected));
    state.jobs.insert("g".into(), gang(&["t0"]));
    state.jobs.get_mut("g").unwrap().preemptible = false;
    assert_eq!(rule(&acts(""), &state, &on(), &preempt(&state, "g")), Some(Rule::Protected));
    // It moves off a node that is being drained.
    let mut history = on();
    let gone = past(&drain("t0"), &state, 10, ActionStatus::Verified);
    let moves = Action { after: vec![gone.id.clone()], ..preempt(&state, "g") };
    history.past.push(gone);
    assert_eq!(rule(&acts(""), &state, &history, &moves), None);
    // Also if the drain was long ago.
    let by = DrainedBy::Autopilot { action: "d".into(), generation: 1 };
    state.nodes.get_mut("t0").unwrap().drain = Some(Drain { by, since_us: None, reason: "slow".into() });
    fine(&state, &preempt(&state, "g"));
    let service = crate::state::JobKind::Service { needed_gpus: Some(8) };
    state.jobs.get_mut("g").unwrap().kind = service;
    assert_eq!(rule(&acts(""), &state, &history, &moves), Some(Rule::Protected));
}

#[test]
fn foreign_changes_are_left_alone() {
    let mut state = cluster();
    let by_a_person = Drain { by: DrainedBy::Other, since_us: None, reason: "disk".into() };
    state.nodes.get_mut("s00").unwrap().drain = Some(by_a_person);
    let back = Change::ReturnNode { node: "s00".into(), drained_by: "d".into() };
    let back = action(back, vec![Precondition::NodeDrainedByUs { node: "s00".into(), action: "d".into() }]);
    assert_eq!(rule(&acts(""), &state, &on(), &back), Some(Rule::Foreign));
    assert_eq!(rule(&acts(""), &state, &on(), &drain("s00")), Some(Rule::Foreign));
    loan(&mut state, &["s01"]);
    state.loans.get_mut("lend-1").unwrap().writer = Writer::Other;
    assert_eq!(rule(&acts(""), &state, &on(), &reclaim(&["s01"], 8)), Some(Rule::Foreign));
    let theirs = Reservation {
        owner: "research".into(),
        pool: "train".into(),
        gpus: 8,
        nodes: BTreeSet::new(),
        start_us: NOW,
        end_us: None,
        writer: Writer::Other,
    };
    state.reservations.insert("r".into(), theirs);
    let change = Adjustment::Reservation {
        name: "r".into(),
        owner: "research".into(),
        pool: "train".into(),
        from_gpus: 8,
        to_gpus: 16,
        start_us: NOW,
        end_us: NOW + S,
    };
    let change = action(Change::AdjustReservation(change), Vec::new());
    assert_eq!(rule(&acts(""), &state, &on(), &change), Some(Rule::Foreign));
}

#[test]
fn a_freeze_holds_for_all_but_restoring_actions() {
    let mut state = cluster();
    loan(&mut state, &["s00"]);
    let frozen = acts("calendar = [{ name = \"launch\", from = \"00:00\", to = \"00:00\" }]");
    assert_eq!(rule(&frozen, &state, &on(), &drain("s01")), Some(Rule::Calendar));
    assert_eq!(rule(&frozen, &state, &on(), &reclaim(&["s00"], 8)), None);
}

#[test]
fn stale_data_stops_all_but_restoring_actions() {
    let mut state = cluster();
    loan(&mut state, &["s00"]);
    state.sources.insert("slurm".into(), Source { last_event_us: Some(NOW - 120 * S) });
    assert_eq!(rule(&acts(""), &state, &on(), &drain("s01")), None);
    // Seconds are not rounded.
    state.sources.insert("slurm".into(), Source { last_event_us: Some(NOW - 120 * S - 1) });
    assert_eq!(rule(&acts(""), &state, &on(), &drain("s01")), Some(Rule::Freshness));
    assert_eq!(rule(&acts("[freshness]\nsources = { slurm = 300 }"), &state, &on(), &drain("s01")), None);
    assert_eq!(rule(&acts(""), &state, &on(), &reclaim(&["s00"], 8)), None);
    state.sources.insert("slurm".into(), Source { last_event_us: None });
    assert_eq!(rule(&acts(""), &state, &on(), &drain("s01")), Some(Rule::Freshness));
    state.sources.clear();
    assert_eq!(
        rule(&acts("[freshness]\nrequired = [\"dcgm\"]"), &state, &on(), &drain("s01")),
        Some(Rule::Freshness)
    );
    for at_us in [NOW - 121 * S, NOW + 121 * S] {
        state.at_us = at_us;
        assert_eq!(rule(&acts(""), &state, &on(), &reclaim(&["s00"], 8)), Some(Rule::Freshness));
    }
}

#[test]
fn nothing_is_lent_on_published_bounds_that_drift() {
    let published = |off: &[(Reach, Drift)]| {
        let off = off.iter().map(|(reach, drift)| BoundsDrift {
            reach: *reach,
            drift: *drift,
            since_us: NOW - 7_200 * S,
            inside80_ppm: 640_000,
            below95_ppm: 900_000,
        });
        let by = ForecastOrigin::Published {
            series: "TEAM serving".into(),
            issued_us: NOW,
            off: off.collect(),
            far: None,
        };
        let mut state = cluster();
        loan(&mut state, &["s00"]);
        state.forecast_origins.insert("serving".into(), [("serve".to_owned(), by)].into());
        state
    };
    let quota = action(
        Change::AdjustReservation(Adjustment::Quota {
            owner: "serving".into(),
            pool: "serve".into(),
            from_gpus: 128,
            to_gpus: 120,
        }),
        Vec::new(),
    );
    let refused = |state: &ClusterState, action: &Action| {
        let found = refusals(&acts(""), state, &on(), action, NOW);
        found.into_iter().find(|refusal| refusal.rule == Rule::Forecast).map(|refusal| refusal.why)
    };
    assert_eq!(refused(&published(&[]), &lend(&["s01"])), None);
    let low = published(&[(Reach::Day, Drift::TooLow)]);
    let why = refused(&low, &lend(&["s01"])).unwrap();
    assert!(why.contains("TEAM serving") && why.contains("for 7200 s") && why.contains("0.900"), "{why}");
    assert!(refused(&low, &quota).is_some());
    // Reclaiming needs no forecast.
    assert_eq!(rule(&acts(""), &low, &on(), &reclaim(&["s00"], 8)), None);
    // Loans last hours; quotas use the policy's horizon.
    let week = published(&[(Reach::Week, Drift::TooNarrow)]);
    assert_eq!(refused(&week, &lend(&["s01"])), None);
    assert_eq!(refused(&week, &quota).is_some(), acts("").reservation.horizon_s > 86_400);
    // The series' past tracks its own coverage: 0.9 of its bounds must have held.
    let past = |held_ppm: Option<u32>| {
        let mut past = low.clone();
        let by = ForecastOrigin::Past { why: "x".into(), held_ppm };
        past.forecast_origins.insert("serving".into(), [("serve".to_owned(), by)].into());
        past
    };
    let least_ppm = (acts("").lend.least_coverage * 1e6).round() as u32;
    assert_eq!(refused(&past(Some(least_ppm)), &lend(&["s01"])), None);
    assert_eq!(refused(&past(Some(least_ppm)), &quota), None);
    assert!(refused(&past(Some(least_ppm - 1)), &lend(&["s01"])).unwrap().contains("own past"));
    assert!(refused(&past(None), &lend(&["s01"])).unwrap().contains("too few"));
    assert_eq!(rule(&acts(""), &past(None), &on(), &reclaim(&["s00"], 8)), None);
}

#[test]
fn disputed_objects_are_not_touched() {
    let mut state = cluster();
    let dispute =
        |node: String| Disagreement { object: Object::Node(node), log: "idle".into(), target: "down".into() };
    state.disagreements = vec![dispute("s00".into())];
    assert_eq!(rule(&acts(""), &state, &on(), &drain("s00")), Some(Rule::Disagreement));
    assert_eq!(rule(&acts(""), &state, &on(), &lend(&["s00", "s01"])), Some(Rule::Disagreement));
    fine(&state, &drain("s01"));
    state.disagreements = (2..13).map(|i| dispute(format!("s{i:02}"))).collect();
    assert_eq!(rule(&acts(""), &state, &on(), &drain("s01")), Some(Rule::Disagreement));
}

#[test]
fn preconditions_are_checked_again_and_required() {
    let mut state = cluster();
    state.jobs.insert("g".into(), gang(&["t0"]));
    let action = preempt(&state, "g");
    fine(&state, &action);
    let moved = |change: &dyn Fn(&mut crate::state::Job)| {
        let mut state = state.clone();
        change(state.jobs.get_mut("g").unwrap());
        rule(&acts(""), &state, &on(), &action)
    };
    assert_eq!(moved(&|job| job.restarts = 1), Some(Rule::Precondition));
    assert_eq!(moved(&|job| job.state = crate::state::JobState::Unknown), Some(Rule::Precondition));
    assert_eq!(moved(&|job| job.placement.extend([("t1".to_owned(), 8)])), Some(Rule::Precondition));
    let bare = Action { preconditions: Vec::new(), ..action };
    assert_eq!(rule(&acts(""), &state, &on(), &bare), Some(Rule::Precondition));
    state.nodes.get_mut("s00").unwrap().state = crate::state::NodeState::Unknown;
    assert_eq!(rule(&acts(""), &state, &on(), &drain("s00")), Some(Rule::Precondition), "unknown is not up");
}

#[test]
fn an_action_has_a_deadline_an_id_and_an_order() {
    let state = cluster();
    let late = Action { expires_us: NOW, ..drain("s00") };
    assert_eq!(rule(&acts(""), &state, &on(), &late), Some(Rule::Expired));
    let mut history = on();
    history
        .past
        .push(PastAction { id: "x-1".into(), ..past(&drain("s09"), &state, 9_000, ActionStatus::Verified) });
    assert_eq!(rule(&acts(""), &state, &history, &drain("s00")), Some(Rule::Duplicate));
    let after = Action { after: vec!["first".into()], ..drain("s00") };
    assert_eq!(rule(&acts(""), &state, &on(), &after), Some(Rule::Order));
    let mut history = on();
    let first = |outcome| PastAction { id: "first".into(), ..past(&lend(&["s09"]), &state, 900, outcome) };
    history.past = vec![first(ActionStatus::UnderWay)];
    assert_eq!(rule(&acts(""), &state, &history, &after), None);
    history.past = vec![first(failed("no"))];
    assert_eq!(rule(&acts(""), &state, &history, &after), Some(Rule::Order));
}

#[test]
fn pools_owners_and_jobs_keep_their_floors() {
    let mut state = cluster();
    // Eight tenths of 32 are 26: no training node may go.
    assert_eq!(rule(&acts(""), &state, &on(), &drain("t0")), Some(Rule::Floor));
    assert_eq!(
        rule(&acts("[floors]\npools = { serve = 128 }"), &state, &on(), &drain("s00")),
        Some(Rule::Floor)
    );
    // 128 less 40 needed: eleven nodes and no more.
    let names: Vec<String> = (0..12).map(|i| format!("s{i:02}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    fine(&state, &lend(&names[..11]));
    assert_eq!(rule(&acts(""), &state, &on(), &lend(&names)), Some(Rule::Floor));
    assert_eq!(
        rule(&acts("[floors]\nowners = { serving = 121 }"), &state, &on(), &lend(&["s00"])),
        Some(Rule::Floor)
    );
    // At 40 erlangs one in a thousand waits with 62 servers: 66 are left, eight nodes.
    let service = r#"services = [{ owner = "serving", pool = "serve", requests_per_gpu = 1.0, service_s = 1.0, slots_per_gpu = 1,
        wait_s = 0.0, late_share = 0.001 }]"#;
    let mut policy = acts("");
    policy.services = crate::policy::Policy::parse(service).unwrap().services;
    assert_eq!(rule(&policy, &state, &on(), &lend(&names[..8])), None);
    assert_eq!(rule(&policy, &state, &on(), &lend(&names[..9])), Some(Rule::Floor));
    let share = |state: &mut ClusterState, change: &dyn Fn(&mut crate::state::Share)| {
        change(state.owners.get_mut("serving").unwrap().shares.get_mut("serve").unwrap());
    };
    for change in [
        (&|share: &mut crate::state::Share| share.floor_gpus = 121) as &dyn Fn(&mut crate::state::Share),
        &|share| share.lendable = false,
        &|share| share.demand_gpus = None,
    ] {
        let mut state = state.clone();
        share(&mut state, change);
        assert_eq!(rule(&acts(""), &state, &on(), &lend(&["s00"])), Some(Rule::Floor));
    }
    state.jobs.insert("e".into(), elastic(&["t0", "t1"], 500_000));
    fine(&state, &resize(&state, "e", 8));
    let wide = acts("[blast]\nfleet_share = 1.0");
    for size in [0, 4, 12, 136] {
        assert_eq!(rule(&wide, &state, &on(), &resize(&state, "e", size)), Some(Rule::Floor), "{size}");
    }
    state.jobs.get_mut("e").unwrap().anchor_node = Some("t0".into());
    let mut shrink = resize(&state, "e", 8);
    let Change::ResizeJob { keep_nodes, .. } = &mut shrink.change else { panic!() };
    keep_nodes.remove("t0");
    assert_eq!(rule(&acts(""), &state, &on(), &shrink), Some(Rule::Floor));
}

#[test]
fn floors_count_actions_the_observation_does_not_show_yet() {
    let state = cluster();
    let names: Vec<String> = (0..11).map(|i| format!("s{i:02}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let mut history = on();
    history.past.push(past(&lend(&names[..10]), &state, 600, ActionStatus::UnderWay));
    assert_eq!(rule(&acts(""), &state, &history, &lend(&["s10", "s11"])), Some(Rule::Floor));
    assert_eq!(rule(&acts(""), &state, &history, &lend(&["s10"])), None);
    // 128 GPUs, 103 must stay: three nodes may go.
    let wide = acts("[blast]\nracks = 9\nfleet_share = 1.0\n[budgets.drain_node]\nconcurrent = 9");
    history.past =
        (0..3).map(|i| past(&drain(&format!("s{i:02}")), &state, 600 + i, ActionStatus::UnderWay)).collect();
    assert_eq!(rule(&wide, &state, &history, &drain("s10")), Some(Rule::Floor));
    history.past.pop();
    assert_eq!(rule(&wide, &state, &history, &drain("s10")), None);
}
