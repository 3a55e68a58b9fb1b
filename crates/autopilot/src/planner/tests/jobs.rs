//! Resizing and stopping jobs.

use super::*;
use crate::action::Change;
use crate::fixture::{S, cluster, elastic, gang, pending};
use crate::state::{GrowBy, Job, JobKind, interruption};

/// Two elastic jobs on one node each, with two nodes free.
fn two(share_a: u64, share_b: u64) -> ClusterState {
    let mut state = cluster();
    state.jobs.insert("a".into(), elastic(&["t0"], share_a));
    state.jobs.insert("b".into(), elastic(&["t1"], share_b));
    state
}

fn sizes(plan: &Plan) -> Vec<(String, u32)> {
    let to = |decision: &Decision| match &decision.action.change {
        Change::ResizeJob { job, to_gpus, .. } => Some((job.clone(), *to_gpus)),
        _ => None,
    };
    plan.decisions.iter().filter_map(to).collect()
}

#[test]
fn free_gpus_go_where_they_speed_up_most() {
    let (plan, report) = planned(&two(900_000, 600_000), &FixedForecast::highest(128.0));
    assert_eq!(sizes(&plan), [("a".into(), 24)]);
    // 8 GPUs x 0.9 x 2 for an hour; 8 GPUs pause for 20 s.
    let predicted = of_kind(&plan, Kind::ResizeJob)[0].predicted;
    assert_eq!((predicted.benefit_gpu_ms, predicted.cost_gpu_ms), (51_840_000, 160_000));
    assert_eq!(noops(&report, Kind::ResizeJob), ["other jobs gain more from the free GPUs"]);
    // Concave curves share: a's second step is worth less than b's first.
    let mut state = two(900_000, 600_000);
    let points = [(8, 8_000_000), (16, 15_200_000), (24, 18_000_000)];
    let points = points.map(|(gpus, rate_ppm)| crate::state::CurvePoint { gpus, rate_ppm });
    state.jobs.get_mut("a").unwrap().curve = crate::state::ScalingCurve::new(points.to_vec()).ok();
    assert_eq!(
        sizes(&planned(&state, &FixedForecast::highest(128.0)).0),
        [("a".into(), 16), ("b".into(), 16)]
    );
}

#[test]
fn growth_must_pay_for_its_pause() {
    let mut state = two(900_000, 0);
    // One more minute of work: 2.5 x the rate for 25 s gains less than the pause costs.
    state.jobs.get_mut("a").unwrap().remaining_work_ms = Some(8 * 60_000);
    let (plan, report) = planned(&state, &FixedForecast::highest(128.0));
    assert!(plan.decisions.is_empty());
    assert!(noops(&report, Kind::ResizeJob).iter().any(|why| why.contains("too little")));
    // A restart loses eleven minutes of eight GPUs, which an hour of sixteen more at 0.9 outweighs.
    let mut state = two(900_000, 0);
    let JobKind::Elastic { grow, .. } = &mut state.jobs.get_mut("a").unwrap().kind else { panic!() };
    *grow = GrowBy::Requeue;
    let (plan, _) = planned(&state, &FixedForecast::highest(128.0));
    assert_eq!(plan.decisions[0].predicted.cost_gpu_ms, 8 * 660_000);
}

#[test]
fn jobs_rest_have_limits_and_owners_who_say_no() {
    let why = |change: &dyn Fn(&mut ClusterState)| {
        let mut state = two(900_000, 0);
        change(&mut state);
        let (plan, report) = planned(&state, &FixedForecast::highest(128.0));
        assert_eq!(sizes(&plan), []);
        noops(&report, Kind::ResizeJob)[0].to_owned()
    };
    let rests = why(&|state| state.jobs.get_mut("a").unwrap().resized_us = Some(NOW - 199 * S));
    assert_eq!(rests, "resized 199 s ago; its size stays for 200 s");
    assert_eq!(why(&|state| state.jobs.get_mut("a").unwrap().opt_in = false), "its owner has not opted in");
    assert_eq!(
        why(&|state| state.jobs.get_mut("a").unwrap().do_not_disrupt = true),
        "it is marked do-not-disrupt"
    );
    let waits = why(&|state| drop(state.jobs.insert("w".into(), pending(16, 60))));
    assert_eq!(waits, "no GPUs are free beyond those that waiting jobs need");
    let limit = |state: &mut ClusterState| {
        state.owners.get_mut("research").unwrap().shares.get_mut("train").unwrap().limit_gpus = Some(16);
    };
    assert_eq!(why(&limit), "other jobs gain more from the free GPUs");
}

#[test]
fn a_job_whose_scaling_is_unknown_grows_on_trial_into_what_nobody_else_wants() {
    let mut state = two(900_000, 0);
    let unknown = state.jobs.get_mut("a").unwrap();
    (unknown.curve, unknown.checkpoint.step_us) = (None, Some(10_000_000));
    let tries = |policy: &str, state: &ClusterState| {
        let policy = Policy::parse(policy).unwrap();
        plan(&policy, state, &FixedForecast::highest(128.0), None, NOW, 7)
    };
    let (plan, _) = tries("", &state);
    assert_eq!(sizes(&plan), [("a".into(), 24)]);
    // 16 GPUs at a quarter each for an hour; eight pause for 20 s.
    let predicted = of_kind(&plan, Kind::ResizeJob)[0].predicted;
    assert_eq!((predicted.benefit_gpu_ms, predicted.cost_gpu_ms), (14_400_000, 160_000));
    // A job that is known to gain more comes first.
    state.jobs.insert("b".into(), elastic(&["t1"], 300_000));
    assert_eq!(sizes(&tries("", &state).0), [("b".into(), 24)]);
    state.jobs.remove("b");
    let (plan, report) = tries("[resize]\ntrial_gain = 0.0", &state);
    assert_eq!((sizes(&plan), noops(&report, Kind::ResizeJob)), (vec![], vec!["its scaling is unknown"]));
    // Nobody would learn from a trial of a job that reports no steps.
    state.jobs.get_mut("a").unwrap().checkpoint.step_us = None;
    assert_eq!(sizes(&tries("", &state).0), []);
}

#[test]
fn what_a_job_grew_by_goes_to_the_first_that_waits() {
    // It asked for one node and has three; the fourth is taken.
    let mut state = cluster();
    state.jobs.insert("e".into(), elastic(&["t0", "t1", "t2"], 300_000));
    state.jobs.insert("g".into(), gang(&["t3"]));
    let given = |state: &ClusterState| {
        let (plan, _) = planned(state, &FixedForecast::highest(128.0));
        let serves = |d: &Decision| d.serves.clone().map(|object| object.to_string());
        (sizes(&plan), plan.decisions.iter().map(serves).collect::<Vec<_>>())
    };
    assert_eq!(given(&state), (vec![], vec![]), "nobody waits");
    // At once, also to a job that others may stop, and for which no loan is needed then.
    state.jobs.insert("w".into(), pending(8, 0));
    assert_eq!(given(&state), (vec![("e".into(), 16)], vec![Some("job w".into())]));
    // The second of the queue gets the rest in the next plan, when the job has shrunk.
    state.jobs.insert("x".into(), pending(16, 0));
    assert_eq!(given(&state).0, [("e".into(), 16)]);
    // What it asked for stays its own: 24 GPUs are more than it grew by.
    state.jobs.get_mut("x").unwrap().state = pending(24, 60).state;
    state.jobs.get_mut("x").unwrap().gpus = 24;
    assert_eq!(given(&state).0, [], "the first of the queue is not passed over");
    state.jobs.remove("x");
    let keeps = |change: fn(&mut Job)| {
        let mut state = state.clone();
        change(state.jobs.get_mut("e").unwrap());
        assert_eq!(given(&state).0, []);
    };
    keeps(|job| job.opt_in = false);
    keeps(|job| job.do_not_disrupt = true);
    // A node that others share stays taken once the job has left it, and its own first it cannot
    // leave.
    let shared = state.jobs.get_mut("e").unwrap();
    shared.anchor_node = Some("t0".into());
    shared.placement = [("t0".to_owned(), 8), ("t1".to_owned(), 4), ("t2".to_owned(), 4)].into();
    state.jobs.insert("h".into(), part("t1", 4));
    state.jobs.insert("i".into(), part("t2", 4));
    assert_eq!(given(&state).0, []);
}

#[test]
fn what_a_job_grew_by_is_owed_to_those_who_wait_also_where_it_does_as_much_work() {
    // Each of its GPUs does the work of one, so giving them to another job gains nothing.
    let mut state = cluster();
    state.jobs.insert("e".into(), elastic(&["t0", "t1"], 1_000_000));
    state.jobs.insert("g".into(), gang(&["t2"]));
    state.jobs.insert("h".into(), gang(&["t3"]));
    state.jobs.insert("w".into(), pending(8, 0));
    assert!(state.jobs["w"].preemptible);
    let given = |state: &ClusterState| {
        let (plan, report) = planned(state, &FixedForecast::highest(128.0));
        let of_w =
            |it: &&Considered| it.object == Some(Object::Job("w".into())) && it.kind == Kind::ResizeJob;
        assert!(plan.decisions.iter().all(|decision| decision.is_owed));
        (sizes(&plan), report.considered.iter().find(of_w).map(|it| it.reason.clone()).unwrap_or_default())
    };
    assert_eq!(given(&state).0, [("e".into(), 8)]);
    // Also to a job of a lower priority, which would run if the other had not grown.
    state.jobs.get_mut("e").unwrap().priority = 1;
    assert_eq!(given(&state).0, [("e".into(), 8)]);
    // Also where a job ahead of it takes what is free.
    let mut second = state.clone();
    second.jobs.remove("g");
    second.jobs.insert("v".into(), pending(8, 60));
    assert_eq!(given(&second).0, [("e".into(), 8)]);
    // Where as many GPUs are free, but scattered, not growth alone keeps the job waiting.
    state.jobs.remove("g");
    state.jobs.remove("h");
    state.jobs.insert("p".into(), part("t2", 4));
    state.jobs.insert("q".into(), part("t3", 4));
    let (sizes, why) = given(&state);
    assert_eq!(sizes, []);
    assert!(why.starts_with("giving it 8 GPUs that others grew by would cost"), "{why}");
    // The report says where growth cannot free enough.
    state.jobs.insert("p".into(), gang(&["t2"]));
    state.jobs.insert("w".into(), pending(24, 0));
    assert_eq!(
        given(&state),
        (vec![], "it lacks 24 GPUs on nodes that it can use; shrinking grown jobs would free only 8".into())
    );
}

#[test]
fn room_is_made_by_shrinking_before_stopping() {
    let mut state = cluster();
    state.jobs.insert("e".into(), elastic(&["t0", "t1"], 300_000));
    state.jobs.insert("g".into(), gang(&["t2", "t3"]));
    let mut waits = pending(8, 4_000);
    (waits.preemptible, waits.priority) = (false, 10);
    state.jobs.insert("w".into(), waits);
    let (plan, _) = planned(&state, &FixedForecast::highest(128.0));
    assert_eq!(sizes(&plan), [("e".into(), 8)]);
    assert!(of_kind(&plan, Kind::Preempt).is_empty());
    // 24 GPUs: the surplus and the gang.
    state.jobs.get_mut("w").unwrap().gpus = 24;
    let (plan, _) = planned(&state, &FixedForecast::highest(128.0));
    assert_eq!(sizes(&plan), [("e".into(), 8)]);
    assert_eq!(of_kind(&plan, Kind::Preempt)[0].action.change.object(), Object::Job("g".into()));
    // Both name the job that waits, and speak of the time for which it gets them.
    let serves = |d: &Decision| (d.serves.clone(), d.predicted.over_ms);
    let for_w = (Some(Object::Job("w".into())), 3_600_000);
    assert!(plan.decisions.iter().all(|decision| serves(decision) == for_w));
    // Nobody is stopped for equal priority, or before the wait is over.
    state.jobs.get_mut("w").unwrap().priority = 0;
    let (plan, report) = planned(&state, &FixedForecast::highest(128.0));
    assert!(plan.decisions.is_empty());
    assert!(noops(&report, Kind::Preempt)[0].starts_with("it lacks 24 GPUs"));
}

/// A job of `gpus` on one node.
fn part(node: &str, gpus: u32) -> crate::state::Job {
    crate::state::Job { gpus, placement: [(node.to_owned(), gpus)].into(), ..gang(&[]) }
}

#[test]
fn growth_is_by_what_fits_in_one_place() {
    // 4 + 4 GPUs are free on two nodes, but sizes are whole nodes, so neither job can grow.
    let mut state = two(900_000, 600_000);
    state.jobs.insert("h".into(), part("t2", 4));
    state.jobs.insert("i".into(), part("t3", 4));
    let (plan, _) = planned(&state, &FixedForecast::highest(128.0));
    assert_eq!(sizes(&plan), []);
    state.jobs.remove("i");
    let (plan, _) = planned(&state, &FixedForecast::highest(128.0));
    assert_eq!(sizes(&plan), [("a".into(), 16)]);
}

#[test]
fn small_jobs_are_moved_together_for_a_gang() {
    // 12 GPUs are free, but no whole node. t1's job of 2 fits beside t2's or t3's; emptying t3
    // would lose twice as much.
    let mut state = cluster();
    state.jobs.insert("a".into(), gang(&["t0"]));
    state.jobs.insert("b".into(), part("t1", 2));
    state.jobs.insert("c".into(), part("t2", 6));
    state.jobs.insert("d".into(), part("t3", 4));
    state.jobs.insert("w".into(), pending(8, 900));
    let says = || FixedForecast { coverage: None, ..FixedForecast::highest(128.0) };
    let stopped = |state: &ClusterState| -> Vec<Object> {
        let (plan, _) = planned(state, &says());
        of_kind(&plan, Kind::Preempt).iter().map(|d| d.action.change.object()).collect()
    };
    assert_eq!(stopped(&state), [Object::Job("b".into())]);
    let (plan, _) = planned(&state, &says());
    // 2 GPUs lose the ten minutes since their checkpoint and a minute's restart; the gang works for
    // an hour.
    let predicted = of_kind(&plan, Kind::Preempt)[0].predicted;
    assert_eq!((predicted.cost_gpu_ms, predicted.benefit_gpu_ms), (2 * 660_000, 8 * 3_600_000));
    // Not too early, not while room is already being made, and not if the moved job would not fit.
    let mut early = state.clone();
    early.jobs.insert("w".into(), pending(8, 899));
    assert_eq!(stopped(&early), []);
    let mut leaving = state.clone();
    leaving.jobs.get_mut("c").unwrap().state = crate::state::JobState::Changing { since_us: NOW - 7_200 * S };
    assert_eq!(stopped(&leaving), []);
    let mut tight = state.clone();
    tight.jobs.insert("b".into(), part("t1", 5));
    tight.jobs.insert("d".into(), part("t3", 5));
    assert_eq!(stopped(&tight), [], "5 fit nowhere else");
    state.jobs.get_mut("b").unwrap().preemptions_24h = 1;
    assert_eq!(stopped(&state), [Object::Job("d".into())], "once a day; 4 fit beside 2");
}

#[test]
fn the_victim_loses_least_and_notice_lowers_its_loss() {
    let mut state = cluster();
    state.jobs.insert("old".into(), gang(&["t0", "t1"]));
    let mut fresh = gang(&["t2", "t3"]);
    fresh.checkpoint.last_us = Some(NOW - 10 * S);
    state.jobs.insert("fresh".into(), fresh);
    let mut waits = pending(16, 4_000);
    (waits.preemptible, waits.priority) = (false, 10);
    state.jobs.insert("w".into(), waits);
    let victim = |state: &ClusterState| {
        let (plan, _) = planned(state, &FixedForecast::highest(128.0));
        let decision = of_kind(&plan, Kind::Preempt)[0];
        (decision.action.change.object(), decision.action.notice_ms, decision.predicted.cost_gpu_ms)
    };
    // 16 x (10 + 60 s), and an hour of its GPUs.
    assert_eq!(victim(&state), (Object::Job("fresh".into()), 0, 16 * 3_670_000));
    // With notice the other job loses 5 s for its checkpoint instead of ten minutes.
    let old = &mut state.jobs.get_mut("old").unwrap().checkpoint;
    (old.on_notice, old.save_ms) = (true, Some(5_000));
    assert_eq!(victim(&state), (Object::Job("old".into()), 120_000, 16 * 3_665_000));
    // Stopped once today already, so the other job is chosen again.
    state.jobs.get_mut("old").unwrap().preemptions_24h = 1;
    assert_eq!(victim(&state).0, Object::Job("fresh".into()));
}

#[test]
fn a_loss_is_the_work_since_the_checkpoint_and_never_more_than_the_run() {
    let rules = Policy::shipped().preempt;
    let mut job = gang(&["t0"]);
    assert_eq!(interruption(&job, 8, NOW, &rules).planned_gpu_ms(), 8 * 660_000);
    job.checkpoint.last_us = None;
    assert_eq!(interruption(&job, 8, NOW, &rules).abrupt_gpu_ms, 8 * (7_200_000 + 60_000));
    job.checkpoint.last_us = Some(NOW - 90_000 * S);
    assert_eq!(interruption(&job, 8, NOW, &rules).abrupt_gpu_ms, 8 * (7_200_000 + 60_000));
    job.checkpoint.on_notice = true;
    assert_eq!(interruption(&job, 8, NOW, &rules).planned_gpu_ms(), 8 * 90_000);
    job.checkpoint.restart_ms = None;
    assert_eq!(interruption(&job, 8, NOW, &rules).planned_gpu_ms(), 8 * 330_000, "the policy's restart");
}

#[test]
fn only_a_save_that_is_known_to_be_in_time_lowers_the_loss() {
    let rules = Policy::shipped().preempt;
    let mut job = gang(&["t0"]);
    job.checkpoint.on_notice = true;
    let mut loss = |save_ms| {
        job.checkpoint.save_ms = save_ms;
        interruption(&job, 8, NOW, &rules).planned_gpu_ms()
    };
    assert_eq!(loss(Some(120_000)), 8 * 180_000, "as long as the notice");
    assert_eq!(loss(Some(120_001)), 8 * 660_000, "longer than the notice");
    assert_eq!(loss(None), 8 * 660_000, "it may save, which nobody knows");
    // It saves all the same, although it did so a moment ago.
    let mut fresh = gang(&["t0"]);
    (fresh.checkpoint.on_notice, fresh.checkpoint.last_us) = (true, Some(NOW - S));
    assert_eq!(interruption(&fresh, 8, NOW, &rules).planned_gpu_ms(), 8 * 90_000);
}
