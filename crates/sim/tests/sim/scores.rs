//! Scores against the truth: the same scene runs with and without one action, and the difference
//! of useful GPU time in the simulator's own ledger is compared with what the meter says.
//!
//! The meter sees the cluster once a minute. Between two looks it takes the first for what holds,
//! so each change that it times may be off by a minute, and it does not see that a job makes no
//! progress in the seconds after its start. Each comparison states how many GPU-minutes that is.

use std::collections::BTreeSet;

use tidegate_autopilot::{
    action::{Action, Change},
    impact::{Basis, Companions, Measured, Meter, Suspects, View},
    planner::{Decision, Plan, Predicted},
    policy::{Footprint, Mode, Policy},
    scorecard::{Interval, Realised, Score, score},
    state::{ClusterState, Health, Object},
    target::{Effect, Target},
};
use tidegate_sim::{
    Checkpoint, Class, ClusterSpec, HOUR_US, JobSpec, MINUTE_US, SECOND_US, ServiceSpec, Sim, TeamSpec,
    target::{ControlFaults, SimTarget},
};

const EPOCH_US: i64 = 1_700_000_000_000_000;
/// One GPU for a minute, GPUs × ms.
const GPU_MINUTE: i64 = 60_000;
const GPU_HOUR: i64 = 60 * GPU_MINUTE;
/// Time of a save; without one, no save is reported.
const SAVE_US: i64 = 10 * SECOND_US;
/// From a start to the first step, beside the five seconds of the scheduler.
const RESTART_US: i64 = 55 * SECOND_US;

/// A missing GPU-hour counts like one of useful work, so that both sides add up to GPU-hours. A
/// restart that nobody measured is taken to last a minute, as it does.
fn policy() -> Policy {
    let mut policy = Policy::auto();
    policy.preempt.restart_s = 60;
    policy.worth.missing_micros_per_gpu_hour = policy.worth.useful_micros_per_gpu_hour;
    policy
}

fn named(name: &str) -> BTreeSet<String> {
    [name.to_owned()].into()
}

/// A scene: how it begins, what is done in it, and what is seen beside the simulation.
struct Scene {
    start: Box<dyn Fn() -> SimTarget>,
    at_us: i64,
    /// The action, and those that are part of it.
    main: (Change, Option<Object>),
    parts: Vec<(Change, Option<Object>)>,
    over_us: i64,
    see: fn(&mut ClusterState),
    suspects: Suspects,
}

/// Useful GPU time of each team, and what services served, GPUs × ms.
#[derive(Debug, Clone, PartialEq)]
struct Truth {
    teams: Vec<i64>,
    served: i64,
}

impl Truth {
    fn of(sim: &Sim) -> Self {
        let ms = |us: i128| i64::try_from(us / 1_000).unwrap();
        let teams = sim.outcome().teams.iter().map(|team| ms(team.useful_gpu_us)).collect();
        Self { teams, served: ms(sim.ledger().gpu_us(Class::Serving)) }
    }

    /// This less another.
    fn less(&self, other: &Self) -> Self {
        let teams = self.teams.iter().zip(&other.teams).map(|(a, b)| a - b).collect();
        Self { teams, served: self.served - other.served }
    }
}

fn decision(id: &str, scene: &Scene, of: &(Change, Option<Object>), after: &[&str]) -> Decision {
    let action = Action {
        id: id.to_owned(),
        generation: 1,
        change: of.0.clone(),
        preconditions: Vec::new(),
        inverse: None,
        expires_us: EPOCH_US + 1_000 * HOUR_US,
        effect_ends_us: None,
        notice_ms: 0,
        after: after.iter().map(|id| (*id).to_owned()).collect(),
    };
    Decision {
        kind: action.change.kind(),
        action,
        mode: Mode::Act,
        canary: None,
        serves: of.1.clone(),
        is_owed: false,
        footprint: Footprint::default(),
        gpus: 8,
        predicted: Predicted {
            benefit_gpu_ms: 20 * GPU_HOUR,
            benefit_low_gpu_ms: 16 * GPU_HOUR,
            over_ms: scene.over_us / 1_000,
            ..Predicted::default()
        },
        reason: "a test".to_owned(),
    }
}

fn plan(decisions: Vec<Decision>) -> Plan {
    Plan {
        id: "p".into(),
        cluster: "sim".into(),
        made_us: EPOCH_US,
        observed_us: EPOCH_US,
        policy: "auto".into(),
        policy_hash: String::new(),
        canary_hash: None,
        state_hash: String::new(),
        parent: None,
        seed: 0,
        decisions,
    }
}

/// Runs to `until_us` and observes once a minute, as an executor does.
fn observe_each_minute(
    target: &mut SimTarget,
    until_us: i64,
    mut seen: impl FnMut(&mut SimTarget, ClusterState),
) {
    while target.sim().now_us() < until_us {
        target.run_until((target.sim().now_us() / MINUTE_US + 1) * MINUTE_US);
        let state = target.observe().unwrap();
        seen(target, state);
    }
}

/// Runs a scene with its action and without; returns the difference and the score.
fn compare(scene: &Scene) -> (Truth, Score, Realised) {
    let (mut with, mut without) = ((scene.start)(), (scene.start)());
    observe_each_minute(&mut with, scene.at_us, |_, _| {});
    let mut state = with.observe().unwrap();
    (scene.see)(&mut state);
    let main = decision("main", scene, &scene.main, &[]);
    let is_part = |change: &Change| !matches!(change, Change::DrainNode { .. });
    let after: &[&str] = if is_part(&main.action.change) { &["main"] } else { &[] };
    let parts: Vec<Decision> = scene.parts.iter().map(|part| decision("part", scene, part, after)).collect();
    let whole = plan(std::iter::once(&main).chain(&parts).cloned().collect());
    let basis = |of: &Decision| Basis::of(of, &whole, &state, &policy());
    let (main_basis, part_basis): (_, Vec<_>) = (basis(&main), parts.iter().map(basis).collect());
    let begun_us = state.at_us;
    for of in std::iter::once(&main).chain(&parts) {
        with.apply(&of.action).unwrap();
    }
    let mut meters: Vec<Option<(Meter, i64)>> = vec![None; 1 + parts.len()];
    let mut ends_us = i64::MAX;
    observe_each_minute(&mut with, scene.at_us + 1_000 * MINUTE_US, |target, mut state| {
        (scene.see)(&mut state);
        let all = std::iter::once((&main, &main_basis)).chain(parts.iter().zip(&part_basis));
        for ((of, basis), meter) in all.zip(&mut meters) {
            let measured = |verified_us: i64| Measured {
                change: &of.action.change,
                basis: basis.as_ref(),
                begun_us,
                verified_us,
                saved_us: None,
                predicted: &of.predicted,
            };
            match meter {
                Some((meter, verified_us)) => meter.observe(&measured(*verified_us), &View::of(&state)),
                None if matches!(target.read_back(&of.action), Ok(Effect::Done { .. })) => {
                    let measured = measured(state.at_us);
                    *meter = Some((Meter::begin(&measured, &View::of(&state)), state.at_us));
                    if of.action.id == "main" {
                        ends_us = measured.ends_us();
                    }
                }
                None => {}
            }
        }
    });
    let (meter, verified_us) = meters[0].clone().unwrap();
    let mut lost = meters[1..].iter().map(|part| part.as_ref()?.0.lost());
    let lost = lost.try_fold(Interval::point(0), |sum, lost| Some(sum.plus(lost?)));
    let measured = Measured {
        change: &main.action.change,
        basis: main_basis.as_ref(),
        begun_us,
        verified_us,
        saved_us: None,
        predicted: &main.predicted,
    };
    let realised = meter.realised(&measured, &Companions { lost, suspects: &scene.suspects });
    // The truth of both at the end of the period.
    let mut again = (scene.start)();
    again.run_until(scene.at_us);
    for of in std::iter::once(&main).chain(&parts) {
        again.apply(&of.action).unwrap();
    }
    again.run_until(ends_us - EPOCH_US);
    without.run_until(ends_us - EPOCH_US);
    let truth = Truth::of(again.sim()).less(&Truth::of(without.sim()));
    (truth, score("main", main.kind, begun_us, &main.predicted, &realised), realised)
}

fn close(found: i64, truth: i64, gpu_minutes: i64, what: &str) {
    let off = (found - truth).abs();
    assert!(
        off <= gpu_minutes * GPU_MINUTE,
        "{what}: {:.2} GPU-hours measured, {:.2} true",
        found as f64 / GPU_HOUR as f64,
        truth as f64 / GPU_HOUR as f64
    );
}

/// A training node and two serving nodes, one of them lent until 6:00 to a gang of 16 that saves
/// each hour. The service needs one node, from 2:00 on `later_gpus`.
fn reclaim(later_gpus: u32) -> Scene {
    let start = move || {
        let mut spec = ClusterSpec::uniform(&[1, 2], 8);
        spec.epoch_us = EPOCH_US;
        let checkpoint = Checkpoint { every_us: HOUR_US, cost_us: SAVE_US, on_notice: false };
        let job = JobSpec { loan: true, checkpoint: Some(checkpoint), ..JobSpec::plain(0, 16, 90 * HOUR_US) };
        let demand_gpus = vec![8, 8, later_gpus];
        let service = ServiceSpec { pool: 1, demand_gpus, step_us: HOUR_US };
        let sim = Sim::new(spec, vec![job], vec![service]).unwrap();
        let mut target = SimTarget::new(sim, ControlFaults::default(), 1);
        let lend = Change::Lend {
            from: "serve".into(),
            to: "research".into(),
            pool: "serve".into(),
            gpus: 8,
            nodes: named("n00002"),
            extends: None,
            expires_us: EPOCH_US + 6 * HOUR_US,
            reclaim_within_ms: 360_000,
        };
        let loan = Action {
            id: "loan".into(),
            generation: 1,
            change: lend,
            preconditions: Vec::new(),
            inverse: None,
            expires_us: EPOCH_US + HOUR_US,
            effect_ends_us: None,
            notice_ms: 0,
            after: Vec::new(),
        };
        target.apply(&loan).unwrap();
        target
    };
    let back = Change::Reclaim { loan: "loan".into(), from_gpus: 8, to_gpus: 0, nodes: named("n00002") };
    Scene {
        start: Box::new(start),
        at_us: 2 * HOUR_US,
        main: (back, None),
        parts: vec![(Change::Preempt { job: "job-0".into(), frees_gpus: 16 }, None)],
        over_us: 4 * HOUR_US,
        see: |_| {},
        suspects: Suspects::default(),
    }
}

#[test]
fn a_reclaim_is_worth_what_the_owner_served_on_what_came_back() {
    let (truth, score, realised) = compare(&reclaim(16));
    // It begins and ends within a minute of what is seen, on 8 GPUs.
    close(realised.benefit_gpu_ms.unwrap(), truth.served, 2 * 8, "benefit");
    assert!(truth.served > 31 * GPU_HOUR && score.realised_gpu_ms > Some(0), "{truth:?} {score:?}");
    assert!(score.without.unwrap().starts_with("serve would have lacked 3"));
}

#[test]
fn a_reclaim_that_nobody_needed_cost_what_stood_idle() {
    let (truth, score, realised) = compare(&reclaim(8));
    assert_eq!((truth.served, realised.benefit_gpu_ms), (0, Some(0)));
    // The gang lost at least the time of the returned node; its own node stood idle too.
    assert!(
        score.realised_gpu_ms.unwrap() < 0 && truth.teams[0] < score.realised_gpu_ms.unwrap(),
        "{score:?}"
    );
    close(-score.realised_gpu_ms.unwrap(), 4 * 8 * GPU_HOUR, 2 * 8, "cost");
}

/// Two nodes: a gang of 16 of team `low` that saves each hour, and from 1:30 on a waiting job of 8
/// of team `high` with `work_us`.
fn preempt(work_us: i64) -> Scene {
    let start = move || {
        let mut spec = ClusterSpec::uniform(&[2], 8);
        spec.epoch_us = EPOCH_US;
        let team = |name: &str| TeamSpec { name: name.into(), pool: 0, quota_gpus: None };
        spec.teams = vec![team("low"), team("high")];
        let checkpoint = Checkpoint { every_us: HOUR_US, cost_us: SAVE_US, on_notice: false };
        let low = JobSpec {
            loan: true,
            checkpoint: Some(checkpoint),
            restart_us: RESTART_US,
            ..JobSpec::plain(0, 16, 90 * HOUR_US)
        };
        let high = JobSpec { team: 1, priority: 9, ..JobSpec::plain(90 * MINUTE_US, 8, work_us) };
        let sim = Sim::new(spec, vec![low, high], Vec::new()).unwrap();
        SimTarget::new(sim, ControlFaults::default(), 1)
    };
    let stop = Change::Preempt { job: "job-0".into(), frees_gpus: 16 };
    Scene {
        start: Box::new(start),
        at_us: 110 * MINUTE_US,
        main: (stop, Some(Object::Job("job-1".into()))),
        parts: Vec::new(),
        over_us: 3 * HOUR_US,
        see: |_| {},
        suspects: Suspects::default(),
    }
}

#[test]
fn a_preemption_is_worth_the_work_of_the_job_it_was_made_for_less_that_of_the_stopped_one() {
    let (truth, score, realised) = compare(&preempt(90 * HOUR_US));
    close(realised.benefit_gpu_ms.unwrap(), truth.teams[1], 8, "benefit");
    // The stop takes 30 s, and the restart of a minute is charged though it has not come yet; all
    // of 16 GPUs.
    close(-realised.cost_gpu_ms.unwrap(), truth.teams[0], 3 * 16, "cost");
    // Without weights nobody gains by stopping twice as many GPUs as the job needs.
    assert!(score.realised_gpu_ms.unwrap() < 0);
}

#[test]
fn a_preemption_for_a_job_that_needed_minutes_says_so() {
    let (truth, score, realised) = compare(&preempt(2 * MINUTE_US));
    close(realised.benefit_gpu_ms.unwrap(), truth.teams[1], 8, "benefit");
    close(-realised.cost_gpu_ms.unwrap(), truth.teams[0], 3 * 16, "cost");
    // 50 minutes of 16 GPUs were lost for two of 8.
    assert!(score.realised_gpu_ms.unwrap() < -13 * GPU_HOUR, "{score:?}");
    assert_eq!(score.known_net_gpu_ms(), score.realised_gpu_ms);
}

/// Three nodes, a gang of 16 on the first two, which saves each half hour. From 1:00 on the first
/// runs at `speed_ppm`; at 1:15 it is drained and the gang moved.
fn slow(speed_ppm: u32) -> Scene {
    let start = move || {
        let mut spec = ClusterSpec::uniform(&[3], 8);
        spec.epoch_us = EPOCH_US;
        let checkpoint = Checkpoint { every_us: HOUR_US / 2, cost_us: SAVE_US, on_notice: false };
        let gang = JobSpec {
            checkpoint: Some(checkpoint),
            restart_us: RESTART_US,
            ..JobSpec::plain(0, 16, 90 * HOUR_US)
        };
        let sim = Sim::new(spec, vec![gang], Vec::new()).unwrap();
        let mut target = SimTarget::new(sim, ControlFaults::default(), 1);
        target.plan_speed(HOUR_US, 0, speed_ppm);
        target
    };
    let drain = Change::DrainNode { node: "n00000".into(), reason: "slow".into() };
    let stop = Change::Preempt { job: "job-0".into(), frees_gpus: 16 };
    Scene {
        start: Box::new(start),
        at_us: 75 * MINUTE_US,
        main: (drain, None),
        parts: vec![(stop, Some(Object::Node("n00000".into())))],
        over_us: 6 * HOUR_US,
        see: |_| {},
        suspects: Suspects::default(),
    }
}

#[test]
fn draining_a_slow_node_is_worth_what_its_gang_is_faster_elsewhere() {
    let (truth, score, _) = compare(&slow(700_000));
    // A minute of looking, the stop of 30 s, and the restart, all of 16 GPUs.
    close(score.realised_gpu_ms.unwrap(), truth.teams[0], 3 * 16, "net");
    assert!(truth.teams[0] > 20 * GPU_HOUR, "{truth:?}");
}

#[test]
fn moving_a_gang_off_a_node_that_was_not_slow_says_so() {
    let (truth, score, _) = compare(&slow(1_000_000));
    close(score.realised_gpu_ms.unwrap(), truth.teams[0], 3 * 16, "net");
    assert!(truth.teams[0] < 0 && score.realised_gpu_ms.unwrap() < 0, "{truth:?} {score:?}");
    let gone = {
        let mut scene = slow(700_000);
        scene.parts.clear();
        compare(&scene)
    };
    assert_eq!((gone.0.teams[0], gone.1.realised_gpu_ms), (0, Some(0)), "nothing moved, nothing gained");
}

fn evidence() -> Health {
    Health { bad_ppm: Some(990_000), families: vec!["ecc".into(), "xid".into()], ..Health::default() }
}

/// `failed` of `all` nodes with the same evidence failed within eight hours.
fn suspects(failed: usize, all: usize) -> Suspects {
    let mut suspects = Suspects::default();
    let (mut state, rules) = (ClusterState::default(), policy().drain);
    let sim = Sim::new(ClusterSpec::uniform(&[all], 8), Vec::new(), Vec::new()).unwrap();
    state.nodes = SimTarget::new(sim, ControlFaults::default(), 1).state().nodes;
    state.nodes = state.nodes.into_iter().map(|(name, node)| (format!("like-{name}"), node)).collect();
    for minute in 0..=480 {
        for (at, node) in state.nodes.values_mut().enumerate() {
            node.health = evidence();
            if minute > 100 && at < failed {
                node.state = tidegate_autopilot::state::NodeState::Down;
            }
        }
        state.at_us = EPOCH_US + minute * MINUTE_US;
        suspects.observe(&state, &rules, 5 * MINUTE_US);
    }
    suspects
}

/// Two nodes with a job each, of 3:50 and 4:00, that save at 2:00, and a job that waits. The first
/// node is drained on evidence at 3:40 and, if `fails`, fails at 5:30 for two hours.
fn suspect(fails: bool, suspects: Suspects) -> Scene {
    let start = move || {
        let mut spec = ClusterSpec::uniform(&[2], 8);
        spec.epoch_us = EPOCH_US;
        let checkpoint = Checkpoint { every_us: 2 * HOUR_US, cost_us: SAVE_US, on_notice: false };
        let job = |minutes: i64, submit_us: i64| JobSpec {
            checkpoint: Some(checkpoint),
            restart_us: RESTART_US,
            ..JobSpec::plain(submit_us, 8, minutes * MINUTE_US)
        };
        let jobs = vec![job(230, 0), job(240, 0), job(9_000, HOUR_US)];
        let mut target =
            SimTarget::new(Sim::new(spec, jobs, Vec::new()).unwrap(), ControlFaults::default(), 1);
        if fails {
            target.plan_failure(330 * MINUTE_US, 0, 2 * HOUR_US);
        }
        target
    };
    let drain = Change::DrainNode { node: "n00000".into(), reason: "ecc".into() };
    Scene {
        start: Box::new(start),
        at_us: 220 * MINUTE_US,
        main: (drain, None),
        parts: Vec::new(),
        over_us: 8 * HOUR_US,
        see: |state| state.nodes.get_mut("n00000").unwrap().health = evidence(),
        suspects,
    }
}

#[test]
fn draining_a_node_that_fails_is_worth_the_work_at_risk() {
    let (truth, score, _) = compare(&suspect(true, suspects(0, 20)));
    // The job that would have lost its work is another one than that at the drain; both have run
    // for an hour and forty minutes since they saved, or started. The meter looks once a minute and
    // counts a restart and a stop that the other did not need.
    close(score.realised_gpu_ms.unwrap(), truth.teams[0], 4 * 8, "net");
    assert!(truth.teams[0] > 11 * GPU_HOUR && score.interval.is_none(), "{truth:?} {score:?}");
    assert!(score.without.unwrap().starts_with("it would have failed in service"));
}

#[test]
fn draining_a_node_that_would_not_have_failed_says_so_as_far_as_like_nodes_tell() {
    let (truth, score, _) = compare(&suspect(false, suspects(0, 20)));
    let Interval { low_gpu_ms, high_gpu_ms } = score.interval.unwrap();
    close(score.realised_gpu_ms.unwrap(), truth.teams[0], 2 * 8, "net");
    let slack = 2 * 8 * GPU_MINUTE;
    assert!((low_gpu_ms - slack..=high_gpu_ms).contains(&truth.teams[0]), "{truth:?} {score:?}");
    // Even the best that may be true is far below the prediction of 20 GPU-hours.
    assert!(truth.teams[0] < 0 && score.known_net_gpu_ms() == Some(high_gpu_ms), "{score:?}");

    // Nobody like it: from nothing but the wait to all that was at risk, and no opinion.
    let (_, score, realised) = compare(&suspect(false, Suspects::default()));
    let bounds = score.interval.unwrap();
    assert_eq!((score.realised_gpu_ms, realised.benefit_gpu_ms), (None, None));
    assert!(bounds.low_gpu_ms < 0 && bounds.high_gpu_ms > 11 * GPU_HOUR, "{bounds:?}");
    // Where half of the like nodes failed, it was worth it.
    let (_, score, _) = compare(&suspect(false, suspects(10, 20)));
    let bounds = score.interval.unwrap();
    assert!(bounds.low_gpu_ms > 0 && bounds.high_gpu_ms < 11 * GPU_HOUR, "{bounds:?}");
}
