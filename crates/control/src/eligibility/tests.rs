use tidegate_autopilot::forecast::RecordedForecast;
use tidegate_autopilot::planner::plan;
use tidegate_autopilot::state::{
    Checkpoint, CurvePoint, Drain, DrainedBy, GrowBy, Health, Job, JobKind, JobState, Node, NodeState, Owner,
    ScalingCurve, Share,
};

use super::*;

const S: i64 = 1_000_000;
const NOW: i64 = 1_800_000_000 * S;

fn node(pool: &str) -> Node {
    Node {
        pool: pool.into(),
        rack: None,
        gpu_model: "h100".into(),
        gpus: 8,
        state: NodeState::Up,
        health: Health::default(),
        drain: None,
        do_not_disrupt: false,
    }
}

/// A gang of `ml` that declares nothing, on a node.
fn job(on: &str) -> Job {
    Job {
        owner: "ml".into(),
        pool: "train".into(),
        queue: None,
        priority: 0,
        kind: JobKind::Gang,
        gpus: 8,
        state: JobState::Running { since_us: NOW - 7_200 * S },
        placement: [(on.to_owned(), 8)].into(),
        anchor_node: None,
        restarts: 0,
        loan: None,
        preemptible: false,
        preemptions_24h: 0,
        checkpoint: Checkpoint::default(),
        curve: None,
        remaining_work_ms: None,
        expected_end_us: None,
        end_within_us: None,
        resized_us: None,
        opt_in: true,
        do_not_disrupt: false,
    }
}

fn elastic(on: &str, grow: GrowBy) -> Job {
    let curve = ScalingCurve::new(vec![
        CurvePoint { gpus: 8, rate_ppm: 8_000_000 },
        CurvePoint { gpus: 16, rate_ppm: 16_000_000 },
    ]);
    let kind = JobKind::Elastic { min_gpus: 8, max_gpus: 16, sizes: vec![8, 16], grow };
    let checkpoint =
        Checkpoint { last_us: Some(NOW - 60 * S), restart_ms: Some(60_000), ..Checkpoint::default() };
    Job { kind, curve: curve.ok(), checkpoint, ..job(on) }
}

fn waiting(job: Job, for_s: i64) -> Job {
    Job { state: JobState::Pending { since_us: NOW - for_s * S }, placement: [].into(), ..job }
}

/// Nodes a to f of train and s of serve; owner ml of train, serving of serve.
fn site() -> ClusterState {
    let mut state = ClusterState { cluster: "c".into(), at_us: NOW, ..ClusterState::default() };
    for name in ["a", "b", "c", "d", "e", "f"] {
        state.nodes.insert(name.into(), node("train"));
    }
    state.nodes.insert("s".into(), node("serve"));
    let owner = |pool: &str, quota_gpus, lendable| {
        let share = Share { quota_gpus, lendable, demand_gpus: Some(0), ..Share::default() };
        Owner { shares: [(pool.to_owned(), share)].into(), ..Owner::default() }
    };
    state.owners.insert("ml".into(), owner("train", 48, false));
    state.owners.insert("serving".into(), owner("serve", 8, true));
    state
}

fn planned(policy: &Policy, state: &ClusterState) -> PlanRecord {
    let (plan, report) = plan(policy, state, &RecordedForecast::default(), None, NOW, 7);
    let (policy, state) = (policy.clone(), state.clone());
    PlanRecord { plan, report, policy, canary: None, state, kept: vec![] }
}

/// What is said of an object and kind: its standing, reason and what would change it.
fn said(all: &[Eligibility], object: &str, kind: impl Into<Option<Kind>>) -> String {
    let kind = kind.into();
    let found = all.iter().find(|it| it.object.to_string() == object && it.kind == kind);
    let found = found.unwrap_or_else(|| panic!("nothing of {object} {kind:?} in {all:#?}"));
    format!("{}: {}; {}", found.standing.name(), found.reason, found.change.as_deref().unwrap_or("-"))
}

#[test]
fn every_job_node_and_owner_has_a_reason_and_what_would_change_it() {
    let mut state = site();
    state.jobs.insert("1".into(), job("a"));
    state.jobs.insert("2".into(), Job { curve: None, ..elastic("b", GrowBy::Requeue) });
    state.jobs.insert("3".into(), elastic("c", GrowBy::Never));
    state.jobs.insert("4".into(), Job { do_not_disrupt: true, ..elastic("d", GrowBy::Requeue) });
    state.jobs.insert("5".into(), Job { opt_in: false, ..elastic("e", GrowBy::Requeue) });
    state.jobs.insert("6".into(), Job { owner: "nobody".into(), ..waiting(job("a"), 60) });
    state.jobs.insert("7".into(), waiting(Job { preemptible: true, gpus: 64, ..job("a") }, 60));
    state.jobs.insert("8".into(), Job { state: JobState::Changing { since_us: NOW }, ..job("f") });
    state.jobs.insert("9".into(), Job { state: JobState::Unknown, ..job("f") });
    let drain = Drain { by: DrainedBy::Other, since_us: None, reason: "fan".into() };
    state.nodes.get_mut("f").unwrap().drain = Some(drain);
    state.nodes.get_mut("e").unwrap().health.bad_ppm = Some(12_000);
    let all = eligibility(&planned(&Policy::auto(), &state));

    for (object, kind, expected) in [
        (
            "job 1",
            Kind::ResizeJob,
            "not considered: it does not declare that it is elastic; sbatch --comment=tidegate:elastic",
        ),
        (
            "job 1",
            Kind::Preempt,
            "not considered: it is not preemptible: it is stopped for nobody; sbatch --comment=tidegate:preemptible",
        ),
        ("job 2", Kind::ResizeJob, "not considered: its scaling is unknown; step reports"),
        ("job 3", Kind::ResizeJob, "not considered: it cannot grow; grow=requeue"),
        ("job 4", Kind::ResizeJob, "not considered: it is marked do-not-disrupt; without do-not-disrupt"),
        ("job 5", Kind::ResizeJob, "not considered: its owner has not opted in; the job's comment"),
        ("job 6", Kind::Preempt, "not considered: it has waited for 60 s; the policy makes room after"),
        ("job 7", Kind::Preempt, "not considered: it is preemptible"),
        ("job 7", Kind::Lend, "considered: it may run on a loan"),
        (
            "node a",
            Kind::DrainNode,
            "not considered: nothing tells its health: no signal has named it; an agent",
        ),
        ("node e", Kind::DrainNode, "considered: no sign of a fault: bad with probability 0.012"),
        (
            "node f",
            Kind::ReturnNode,
            "not considered: drained by someone else: fan; a person returns it: scontrol update NodeName=f",
        ),
        (
            "node a",
            Kind::Lend,
            "not considered: ml does not lend its share of pool train; lendable = true in [slurm.owners.ml.shares.train]",
        ),
        ("node s", Kind::Lend, "considered: it is free; owner serving"),
        ("owner ml", Kind::Lend, "not considered: ml in train: its share is not lendable; lendable = true"),
        ("owner serving", Kind::Lend, "considered: serving in serve: there is no forecast of its demand"),
        ("owner serving", Kind::Reclaim, "not considered: it lends nothing now"),
        ("owner ml", Kind::AdjustReservation, "considered: ml in train: demand over the horizon is unknown"),
    ] {
        let said = said(&all, object, kind);
        assert!(said.starts_with(expected), "{object} {kind}: {said}");
    }
    for (object, expected) in [
        (
            "job 6",
            "not considered: no owner maps account \"nobody\": nothing is kept, lent or foreseen for it; add [slurm.owners.nobody]",
        ),
        ("owner nobody", "not considered: no owner maps account \"nobody\""),
        ("job 8", "not considered: it is being started"),
        ("job 9", "not considered: the scheduler does not say how many GPUs"),
    ] {
        let said = said(&all, object, None);
        assert!(said.starts_with(expected), "{object}: {said}");
    }
    // Nothing is left out, and the entries of an object stand together.
    let mut objects: Vec<&Object> = all.iter().map(|it| &it.object).collect();
    objects.dedup();
    assert_eq!(objects.len(), 9 + 7 + 3, "{objects:?}");
    assert_eq!(all.iter().find(|it| it.object == Object::Job("6".into())).unwrap().kind, None, "tells most");
}

/// What the planner says of an object is what stands, and what it decides is never kept out.
#[test]
fn the_planner_has_the_last_word() {
    let mut state = site();
    state.jobs.insert("1".into(), elastic("a", GrowBy::Requeue));
    state.jobs.insert("2".into(), Job { resized_us: Some(NOW - S), ..elastic("b", GrowBy::Requeue) });
    state.nodes.get_mut("c").unwrap().health = Health {
        bad_ppm: Some(999_000),
        families: vec!["ecc".into(), "xid".into()],
        fatal: true,
        ..Health::default()
    };
    let mut policy = Policy::auto();
    policy.modes.insert(Kind::ResizeJob, Mode::Suggest);
    policy.modes.insert(Kind::DrainNode, Mode::Approve);
    let planned = planned(&policy, &state);
    let all = eligibility(&planned);
    for decision in &planned.plan.decisions {
        let object = decision.action.change.object();
        let found = all.iter().find(|it| it.object == object && it.kind == Some(decision.kind));
        assert_eq!(found.map(|it| it.standing), Some(Standing::Decided), "{object}");
    }
    let grows = said(&all, "job 1", Kind::ResizeJob);
    assert!(
        grows.starts_with("decided: growing from 8 to 16")
            && grows.contains("the mode of resize_job is suggest"),
        "{grows}"
    );
    let drains = said(&all, "node c", Kind::DrainNode);
    assert!(drains.contains("it waits for a person: tidegate autopilot approve drain_node-"), "{drains}");
    let rests = said(&all, "job 2", Kind::ResizeJob);
    assert!(rests.starts_with("considered: resized 1 s ago"), "{rests}");
    for considered in planned.report.considered.iter().filter(|it| it.action.is_none()) {
        let Some(object @ (Object::Job(_) | Object::Node(_))) = &considered.object else { continue };
        let found = all.iter().find(|it| it.object == *object && it.kind == Some(considered.kind));
        assert_eq!(found.map(|it| &it.reason), Some(&considered.reason), "{object}");
    }
    // A kind that its record holds back says so.
    let mut held = planned.clone();
    held.policy.modes.insert(Kind::ResizeJob, Mode::Act);
    held.policy.at_most.insert(Kind::ResizeJob, Mode::Approve);
    let why = said(&eligibility(&held), "job 1", Kind::ResizeJob);
    assert!(why.contains("its record holds resize_job at approve"), "{why}");
}

#[test]
fn a_record_without_its_state_says_nothing() {
    let planned = planned(&Policy::auto(), &site());
    let slim = PlanRecord { state: ClusterState::default(), ..planned };
    assert_eq!(eligibility(&slim), []);
}
