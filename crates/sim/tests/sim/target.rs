//! The simulated cluster through the target interface: idempotent, fenced, conditional, read back;
//! and its faults.

use std::collections::BTreeSet;

use tidegate_autopilot::{
    action::{Action, Adjustment, Change, Precondition},
    state::Writer,
    target::{Effect, Notice, Target, TargetError},
};
use tidegate_sim::{
    Checkpoint, ClusterSpec, DAY_US, HOUR_US, JobSpec, JobState, MINUTE_US, Place, SECOND_US, ServiceSpec,
    Sim,
    target::{ControlFaults, SimTarget},
};

const EPOCH_US: i64 = 1_700_000_000_000_000;

/// One training node, three serving nodes with a demand of 8 GPUs, and a waiting job of 16 GPUs.
fn cluster(control: ControlFaults) -> SimTarget {
    let mut spec = ClusterSpec::uniform(&[1, 3], 8);
    spec.epoch_us = EPOCH_US;
    spec.pools[1].floor_gpus = 8;
    let checkpoint = Checkpoint { every_us: DAY_US, cost_us: 0, on_notice: true };
    let job = JobSpec {
        loan: true,
        checkpoint: Some(checkpoint),
        restart_us: MINUTE_US,
        ..JobSpec::plain(0, 16, 9 * HOUR_US)
    };
    let service = ServiceSpec { pool: 1, demand_gpus: vec![8], step_us: HOUR_US };
    SimTarget::new(Sim::new(spec, vec![job], vec![service]).unwrap(), control, 1)
}

fn action(id: &str, generation: u64, change: Change) -> Action {
    Action {
        id: id.into(),
        generation,
        change,
        preconditions: Vec::new(),
        inverse: None,
        expires_us: EPOCH_US + DAY_US,
        effect_ends_us: None,
        notice_ms: 0,
        after: Vec::new(),
    }
}

fn lend(id: &str, generation: u64, nodes: &[&str]) -> Action {
    let change = Change::Lend {
        from: "serve".into(),
        to: "research".into(),
        pool: "serve".into(),
        gpus: 8 * nodes.len() as u32,
        nodes: nodes.iter().map(|n| (*n).to_owned()).collect(),
        extends: None,
        expires_us: EPOCH_US + 4 * HOUR_US,
        reclaim_within_ms: 360_000,
    };
    action(id, generation, change)
}

fn preempt(id: &str) -> Action {
    action(id, 1, Change::Preempt { job: "job-0".into(), frees_gpus: 16 })
}

#[test]
fn a_loan_goes_out_and_comes_home_with_nothing_lost() {
    let mut target = cluster(ControlFaults::default());
    let loan = lend("L", 1, &["n00003"]);
    assert_eq!(target.read_back(&loan), Ok(Effect::Absent));
    assert!(!target.apply(&loan).unwrap().already);
    assert!(matches!(target.read_back(&loan), Ok(Effect::Partial { .. })));
    target.run_until(HOUR_US);
    assert!(matches!(target.read_back(&loan), Ok(Effect::Done { .. })));
    assert!(target.apply(&loan).unwrap().already, "the second time nothing is done");
    let state = target.observe().unwrap();
    assert_eq!((state.at_us, state.loans["L"].gpus), (EPOCH_US + HOUR_US, 8));
    assert_eq!(state.jobs["job-0"].loan.as_deref(), Some("L"));
    assert_eq!(state.owners["serve"].shares["serve"].demand_gpus, Some(8));
    assert_eq!(state.jobs["service-serve"].placement, [("n00001".to_owned(), 8)].into());

    let nodes: BTreeSet<String> = ["n00003".to_owned()].into();
    let back = action("R", 1, Change::Reclaim { loan: "L".into(), from_gpus: 8, to_gpus: 0, nodes });
    target.apply(&back).unwrap();
    let go = preempt("P");
    assert!(matches!(target.notify(&go), Ok(Notice::Waiting { .. })));
    target.run_until(HOUR_US + MINUTE_US);
    let saved = Notice::Acknowledged { at_us: EPOCH_US + HOUR_US + MINUTE_US, saved_step: None };
    assert_eq!(target.notify(&go), Ok(saved));
    target.apply(&go).unwrap();
    assert!(matches!(target.read_back(&go), Ok(Effect::Partial { .. })));
    // The kill takes half a minute, hand-over as long, loading three minutes.
    target.run_until(HOUR_US + 5 * MINUTE_US);
    assert!(matches!(target.read_back(&go), Ok(Effect::Done { .. })));
    assert!(matches!(target.read_back(&back), Ok(Effect::Done { .. })));
    assert_eq!((target.open_loans(), target.ended_loans().len()), (0, 1));
    assert_eq!(target.sim().nodes()[3].place, Place::Home);
    assert_eq!(target.sim().ledger().lost_preempted_gpu_us, 0);
    // It held 16 GPUs from 0:00:30, started for 65 s, and stood still for a minute to write its
    // checkpoint.
    assert_eq!(target.sim().ledger().kept_gpu_us, i128::from(16 * (HOUR_US - 95 * SECOND_US)));
    assert_eq!(target.effects().iter().map(|d| d.action.as_str()).collect::<Vec<_>>(), ["L", "R", "P"]);
    target.sim().audit().unwrap();
}

#[test]
fn a_loan_ends_by_itself_when_the_autopilot_is_dead() {
    let mut target = cluster(ControlFaults::default());
    target.apply(&lend("L", 1, &["n00002", "n00003"])).unwrap();
    target.run_until(4 * HOUR_US);
    assert_eq!(target.open_loans(), 1);
    // Notice, checkpoint, kill, hand-over and load take six minutes.
    target.run_until(4 * HOUR_US + 6 * MINUTE_US);
    assert_eq!((target.open_loans(), target.sim().ledger().lost_preempted_gpu_us), (0, 0));
    assert!(target.sim().nodes().iter().all(|n| n.place == Place::Home));
    assert_eq!(target.sim().jobs()[0].state, JobState::Queued);
}

#[test]
fn older_generations_broken_facts_and_expired_actions_change_nothing() {
    let mut target = cluster(ControlFaults::default());
    target.apply(&lend("L2", 2, &["n00002"])).unwrap();
    let stale = TargetError::StaleGeneration { generation: 1, seen: 2 };
    assert_eq!(target.apply(&lend("L1", 1, &["n00003"])), Err(stale.clone()));
    assert_eq!(target.notify(&preempt("P")), Err(stale));
    let mut wrong = lend("L3", 2, &["n00003"]);
    wrong.preconditions = vec![Precondition::LentIs { owner: "serve".into(), pool: "serve".into(), gpus: 0 }];
    assert!(matches!(target.apply(&wrong), Err(TargetError::Precondition(_))));
    let mut late = lend("L4", 2, &["n00003"]);
    late.expires_us = EPOCH_US - 1;
    assert!(matches!(target.apply(&late), Err(TargetError::Refused { .. })));
    assert!(
        matches!(target.apply(&lend("L5", 2, &[])), Err(TargetError::Refused { .. })),
        "nothing is not all"
    );
    assert_eq!((target.effects().len(), target.open_loans()), (1, 1));
}

#[test]
fn a_reservation_is_made_once_changed_under_its_name_and_ends_by_itself() {
    let mut target = cluster(ControlFaults::default());
    let reserve = |id: &str, from_gpus, to_gpus, from_hour: i64, to_hour: i64| {
        let adjust = Adjustment::Reservation {
            name: "ahead".into(),
            owner: "research".into(),
            pool: "train".into(),
            from_gpus,
            to_gpus,
            start_us: EPOCH_US + from_hour * HOUR_US,
            end_us: EPOCH_US + to_hour * HOUR_US,
        };
        action(id, 3, Change::AdjustReservation(adjust))
    };
    let made = reserve("R1", 0, 8, 1, 2);
    assert!(!target.apply(&made).unwrap().already);
    assert!(target.apply(&made).unwrap().already);
    assert!(matches!(target.read_back(&made).unwrap(), Effect::Done { .. }));
    let seen = &target.observe().unwrap().reservations["ahead"];
    assert_eq!((seen.owner.as_str(), seen.pool.as_str(), seen.gpus), ("research", "train", 8));
    assert_eq!(seen.writer, Writer::Autopilot { generation: 3 });
    assert_eq!((seen.start_us, seen.end_us), (EPOCH_US + HOUR_US, Some(EPOCH_US + 2 * HOUR_US)));
    let refused = |target: &mut SimTarget, action| match target.apply(&action) {
        Err(TargetError::Refused { why, .. }) => why,
        other => panic!("{other:?}"),
    };
    assert!(refused(&mut target, reserve("R2", 0, 8, 1, 2)).contains("there is a reservation ahead already"));
    assert!(refused(&mut target, reserve("R3", 8, 16, 1, 2)).contains("whole nodes of 8"));
    // Its end moves; a person takes it over.
    target.apply(&reserve("R4", 8, 8, 1, 3)).unwrap();
    target.reserve_by_hand("ahead", 0, 8, 0, 4 * HOUR_US);
    assert_eq!(target.observe().unwrap().reservations["ahead"].writer, Writer::Other);
    target.run_until(4 * HOUR_US);
    assert!(target.observe().unwrap().reservations.is_empty());
    assert!(matches!(target.read_back(&made).unwrap(), Effect::Done { .. }), "it has ended as it said");
    assert!(refused(&mut target, reserve("R5", 8, 0, 1, 3)).contains("there is no reservation ahead"));
}

#[test]
fn a_scheduler_that_lies_refuses_or_is_slow_is_found_out_by_reading_back() {
    let with = |control: ControlFaults| {
        let mut target = cluster(control);
        let answer = target.apply(&lend("L", 1, &["n00003"]));
        let at_once = target.read_back(&lend("L", 1, &["n00003"])).unwrap();
        target.run_until(10 * MINUTE_US);
        (answer, at_once, target.read_back(&lend("L", 1, &["n00003"])).unwrap(), target.effects().len())
    };
    let (answer, _, later, deeds) = with(ControlFaults { lie_ppm: 1_000_000, ..ControlFaults::default() });
    assert!(answer.is_ok() && later == Effect::Absent && deeds == 0);
    let (answer, _, later, deeds) = with(ControlFaults { refuse_ppm: 1_000_000, ..ControlFaults::default() });
    assert!(matches!(answer, Err(TargetError::Refused { .. })) && later == Effect::Absent && deeds == 0);
    let (answer, at_once, later, deeds) =
        with(ControlFaults { slow_us: 5 * MINUTE_US, ..ControlFaults::default() });
    assert!(answer.is_ok() && matches!(at_once, Effect::Partial { .. }));
    assert!(matches!(later, Effect::Done { .. }) && deeds == 1);
    let (answer, _, later, deeds) =
        with(ControlFaults { unknown_ppm: 1_000_000, ..ControlFaults::default() });
    assert!(matches!(answer, Err(TargetError::Unknown { .. })));
    assert_eq!(matches!(later, Effect::Done { .. }), deeds == 1);
}

#[test]
fn a_persons_drain_is_theirs() {
    let mut target = cluster(ControlFaults::default());
    target.drain_by_hand(2, true);
    let node = "n00002".to_owned();
    let drain = action("D", 1, Change::DrainNode { node: node.clone(), reason: "slow".into() });
    assert!(matches!(target.apply(&drain), Err(TargetError::Refused { .. })));
    let back = action("B", 1, Change::ReturnNode { node, drained_by: "D".into() });
    assert!(matches!(target.apply(&back), Err(TargetError::Refused { .. })));
    assert!(target.sim().nodes()[2].drained);
}

#[test]
fn delayed_observations_are_as_old_as_they_say() {
    let control = ControlFaults {
        telemetry_delay_us: 10 * MINUTE_US,
        telemetry_every_us: MINUTE_US,
        ..ControlFaults::default()
    };
    let mut target = cluster(control);
    assert!(
        matches!(target.observe(), Err(TargetError::Unreachable { .. })),
        "nothing is never an empty cluster"
    );
    target.run_until(30 * MINUTE_US);
    assert_eq!(target.observe().unwrap().at_us, EPOCH_US + 20 * MINUTE_US);
    target.set_control_faults(ControlFaults { telemetry_loss_ppm: 1_000_000, ..control });
    target.run_until(60 * MINUTE_US);
    assert_eq!(target.observe().unwrap().at_us, EPOCH_US + 30 * MINUTE_US);
}
