//! The engine against hand-computed numbers; random runs are audited after every step.

use proptest::prelude::*;
use tidegate_sim::{
    Backfill, Checkpoint, Class, ClusterSpec, DAY_US, Elastic, HOUR_US, JobSpec, JobState, Latency,
    MINUTE_US, Place, SECOND_US, Sim, TeamSpec, generate,
};

/// A cluster whose changes take no time.
fn instant(counts: &[usize], gpus: u32) -> ClusterSpec {
    let latency =
        Latency { start_us: 0, notice_us: 0, checkpoint_us: 0, kill_us: 0, handover_us: 0, load_us: 0 };
    ClusterSpec { latency, ..ClusterSpec::uniform(counts, gpus) }
}

fn service(demand_gpus: Vec<u32>) -> tidegate_sim::ServiceSpec {
    tidegate_sim::ServiceSpec { pool: 1, demand_gpus, step_us: HOUR_US }
}

#[test]
fn first_come_first_served_and_what_it_costs() {
    // 8 GPUs: A takes 6 for 10 h, B wants 4, C wants 2 and has to wait behind B.
    let jobs = vec![
        JobSpec::plain(0, 6, 10 * HOUR_US),
        JobSpec::plain(HOUR_US, 4, 2 * HOUR_US),
        JobSpec::plain(2 * HOUR_US, 2, HOUR_US),
    ];
    let mut sim = Sim::new(instant(&[1], 8), jobs, vec![]).unwrap();
    assert!(sim.run_to_end(DAY_US));
    let waits: Vec<i64> = sim.jobs().iter().map(|j| j.waited_us / HOUR_US).collect();
    assert_eq!(waits, [0, 9, 8]);
    assert_eq!(sim.now_us(), 12 * HOUR_US);
    // 60 + 8 + 2 GPU-hours of 96.
    let hours = |gpu_us: i128| gpu_us / i128::from(HOUR_US);
    assert_eq!(hours(sim.ledger().gpu_us(Class::Allocated)), 70);
    assert_eq!(hours(sim.ledger().gpu_us(Class::Idle)), 26);
    assert_eq!(hours(sim.outcome().useful_gpu_us), 70);
    assert_eq!(sim.outcome().queue_mean_us, 17 * HOUR_US / 3);
    sim.audit().unwrap();
}

#[test]
fn easy_lets_pass_what_does_not_delay_the_head() {
    let mut spec = instant(&[1], 8);
    spec.schedule.backfill = Backfill::Easy { depth: 10 };
    // Free: 2 GPUs until hour 10. C (2 GPUs, 1 h) ends in time; D (2 GPUs, 20 h) would leave the
    // head (8 GPUs) too few.
    let jobs = vec![
        JobSpec::plain(0, 6, 10 * HOUR_US),
        JobSpec::plain(HOUR_US, 8, 2 * HOUR_US),
        JobSpec::plain(2 * HOUR_US, 2, 20 * HOUR_US),
        JobSpec::plain(3 * HOUR_US, 2, HOUR_US),
    ];
    let mut sim = Sim::new(spec, jobs, vec![]).unwrap();
    assert!(sim.run_to_end(5 * DAY_US));
    let starts: Vec<i64> = sim.jobs().iter().map(|j| j.first_start_us.unwrap() / HOUR_US).collect();
    assert_eq!(starts, [0, 10, 12, 3]);
}

#[test]
fn a_gang_gets_all_or_nothing_whole_nodes_and_the_tightest_fit() {
    // Three nodes of 8. A takes 3 of one; B of 12 takes a whole node and 4 where they fit best:
    // beside A.
    let jobs =
        vec![JobSpec::plain(0, 3, HOUR_US), JobSpec::plain(1, 12, HOUR_US), JobSpec::plain(2, 9, HOUR_US)];
    let mut sim = Sim::new(instant(&[3], 8), jobs, vec![]).unwrap();
    sim.run_until(10);
    assert_eq!(sim.jobs()[0].held, [(0, 3)]);
    assert_eq!(sim.jobs()[1].held, [(1, 8), (0, 4)]);
    // One whole node and one GPU on node 0 are free: C just fits.
    assert_eq!(sim.jobs()[2].held, [(2, 8), (0, 1)]);
}

#[test]
fn quotas_stop_a_team_and_nobody_else() {
    let mut spec = instant(&[2], 8);
    let team = |name: &str, quota| TeamSpec { name: name.into(), pool: 0, quota_gpus: quota };
    spec.teams = vec![team("a", Some(4)), team("b", None)];
    let job = |submit, gpus, team| JobSpec { team, ..JobSpec::plain(submit, gpus, HOUR_US) };
    let mut sim = Sim::new(spec, vec![job(0, 4, 0), job(1, 4, 0), job(2, 8, 1)], vec![]).unwrap();
    sim.run_until(3);
    let states: Vec<JobState> = sim.jobs().iter().map(|j| j.state).collect();
    assert_eq!(states, [JobState::Running, JobState::Queued, JobState::Running]);
    sim.set_limit(0, Some(8));
    sim.run_until(4);
    assert_eq!(sim.jobs()[1].state, JobState::Running);
    sim.run_to_end(DAY_US);
    assert_eq!(sim.jobs_done(), 3);
}

#[test]
fn a_failed_node_costs_what_no_checkpoint_holds() {
    // Checkpoint each hour for 6 minutes. At 2:30 one stands at hour 1 (until 1:06) and one at 2:06
    // (until 2:12): two hours of progress are safe, 18 minutes are lost, 12 minutes were
    // checkpoints.
    let checkpoint = Checkpoint { every_us: HOUR_US, cost_us: 6 * MINUTE_US, on_notice: false };
    let job = JobSpec { checkpoint: Some(checkpoint), ..JobSpec::plain(0, 4, 5 * HOUR_US) };
    let mut sim = Sim::new(instant(&[1], 8), vec![job], vec![]).unwrap();
    sim.plan_failure(150 * MINUTE_US, 0, 30 * MINUTE_US);
    sim.run_until(3 * HOUR_US - 1);
    let minutes = |gpu_us: i128| gpu_us / 4 / i128::from(MINUTE_US);
    assert_eq!(minutes(sim.ledger().kept_gpu_us), 120);
    assert_eq!(minutes(sim.ledger().lost_failed_gpu_us), 18);
    assert_eq!(minutes(sim.ledger().overhead_gpu_us), 12);
    assert!(sim.run_to_end(DAY_US));
    // From 3:00 three hours are left, with checkpoints after the first and the second; at the very
    // end none is written.
    assert_eq!(sim.now_us(), 6 * HOUR_US + 12 * MINUTE_US);
    assert_eq!(sim.ledger().gpu_us(Class::Down), i128::from(8 * HOUR_US / 2));
    sim.audit().unwrap();
}

#[test]
fn a_rack_fails_as_one_and_its_nodes_are_back_when_the_last_of_their_failures_is_repaired() {
    // 32 nodes in two racks of 16. Node 3 of rack 0 fails at 1:00 for half an hour; the rack fails
    // at 1:15 for an hour.
    let mut sim = Sim::new(instant(&[32], 8), vec![], vec![]).unwrap();
    sim.plan_failure(HOUR_US, 3, 30 * MINUTE_US);
    sim.plan_rack_failure(75 * MINUTE_US, 0, HOUR_US);
    let mut down = |at_us: i64| {
        sim.run_until(at_us);
        sim.nodes().iter().filter(|n| !n.up).map(|n| n.rack).collect::<Vec<_>>()
    };
    assert_eq!(down(70 * MINUTE_US), [0]);
    assert_eq!(down(100 * MINUTE_US), [0; 16], "node 3 is repaired, but not its rack");
    assert!(down(135 * MINUTE_US).is_empty());
    // 15 minutes of one node, and an hour of sixteen.
    assert_eq!(sim.ledger().gpu_us(Class::Down), i128::from(8 * 15 * MINUTE_US + 16 * 8 * HOUR_US));
    sim.audit().unwrap();
}

#[test]
fn a_straggler_slows_the_whole_gang() {
    let mut sim = Sim::new(instant(&[2], 8), vec![JobSpec::plain(0, 16, 4 * HOUR_US)], vec![]).unwrap();
    sim.plan_speed(HOUR_US, 1, 500_000);
    sim.plan_speed(3 * HOUR_US, 1, 1_000_000);
    assert!(sim.run_to_end(DAY_US));
    // One hour at full speed, two at half, then the two that are left.
    assert_eq!(sim.now_us(), 5 * HOUR_US);
    sim.audit().unwrap();
}

#[test]
fn an_elastic_job_goes_as_fast_as_its_curve_says() {
    let mut spec = instant(&[2], 8);
    spec.curves = vec![tidegate_sim::amdahl(0, 16)];
    let checkpoint = Checkpoint { every_us: HOUR_US, cost_us: 0, on_notice: true };
    let elastic = Elastic { min_gpus: 4, max_gpus: 16, curve: 0 };
    let job =
        JobSpec { elastic: Some(elastic), checkpoint: Some(checkpoint), ..JobSpec::plain(0, 8, 8 * HOUR_US) };
    let mut sim = Sim::new(spec, vec![job], vec![]).unwrap();
    sim.run_until(2 * HOUR_US);
    sim.grow(0, 16).unwrap();
    assert_eq!(sim.jobs()[0].gpus(), 16);
    sim.run_until(4 * HOUR_US);
    // 2 + 2 × 2 of 8 hours are done; with 4 GPUs the two left take four.
    sim.shrink(0, vec![(0, 4)], true).unwrap();
    assert!(sim.run_to_end(DAY_US));
    assert_eq!(sim.now_us(), 8 * HOUR_US);
    assert_eq!(sim.outcome().useful_gpu_us, i128::from(64 * HOUR_US));
    assert_eq!(sim.ledger().gpu_us(Class::Allocated), i128::from((16 + 32 + 16) * HOUR_US));
    assert!(sim.grow(0, 16).is_err());
    sim.audit().unwrap();
}

#[test]
fn lending_and_calling_back_take_what_their_parts_take() {
    // Two nodes serve. From hour 2 on both are needed; node 1 is called back at hour 2.
    let checkpoint = Checkpoint { every_us: DAY_US, cost_us: 0, on_notice: true };
    let job = JobSpec {
        loan: true,
        checkpoint: Some(checkpoint),
        restart_us: MINUTE_US,
        ..JobSpec::plain(0, 16, 6 * HOUR_US)
    };
    let mut sim =
        Sim::new(ClusterSpec::uniform(&[1, 2], 8), vec![job], vec![service(vec![8, 8, 16])]).unwrap();
    sim.lend(1, 0).unwrap();
    assert!(sim.lend(0, 0).is_err(), "a node of the jobs' own pool is nobody's to lend");
    sim.run_until(HOUR_US);
    assert_eq!(sim.nodes()[1].place, Place::Lent { to: 0 });
    assert_eq!(sim.jobs()[0].first_start_us, Some(30 * SECOND_US));
    sim.run_until(2 * HOUR_US);
    sim.clear_and_call_back(1, true).unwrap();
    sim.run_until(3 * HOUR_US);
    assert_eq!(sim.nodes()[1].place, Place::Home);
    // Notice 60, checkpoint 60, kill 30, hand-over 30, load 180 s: six minutes in which 8 GPUs are
    // missing.
    assert_eq!(sim.ledger().unmet_us, 6 * MINUTE_US);
    assert_eq!(sim.ledger().unmet_gpu_us, i128::from(8 * 6 * MINUTE_US));
    assert_eq!(sim.jobs()[0].state, JobState::Queued);
    assert_eq!(sim.ledger().lost_preempted_gpu_us, 0);
    assert_eq!(sim.outcome().preemptions, 1);
    // It ran from 0:00:30, with 5 s of start and 60 s of restart, until 2:01:00.
    assert_eq!(sim.ledger().kept_gpu_us, i128::from(16 * (2 * HOUR_US + 60 * SECOND_US - 95 * SECOND_US)));
    sim.audit().unwrap();
}

#[test]
fn nodes_called_back_one_after_the_other_all_come_home() {
    let checkpoint = Checkpoint { every_us: DAY_US, cost_us: 0, on_notice: true };
    let elastic = Elastic { min_gpus: 8, max_gpus: 32, curve: 0 };
    let job = JobSpec {
        loan: true,
        elastic: Some(elastic),
        checkpoint: Some(checkpoint),
        ..JobSpec::plain(0, 24, 9 * HOUR_US)
    };
    let mut sim = Sim::new(ClusterSpec::uniform(&[1, 2], 8), vec![job], vec![service(vec![0])]).unwrap();
    [1, 2].into_iter().for_each(|node| sim.lend(node, 0).unwrap());
    sim.run_until(HOUR_US);
    assert_eq!(sim.jobs()[0].gpus(), 24);
    sim.clear_and_call_back(1, true).unwrap();
    sim.run_until(HOUR_US + MINUTE_US);
    // The job has notice for node 1 and is still writing its checkpoint.
    sim.clear_and_call_back(2, true).unwrap();
    sim.run_until(HOUR_US + 6 * MINUTE_US);
    assert!(sim.nodes().iter().all(|n| n.place == Place::Home));
    assert_eq!((sim.jobs()[0].gpus(), sim.outcome().preemptions), (8, 0));
}

#[test]
fn higher_priority_takes_the_place_of_what_loses_least() {
    let mut spec = instant(&[2], 8);
    spec.schedule.preempt = true;
    let mut urgent = JobSpec::plain(3 * HOUR_US, 8, HOUR_US);
    urgent.priority = 1;
    let jobs = vec![JobSpec::plain(0, 8, 10 * HOUR_US), JobSpec::plain(2 * HOUR_US, 8, 10 * HOUR_US), urgent];
    let mut sim = Sim::new(spec, jobs, vec![]).unwrap();
    sim.run_until(3 * HOUR_US + 1);
    let states: Vec<JobState> = sim.jobs().iter().map(|j| j.state).collect();
    assert_eq!(states, [JobState::Running, JobState::Queued, JobState::Running]);
    assert_eq!(sim.ledger().lost_preempted_gpu_us, i128::from(8 * HOUR_US));
    assert!(sim.run_to_end(5 * DAY_US));
}

#[test]
fn a_job_that_can_never_run_is_refused() {
    let refused = Sim::new(instant(&[1], 8), vec![JobSpec::plain(0, 9, 1)], vec![]).unwrap_err();
    assert!(
        refused.to_string().contains("job 0 asks for 9 GPUs where there are never more than 8"),
        "{refused}"
    );
}

/// Two nodes of 8 GPUs for teams `a` and `b`, and their jobs of 8 GPUs: minute of submission,
/// hours, and team.
fn shared(jobs: &[(i64, i64, usize)]) -> Sim {
    let mut spec = instant(&[2], 8);
    let team = |name: &str| TeamSpec { name: name.into(), pool: 0, quota_gpus: None };
    spec.teams = vec![team("a"), team("b")];
    let job = |(minute, hours, team): &(i64, i64, usize)| JobSpec {
        team: *team,
        ..JobSpec::plain(minute * MINUTE_US, 8, hours * HOUR_US)
    };
    Sim::new(spec, jobs.iter().map(job).collect(), vec![]).unwrap()
}

#[test]
fn a_reservation_is_for_one_team_from_its_begin_to_its_end() {
    let (a, b) = (0, 1);
    let mut sim = shared(&[(0, 2, b), (10, 1, b), (90, 5, b), (130, 1, b), (140, 2, a), (150, 2, a)]);
    sim.run_until(MINUTE_US);
    // The first job is on node 0, so node 1 is reserved, from hour 3 to hour 6.
    sim.reserve("r", a, 8, 3 * HOUR_US, 6 * HOUR_US).unwrap();
    assert!(sim.reservations()["r"].nodes.iter().eq([&1]));
    assert!(sim.run_to_end(DAY_US));
    let starts: Vec<i64> = sim.jobs().iter().map(|j| j.first_start_us.unwrap() / MINUTE_US).collect();
    // The second ends before it begins; the fourth would not, and waits until its end and that of
    // the sixth. The fifth and sixth start in it before others that wait longer; the sixth outlasts
    // it.
    assert_eq!(starts, [0, 10, 120, 420, 180, 300]);
    assert!(sim.reservations().is_empty());
    sim.audit().unwrap();
}

#[test]
fn a_reservation_without_room_is_refused_and_changes_nothing() {
    let mut sim = shared(&[(0, 2, 1)]);
    sim.run_until(MINUTE_US);
    let why = |sim: &mut Sim, name: &str, team, gpus, from: i64, to: i64| {
        let before = (sim.reservations().clone(), sim.nodes().iter().filter(|n| n.reserved).count());
        let why = sim.reserve(name, team, gpus, from * HOUR_US, to * HOUR_US).unwrap_err().to_string();
        assert_eq!(before, (sim.reservations().clone(), sim.nodes().iter().filter(|n| n.reserved).count()));
        why
    };
    let busy = why(&mut sim, "r", 0, 16, 1, 3);
    assert_eq!(busy, "reservation r wants 16 GPUs, and whole nodes of 8 are free by then");
    assert!(why(&mut sim, "r", 0, 12, 3, 4).contains("whole nodes of 8"), "half a node");
    assert!(why(&mut sim, "r", 0, 8, 3, 3).ends_with("would end before it begins"));
    // By hour 3 the job has ended. It grows, shrinks, and is the team's own.
    sim.reserve("r", 0, 8, 3 * HOUR_US, 4 * HOUR_US).unwrap();
    sim.reserve("r", 0, 16, 9 * HOUR_US, 5 * HOUR_US).unwrap();
    let found = &sim.reservations()["r"];
    assert_eq!((found.start_us, found.end_us, found.nodes.len()), (3 * HOUR_US, 5 * HOUR_US, 2));
    assert!(why(&mut sim, "r", 1, 8, 3, 4).ends_with("belongs to another team"));
    assert!(why(&mut sim, "s", 0, 8, 3, 4).contains("whole nodes of 0"));
    sim.reserve("r", 0, 8, 3 * HOUR_US, 5 * HOUR_US).unwrap();
    assert!(sim.reservations()["r"].nodes.iter().eq([&0]), "the idle node goes first");
    sim.reserve("r", 0, 0, 3 * HOUR_US, 5 * HOUR_US).unwrap();
    assert!(sim.reservations().is_empty());
    let mut used = shared(&[(5, 2, 0)]);
    used.reserve("r", 0, 16, 0, 6 * HOUR_US).unwrap();
    used.run_until(10 * MINUTE_US);
    assert!(why(&mut used, "r", 0, 0, 0, 6).ends_with("is in use: jobs run in it"));
    used.reserve("r", 0, 8, 0, 6 * HOUR_US).unwrap();
    assert!(used.reservations()["r"].nodes.iter().eq([&0]));
    let mut serving = Sim::new(instant(&[1, 1], 8), vec![], vec![service(vec![8])]).unwrap();
    serving.reserve("r", 0, 8, 0, HOUR_US).unwrap();
    let mut spec = instant(&[1, 1], 8);
    spec.teams[0].pool = 1;
    let mut serving = Sim::new(spec, vec![], vec![service(vec![8])]).unwrap();
    assert!(why(&mut serving, "r", 0, 8, 0, 1).ends_with("is in a pool that serves"));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    /// The audit passes after every change, and the same run gives the same ledger.
    #[test]
    fn the_books_are_in_order_at_every_step(seed in 0..u64::MAX, doing in prop::collection::vec((0..8u8, 0..1_000u32), 60..120)) {
        let run = || {
            let of = generate::Arrivals { span_us: DAY_US, load_gpus: 90, max_gpus: 32, teams: 2, ..Default::default() };
            let mut spec = ClusterSpec::uniform(&[10, 6], 8);
            spec.teams.push(TeamSpec { name: "b".into(), pool: 0, quota_gpus: Some(48) });
            spec.schedule.backfill = if seed % 2 == 0 { Backfill::Easy { depth: 20 } } else { Backfill::Off };
            spec.schedule.preempt = seed % 3 == 0;
            spec.schedule.start_smaller = seed % 5 < 2;
            let mut jobs = generate::arrivals(&of, seed);
            jobs.iter_mut().enumerate().for_each(|(i, j)| j.priority = i32::from(i % 7 == 0));
            let load = generate::Load { span_us: DAY_US, peak_gpus: 48, ..Default::default() };
            let mut sim = Sim::new(spec, jobs, vec![generate::load(&load, 1, seed)]).unwrap();
            for fault in generate::faults(16, DAY_US, 50_000_000, seed) {
                sim.plan_failure(fault.at_us, fault.node, fault.repair_us.min(3 * HOUR_US));
            }
            for (step, (what, which)) in doing.iter().enumerate() {
                let until_us = (step as i64 + 1) * DAY_US / 60;
                while let Some(at_us) = sim.next_us().filter(|at| *at <= until_us) {
                    sim.run_until(at_us);
                    sim.audit().unwrap();
                }
                sim.run_until(until_us);
                let running: Vec<u32> = sim.running().collect();
                let job = running.get(*which as usize % running.len().max(1)).copied();
                let node = which % 16;
                // A refused change must change nothing.
                match (what, job) {
                    (0, _) => drop(sim.lend(node, 0)),
                    (1, _) => drop(sim.clear_and_call_back(node, which % 2 == 0)),
                    (2, Some(job)) => sim.evict(job, which % 2 == 0),
                    (3, Some(job)) => drop(sim.grow(job, sim.jobs()[job as usize].gpus() * 2)),
                    (4, Some(job)) => {
                        let mut keep = sim.jobs()[job as usize].held.clone();
                        keep.pop();
                        drop(sim.shrink(job, keep, true));
                    }
                    (5, _) => sim.set_drained(node, which % 2 == 0),
                    (6, _) => sim.plan_speed(sim.now_us(), node, 500_000 + which * 500),
                    (7, _) => {
                        let (team, start_us) = (*which as usize % 2, sim.now_us() + i64::from(which % 5) * HOUR_US);
                        let name = ["r", "s", "t"][*which as usize / 2 % 3];
                        drop(sim.reserve(name, team, 8 * (which % 4), start_us, start_us + 3 * HOUR_US));
                    }
                    _ => {}
                }
                sim.audit().unwrap();
            }
            (sim.ledger().clone(), sim.outcome(), sim.ticks())
        };
        prop_assert_eq!(run(), run());
    }
}
