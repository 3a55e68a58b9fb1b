//! Scores of each kind of action, on hand-made states. `crates/sim/tests/sim/scores.rs` checks them
//! against the simulator, which knows the true effect.

use std::collections::BTreeSet;

use super::*;
use crate::action::{Action, Adjustment, Change};
use crate::executor::ExecutorState;
use crate::fixture::{NOW, S, cluster, gang, lend, loan, pending};
use crate::guard::PastAction;
use crate::intent::Transition;
use crate::planner::{Decision, Plan, Predicted};
use crate::policy::{Footprint, Mode, Policy};
use crate::scorecard::{Interval, Realised};
use crate::state::{ClusterState, Drain, DrainedBy, Health, Job, NodeState, Object, Reservation, Writer};

const HOUR: i64 = 3_600 * S;
const GPU_HOUR: i64 = 3_600_000;

/// Measures `change` over two hours from NOW on. `states` hold from their minute on.
fn measure(change: &Change, basis: Option<Basis>, states: &[(i64, ClusterState)]) -> Realised {
    measure_with(change, basis, states, Interval::point(0))
}

/// The same, with the work that jobs lost to other actions for it, GPUs × ms.
fn measure_with(
    change: &Change,
    basis: Option<Basis>,
    states: &[(i64, ClusterState)],
    lost: Interval,
) -> Realised {
    let predicted = Predicted { over_ms: 2 * GPU_HOUR, ..Predicted::default() };
    let of = Measured {
        change,
        basis: basis.as_ref(),
        begun_us: NOW,
        verified_us: NOW,
        saved_us: None,
        predicted: &predicted,
    };
    let mut meter: Option<Meter> = None;
    for minute in 0..=180 {
        let Some((_, state)) = states.iter().rev().find(|(from, _)| *from <= minute) else { continue };
        let state = ClusterState { at_us: NOW + minute * 60 * S, ..state.clone() };
        match &mut meter {
            // A successor reads it from the journal in the middle.
            Some(meter) if minute == 30 => {
                let text = serde_json::to_string(&meter.write()).unwrap();
                *meter = serde_json::from_str(&text).unwrap();
                meter.observe(&of, &View::of(&state));
            }
            Some(meter) => meter.observe(&of, &View::of(&state)),
            None => meter = Some(Meter::begin(&of, &View::of(&state))),
        }
    }
    let suspects = Suspects::default();
    let with = Companions { lost: Some(lost), suspects: &suspects };
    meter.unwrap().realised(&of, &with)
}

fn net(of: &Realised) -> Option<i64> {
    Some(of.benefit_gpu_ms? - of.cost_gpu_ms?)
}

fn reclaim_of(back_gpus: u32, of_gpus: u32) -> Basis {
    Basis::Reclaim {
        owner: "serving".into(),
        pool: "serve".into(),
        borrower: "research".into(),
        own_gpus: 96,
        back_gpus,
        of_gpus,
        loan_ends_us: NOW + 2 * HOUR,
        missing_ppm: 20_000_000,
    }
}

#[test]
fn a_reclaim_gains_what_the_owner_uses_beyond_what_it_had() {
    let change = Change::Reclaim { loan: "l".into(), from_gpus: 32, to_gpus: 0, nodes: BTreeSet::new() };
    // The service is not shown as a job: it uses its demand.
    let needs = |gpus: u32| {
        let mut state = cluster();
        state.owners.get_mut("serving").unwrap().shares.get_mut("serve").unwrap().demand_gpus = Some(gpus);
        state.jobs.insert("9".into(), pending(16, 60));
        state
    };
    let all = measure(&change, Some(reclaim_of(32, 32)), &[(0, needs(200))]);
    assert_eq!((all.benefit_gpu_ms, all.cost_gpu_ms), (Some(20 * 64 * GPU_HOUR), Some(0)));
    // Eight of the 32 for an hour, then none; the borrower waits for sixteen.
    let some = measure(&change, Some(reclaim_of(32, 32)), &[(0, needs(104)), (60, needs(96))]);
    assert_eq!((some.benefit_gpu_ms, some.cost_gpu_ms), (Some(20 * 8 * GPU_HOUR), Some(32 * GPU_HOUR)));
    // Of two reclaims that give back 16 each, each is credited with half of what is used.
    let half = measure(&change, Some(reclaim_of(16, 32)), &[(0, needs(112))]);
    assert_eq!(half.benefit_gpu_ms, Some(20 * 16 * GPU_HOUR));
    let mut unknown = needs(0);
    unknown.owners.get_mut("serving").unwrap().shares.get_mut("serve").unwrap().demand_gpus = None;
    let unknown = measure(&change, Some(reclaim_of(32, 32)), &[(0, unknown)]);
    assert_eq!((unknown.benefit_gpu_ms, unknown.interval), (None, None));
}

#[test]
fn a_reclaim_of_a_loan_is_measured_against_what_is_left_of_the_quota() {
    let mut state = cluster();
    loan(&mut state, &["s00", "s01"]);
    let change = Change::Reclaim {
        loan: "lend-1".into(),
        from_gpus: 16,
        to_gpus: 8,
        nodes: ["s00".to_owned()].into(),
    };
    let (plan, decision) = decided(change, None);
    let basis = Basis::of(&decision, &plan, &state, &Policy::shipped()).unwrap();
    let Basis::Reclaim { own_gpus, back_gpus, of_gpus, missing_ppm, .. } = basis else { panic!("{basis:?}") };
    assert_eq!((own_gpus, back_gpus, of_gpus, missing_ppm), (112, 8, 8, 20_000_000));
}

fn decided(change: Change, serves: Option<Object>) -> (Plan, Decision) {
    let action = Action {
        id: "a".into(),
        generation: 0,
        change,
        preconditions: vec![],
        inverse: None,
        expires_us: NOW + HOUR,
        effect_ends_us: None,
        notice_ms: 0,
        after: vec![],
    };
    let decision = Decision {
        kind: action.change.kind(),
        action,
        mode: Mode::Act,
        canary: None,
        serves,
        is_owed: false,
        footprint: Footprint::default(),
        gpus: 8,
        predicted: Predicted::default(),
        reason: String::new(),
    };
    let plan = Plan {
        id: "p".into(),
        cluster: "test".into(),
        made_us: NOW,
        observed_us: NOW,
        policy: "auto".into(),
        policy_hash: String::new(),
        canary_hash: None,
        state_hash: String::new(),
        parent: None,
        seed: 0,
        decisions: vec![decision.clone()],
    };
    (plan, decision)
}

/// The gang on t0 and t1 was stopped for job 2, which runs for an hour.
fn stopped(saved: bool, is_owed: bool, resumes: Option<bool>) -> Realised {
    let mut state = cluster();
    state.jobs.insert("1".into(), gang(&["t0", "t1"]));
    state.jobs.insert("2".into(), pending(32, 900));
    let checkpoint = &mut state.jobs.get_mut("1").unwrap().checkpoint;
    checkpoint.resumes = resumes;
    if !saved {
        checkpoint.last_us = None;
    }
    let change = Change::Preempt { job: "1".into(), frees_gpus: 16 };
    let (plan, mut decision) = decided(change.clone(), Some(Object::Job("2".into())));
    decision.is_owed = is_owed;
    let basis = Basis::of(&decision, &plan, &state, &Policy::shipped());
    let checkpoint = state.jobs["1"].checkpoint;
    let mut runs = state.clone();
    runs.jobs.insert("1".into(), Job { checkpoint, ..pending(16, 0) });
    runs.jobs.insert("2".into(), gang(&["t0", "t1", "t2", "t3"]));
    let mut after = runs.clone();
    after.jobs.remove("2");
    after.jobs.insert("1".into(), gang(&["t0", "t1"]));
    measure(&change, basis, &[(0, runs), (60, after)])
}

#[test]
fn a_stop_counts_the_job_it_was_made_for_and_what_the_stopped_one_lost_and_waited() {
    let known = stopped(true, true, Some(false));
    // 32 GPUs for an hour, which were owed. Ten minutes since it saved, one to restart, an hour of
    // waiting, each on 16.
    assert_eq!(known.benefit_gpu_ms, Some(20 * 32 * GPU_HOUR));
    assert_eq!(known.cost_gpu_ms, Some(16 * (71 * GPU_HOUR / 60)));
    // A job that is not owed them.
    assert_eq!(stopped(true, false, None).benefit_gpu_ms, Some(32 * GPU_HOUR));
    // Without a save it lost between the restart alone and its two hours.
    let unknown = stopped(false, true, None);
    let Interval { low_gpu_ms, high_gpu_ms } = unknown.interval.unwrap();
    assert_eq!((unknown.cost_gpu_ms, high_gpu_ms - low_gpu_ms), (None, 16 * 2 * GPU_HOUR));
    assert_eq!(high_gpu_ms, 20 * 32 * GPU_HOUR - 16 * 61 * GPU_HOUR / 60);
    // All of them, if its team's jobs start over.
    let known = stopped(false, true, Some(false));
    assert_eq!((known.interval, known.cost_gpu_ms), (None, Some(16 * 181 * GPU_HOUR / 60)));
}

#[test]
fn a_stop_for_a_reclaim_is_expected_to_lose_a_range_only_where_no_checkpoint_is_known() {
    let expected = |change: &dyn Fn(&mut Job)| {
        let mut state = cluster();
        let mut job = gang(&["t0", "t1"]);
        change(&mut job);
        state.jobs.insert("1".into(), job);
        let (plan, mut decision) = decided(Change::Preempt { job: "1".into(), frees_gpus: 16 }, None);
        decision.action.after = vec!["reclaim-1".into()];
        let basis = Basis::of(&decision, &plan, &state, &Policy::shipped()).unwrap();
        let lost = basis.expected_loss().unwrap();
        (lost.low_gpu_ms * 60 / 16 / GPU_HOUR, lost.high_gpu_ms * 60 / 16 / GPU_HOUR)
    };
    // Minutes on 16 GPUs: ten since it saved, two hours since it began, one to start again.
    assert_eq!(expected(&|_| {}), (11, 11));
    assert_eq!(expected(&|job| job.checkpoint.last_us = None), (1, 121));
    // Restarted jobs of its team ran for as long as from their beginning.
    let starts_over = |job: &mut Job| (job.checkpoint.last_us, job.checkpoint.resumes) = (None, Some(false));
    assert_eq!(expected(&starts_over), (121, 121));
    // It saves on notice within half a minute.
    let saves = |job: &mut Job| {
        job.checkpoint.last_us = None;
        (job.checkpoint.on_notice, job.checkpoint.save_ms) = (true, Some(30_000));
    };
    assert_eq!(expected(&saves), (1, 1));
}

#[test]
fn a_loan_whose_cost_is_a_range_has_an_exact_benefit() {
    let mut state = cluster();
    loan(&mut state, &["s00"]);
    state.jobs.insert("1".into(), gang(&["s00"]));
    let change = lend();
    let lent = |low: i64, high: i64| {
        let lost = Interval { low_gpu_ms: low * GPU_HOUR, high_gpu_ms: high * GPU_HOUR };
        measure_with(&change, None, &[(0, state.clone())], lost)
    };
    let known = lent(3, 3);
    assert_eq!(
        (known.benefit_gpu_ms, net(&known), known.interval),
        (Some(16 * GPU_HOUR), Some(13 * GPU_HOUR), None)
    );
    let range = lent(1, 40);
    assert_eq!(
        (range.benefit_gpu_ms, range.cost_gpu_ms, range.is_estimate),
        (Some(16 * GPU_HOUR), None, false)
    );
    let bounds = Interval { low_gpu_ms: -24 * GPU_HOUR, high_gpu_ms: 15 * GPU_HOUR };
    assert_eq!(range.interval, Some(bounds));
    assert!(range.without.unwrap().ends_with("that report no checkpoints 1.0 to 40.0 GPU-hours"));
}

#[test]
fn a_raised_quota_gains_use_beyond_the_old_one_unless_others_lack_theirs() {
    let quota = |from_gpus, to_gpus| {
        Change::AdjustReservation(Adjustment::Quota {
            owner: "research".into(),
            pool: "train".into(),
            from_gpus,
            to_gpus,
        })
    };
    let mut state = cluster();
    state.owners.insert("other".into(), state.owners["research"].clone());
    let basis = |change: &Change| {
        let (plan, decision) = decided(change.clone(), None);
        Basis::of(&decision, &plan, &state, &Policy::shipped())
    };
    let set = |state: &mut ClusterState, owner: &str, quota_gpus: u32, demand: u32| {
        let share = state.owners.get_mut(owner).unwrap().shares.get_mut("train").unwrap();
        (share.quota_gpus, share.demand_gpus) = (quota_gpus, Some(demand));
    };
    let (raise, lower) = (quota(16, 24), quota(24, 16));
    let mut used = state.clone();
    set(&mut used, "research", 24, 40);
    set(&mut used, "other", 8, 8);
    used.jobs.insert("1".into(), gang(&["t0", "t1", "t2"]));
    used.jobs.insert("2".into(), Job { owner: "other".into(), ..gang(&["t3"]) });
    let raised = measure(&raise, basis(&raise), &[(0, used.clone())]);
    assert_eq!(net(&raised), Some(20 * 16 * GPU_HOUR));
    // The other owner lacks all eight of it: nothing is gained.
    set(&mut used, "other", 16, 16);
    assert_eq!(net(&measure(&raise, basis(&raise), &[(0, used.clone())])), Some(0));

    // Lowered by eight; the owner waits for four of them for an hour, and nobody uses them.
    let mut waits = state.clone();
    set(&mut waits, "research", 16, 20);
    set(&mut waits, "other", 32, 0);
    waits.jobs.insert("1".into(), gang(&["t0", "t1"]));
    let mut calm = waits.clone();
    set(&mut calm, "research", 16, 16);
    let lowered = measure(&lower, basis(&lower), &[(0, waits), (60, calm.clone())]);
    assert_eq!(net(&lowered), Some(-20 * 4 * GPU_HOUR));
    // Others use eight beyond their old quota: perhaps thanks to it, perhaps not.
    set(&mut calm, "other", 40, 40);
    let nodes: Vec<String> = (0..5).map(|at| format!("t{at}")).collect();
    let nodes: Vec<&str> = nodes.iter().map(String::as_str).collect();
    calm.jobs.insert("2".into(), Job { owner: "other".into(), ..gang(&nodes) });
    let lowered = measure(&lower, basis(&lower), &[(0, calm)]);
    assert_eq!(lowered.interval, Some(Interval { low_gpu_ms: 0, high_gpu_ms: 16 * GPU_HOUR }));
}

#[test]
fn a_reservation_gains_what_would_have_waited_and_costs_what_stands_idle() {
    let change = Change::AdjustReservation(Adjustment::Reservation {
        name: "r".into(),
        owner: "research".into(),
        pool: "train".into(),
        from_gpus: 0,
        to_gpus: 16,
        start_us: NOW + HOUR,
        end_us: NOW + 3 * HOUR,
    });
    let mut state = cluster();
    state.jobs.insert("1".into(), gang(&["t0"]));
    let (plan, decision) = decided(change.clone(), None);
    let basis = Basis::of(&decision, &plan, &state, &Policy::shipped());
    state.jobs.insert("2".into(), Job { owner: "other".into(), ..gang(&["t3"]) });
    state.jobs.insert("3".into(), Job { owner: "other".into(), ..pending(8, 60) });
    state.reservations.insert(
        "r".into(),
        Reservation {
            owner: "research".into(),
            pool: "train".into(),
            gpus: 16,
            nodes: [].into(),
            start_us: NOW + HOUR,
            end_us: Some(NOW + 3 * HOUR),
            writer: Writer::Other,
        },
    );
    let mut used = state.clone();
    used.jobs.insert("4".into(), gang(&["t1", "t2"]));
    // It begins after an hour, stands idle for one while eight GPUs are asked for, and is used.
    let realised = measure(&change, basis, &[(0, state), (120, used)]);
    assert_eq!(
        (realised.benefit_gpu_ms, realised.cost_gpu_ms),
        (Some(20 * 16 * GPU_HOUR), Some(8 * GPU_HOUR))
    );
}

#[test]
fn a_returned_node_gains_what_found_no_room_elsewhere_until_it_fails() {
    let change = Change::ReturnNode { node: "t0".into(), drained_by: "d".into() };
    let mut full = cluster();
    full.jobs.insert("1".into(), gang(&["t0"]));
    full.jobs.insert("2".into(), gang(&["t1", "t2", "t3"]));
    let mut roomy = full.clone();
    roomy.jobs.remove("2");
    let used = measure(&change, None, &[(0, full.clone()), (60, roomy)]);
    assert_eq!(net(&used), Some(8 * GPU_HOUR), "for an hour the job would have run elsewhere");
    let mut drained = full.clone();
    let by = DrainedBy::Autopilot { action: "e".into(), generation: 1 };
    drained.nodes.get_mut("t0").unwrap().drain = Some(Drain { by, since_us: None, reason: "again".into() });
    // It saved ten minutes before NOW, so at its last sight an hour later 69 minutes were at risk,
    // and a minute to restart.
    let failed = measure(&change, None, &[(0, full), (60, drained)]);
    assert_eq!(
        (failed.benefit_gpu_ms, failed.cost_gpu_ms),
        (Some(8 * GPU_HOUR), Some(8 * 70 * GPU_HOUR / 60))
    );
}

#[test]
fn a_drain_is_charged_for_what_waited_and_its_work_at_risk_only_if_its_jobs_had_left() {
    let change = Change::DrainNode { node: "t0".into(), reason: "ecc".into() };
    let mut state = cluster();
    state.jobs.insert("1".into(), gang(&["t0"]));
    state.nodes.get_mut("t0").unwrap().health =
        Health { bad_ppm: Some(990_000), families: vec!["ecc".into(), "xid".into()], ..Health::default() };
    let (plan, decision) = decided(change.clone(), None);
    let basis = Basis::of(&decision, &plan, &state, &Policy::shipped());
    assert!(matches!(&basis, Some(Basis::Drain { evidence: Some(_), at_risk: Some(_), .. })), "{basis:?}");
    let mut busy = state.clone();
    busy.nodes.get_mut("t0").unwrap().drain =
        Some(Drain { by: DrainedBy::Other, since_us: None, reason: "ecc".into() });
    let mut empty = busy.clone();
    empty.jobs.remove("1");
    empty.jobs.insert("2".into(), pending(32, 60));
    let down = |state: &ClusterState| {
        let mut state = state.clone();
        state.nodes.get_mut("t0").unwrap().state = NodeState::Down;
        state
    };
    // It failed empty: ten minutes and a restart on eight GPUs were saved, half an hour idle.
    let saved =
        measure(&change, basis.clone(), &[(0, busy.clone()), (30, empty.clone()), (60, down(&empty))]);
    assert_eq!((saved.benefit_gpu_ms, saved.cost_gpu_ms), (Some(8 * 11 * GPU_HOUR / 60), Some(4 * GPU_HOUR)));
    // It failed under its job, which lost its work all the same.
    let late = measure(&change, basis.clone(), &[(0, busy.clone()), (60, down(&busy))]);
    assert_eq!(net(&late), Some(0));
    // It did not fail, nobody was like it: between the cost and all that was at risk for the part
    // of the time in which it was empty.
    let quiet = measure(&change, basis, &[(0, busy), (60, empty)]);
    let Interval { low_gpu_ms, high_gpu_ms } = quiet.interval.unwrap();
    assert_eq!((quiet.benefit_gpu_ms, low_gpu_ms), (None, -8 * GPU_HOUR));
    assert_eq!(high_gpu_ms, 8 * 11 * GPU_HOUR / 120 + 4 * GPU_HOUR - 8 * GPU_HOUR);
}

#[test]
fn what_was_hardly_observed_is_unknown() {
    let change = Change::ReturnNode { node: "t0".into(), drained_by: "d".into() };
    let mut full = cluster();
    full.jobs.insert("1".into(), gang(&["t0", "t1", "t2", "t3"]));
    let predicted = Predicted { over_ms: 2 * GPU_HOUR, ..Predicted::default() };
    let of = Measured {
        change: &change,
        basis: None,
        begun_us: NOW,
        verified_us: NOW,
        saved_us: None,
        predicted: &predicted,
    };
    let suspects = Suspects::default();
    let with = Companions { lost: Some(Interval::point(0)), suspects: &suspects };
    let after_gap = |minutes: i64| {
        let at = |minute: i64| ClusterState { at_us: NOW + minute * 60 * S, ..full.clone() };
        let mut meter = Meter::begin(&of, &View::of(&at(0)));
        meter.observe(&of, &View::of(&at(minutes)));
        (minutes..=120).for_each(|minute| meter.observe(&of, &View::of(&at(minute))));
        meter.realised(&of, &with)
    };
    // Half an hour of two is a quarter; five minutes more are those of any two observations.
    assert_eq!(after_gap(35).benefit_gpu_ms, Some(16 * GPU_HOUR));
    let unknown = after_gap(36);
    assert_eq!(unknown.benefit_gpu_ms, None);
    assert!(unknown.without.unwrap().contains("not observed"));
}

#[test]
fn journals_and_snapshots_of_older_versions_are_read() {
    // A state without measurements, and a proposal without a basis or what it serves.
    let state = serde_json::to_value(ExecutorState::default()).unwrap();
    assert!(!state.as_object().unwrap().contains_key("measured"));
    assert_eq!(serde_json::from_value::<ExecutorState>(state).unwrap(), ExecutorState::default());
    let measured = Measurements {
        meters: [("a".to_owned(), Meter::default())].into(),
        suspects: Some(Suspects::default()),
    };
    let mut state = ExecutorState::default();
    state.measured = measured;
    let text = serde_json::to_string(&state).unwrap();
    assert_eq!(serde_json::from_str::<ExecutorState>(&text).unwrap(), state);
    let (plan, decision) = decided(Change::Preempt { job: "1".into(), frees_gpus: 8 }, None);
    let past = PastAction::begun(&decision.action, &cluster(), 0, NOW);
    let event = |basis| Transition::Proposed {
        decision: Box::new(decision.clone()),
        plan: plan.id.clone(),
        past: Box::new(past.clone()),
        basis,
    };
    let text = serde_json::to_string(&event(None)).unwrap();
    assert!(!text.contains("basis") && !text.contains("serves"), "{text}");
    assert_eq!(serde_json::from_str::<Transition>(&text).unwrap(), event(None));
    let stop = Stop {
        gpus: 8,
        since_us: None,
        again_ms: 60_000,
        is_shrink: false,
        expected_gpu_ms: 5,
        least_gpu_ms: None,
        starts_over: false,
    };
    for basis in [reclaim_of(8, 8), Basis::Part { stop }] {
        let text = serde_json::to_string(&event(Some(Box::new(basis.clone())))).unwrap();
        assert_eq!(serde_json::from_str::<Transition>(&text).unwrap(), event(Some(Box::new(basis))));
    }
}
