//! The course of jobs, and events of nodes, partitions, reservations and limits.

use std::time::Duration;

use tidegate_events::v1::{CapacityEventKind, JobEventKind as Kind, NodeEventKind};
use tidegate_testing::slurm::{Cluster, wait_for};

use crate::bare::{now_ms, polled, watcher};
use crate::recorded::Recorded;

#[test]
fn the_course_of_jobs_and_the_capacity_of_the_cluster() {
    let Some(cluster) = Cluster::start(&["--dbd"]) else { return };
    let mut watched = watcher(&cluster);
    let mut recorded = Recorded::default();
    recorded.add(polled(&mut watched).unwrap());
    capacity_at_first(&recorded);

    let job = cluster
        .submit(&["--hold", "--gres=gpu:h200:2", "--nodes=1", "--nodelist=n2", "--time=30"], "sleep 60");
    recorded.add(polled(&mut watched).unwrap());
    std::thread::sleep(Duration::from_millis(1100));
    cluster.run("scontrol", &["release", &job]);
    cluster.wait_state(&job, &["R"]);
    recorded.add(polled(&mut watched).unwrap());
    cluster.run("scontrol", &["suspend", &job]);
    recorded.add(polled(&mut watched).unwrap());
    std::thread::sleep(Duration::from_millis(1100));
    cluster.run("scontrol", &["resume", &job]);
    recorded.add(polled(&mut watched).unwrap());
    std::thread::sleep(Duration::from_millis(1100));
    cluster.run("scancel", &["--signal=KILL", "--full", &job]);
    wait_for("the end is reported", 60, || {
        recorded.add(polled(&mut watched).unwrap());
        recorded.course(&job).iter().any(|(kind, ..)| *kind == Kind::Ended)
    });
    let kinds: Vec<_> = recorded.course(&job).into_iter().map(|(kind, _, what)| (kind, what)).collect();
    let plain = |kind| (kind, String::new());
    let expected = [
        plain(Kind::Submitted),
        (Kind::Waiting, "JobHeldUser".to_owned()),
        plain(Kind::Eligible),
        plain(Kind::Started),
        plain(Kind::Suspended),
        plain(Kind::Resumed),
        (Kind::Ended, "CANCELLED".to_owned()),
    ];
    assert_eq!(kinds, expected);
    let of_job = |kind| {
        recorded.jobs.iter().find(|recorded| recorded.job_id == job && recorded.kind() == kind).unwrap()
    };
    let started = of_job(Kind::Started);
    assert_eq!((started.nodes.as_deref(), started.node_count), (Some("n2"), Some(1)));
    assert_eq!((started.gpus_milli, started.gpu_model.as_deref()), (Some(2000), Some("h200")));
    assert_eq!(
        (started.team.as_deref(), started.qos.as_deref(), started.pool.as_deref()),
        (Some("ai"), Some("normal"), Some("train"))
    );
    assert_eq!(of_job(Kind::Submitted).time_limit_ms, Some(30 * 60_000));
    let held: Vec<_> = recorded.jobs.iter().filter(|recorded| recorded.kind() == Kind::DeviceHeld).collect();
    let indices: Vec<_> =
        held.iter().map(|held| (held.node.as_deref().unwrap(), held.gpu_index.unwrap())).collect();
    assert_eq!(indices, [("n2", 0), ("n2", 1)]);

    capacity_changes(&cluster, &mut |recorded: &mut Recorded| {
        std::thread::sleep(Duration::from_millis(2100));
        recorded.add(polled(&mut watched).unwrap());
    });
}

#[test]
fn no_answer_ends_no_job() {
    let Some(cluster) = Cluster::start(&[]) else { return };
    let job = cluster.submit(&["--gres=gpu:1"], "sleep 600");
    cluster.wait_state(&job, &["R"]);
    let mut watched = watcher(&cluster);
    let mut recorded = Recorded::default();
    recorded.add(polled(&mut watched).unwrap());
    let before = recorded.jobs.len();
    // squeue exits with status 0 and an empty list then.
    cluster.process("stop", "slurmctld");
    for _ in 0..2 {
        let error = watched.poll(now_ms()).expect_err("there is nobody to ask").to_string();
        assert!(error.contains("squeue") && error.contains("error"), "{error}");
    }
    cluster.process("start", "slurmctld");
    wait_for("slurmctld answers", 60, || polled(&mut watched).map(|events| recorded.add(events)).is_ok());
    let ended = recorded
        .jobs
        .iter()
        .skip(before)
        .find(|job| job.kind() == Kind::Ended || job.kind() == Kind::DeviceReleased);
    assert_eq!(ended, None);
    cluster.run("scancel", &[&job]);
    wait_for("the end is reported", 60, || {
        recorded.add(polled(&mut watched).unwrap());
        recorded.course(&job).iter().any(|(kind, ..)| *kind == Kind::Ended)
    });
}

fn capacity_at_first(recorded: &Recorded) {
    let registered: Vec<_> =
        recorded.nodes.iter().filter(|node| node.kind() == NodeEventKind::NodeRegistered).collect();
    let gpus: Vec<_> = registered
        .iter()
        .map(|node| {
            (
                node.node.as_str(),
                node.gpus_milli.unwrap(),
                node.gpu_model.as_deref().unwrap(),
                node.pool.as_deref().unwrap(),
            )
        })
        .collect();
    let h200 = |name| (name, 8000, "h200", "train");
    assert_eq!(gpus, [h200("n1"), h200("n2"), h200("n3"), h200("n4"), ("n5", 4000, "a100", "infer")]);
    let states = recorded.nodes.iter().filter(|node| node.kind() == NodeEventKind::StateChanged);
    assert!(states.clone().count() == 5 && states.clone().all(|node| node.state.as_deref() == Some("UP")));
    let of = |kind: CapacityEventKind| recorded.capacity.iter().filter(move |event| event.kind() == kind);
    let pools: Vec<_> = of(CapacityEventKind::PartitionSet)
        .map(|event| {
            (event.pool.as_deref().unwrap(), event.gpus_milli, event.nodes.as_deref(), event.state.as_deref())
        })
        .collect();
    assert_eq!(
        pools,
        [
            ("infer", Some(4000), Some("n5"), Some("UP")),
            ("train", Some(32_000), Some("n1,n2,n3,n4"), Some("UP"))
        ]
    );
    let limits: Vec<_> =
        of(CapacityEventKind::LimitSet).map(|event| (event.owner.as_str(), event.gpus_milli)).collect();
    assert_eq!(limits, [("qos/loan", Some(32_000))]);
}

fn capacity_changes(cluster: &Cluster, poll: &mut dyn FnMut(&mut Recorded)) {
    let mut recorded = Recorded::default();
    cluster.run("scontrol", &["update", "NodeName=n3", "State=DRAIN", "Reason=fan State=IDLE broken [soon]"]);
    cluster.run("scontrol", &["update", "PartitionName=infer", "State=DRAIN"]);
    let reserve = [
        "create",
        "reservation",
        "ReservationName=r1",
        "StartTime=now",
        "Duration=60",
        "Accounts=ai",
        "Nodes=n1,n5",
    ];
    cluster.run("scontrol", &reserve);
    cluster.run("sacctmgr", &["--immediate", "modify", "qos", "loan", "set", "GrpTRES=gres/gpu=8"]);
    cluster.run("sacctmgr", &["--immediate", "modify", "account", "ai", "set", "GrpTRES=gres/gpu=20"]);
    poll(&mut recorded);
    let drained = recorded.nodes.iter().find(|node| node.node == "n3").unwrap();
    assert_eq!(drained.kind(), NodeEventKind::StateChanged);
    assert_eq!(drained.state.as_deref(), Some("UP+DRAIN"));
    assert_eq!(drained.reason.as_deref(), Some("fan State=IDLE broken [soon]"));
    let find =
        |recorded: &Recorded, kind| recorded.capacity.iter().find(|event| event.kind() == kind).cloned();
    assert_eq!(find(&recorded, CapacityEventKind::PartitionSet).unwrap().state.as_deref(), Some("DRAIN"));
    let reserved = find(&recorded, CapacityEventKind::ReservationSet).unwrap();
    assert_eq!((reserved.owner.as_str(), reserved.name.as_deref()), ("ai", Some("r1")));
    assert_eq!((reserved.nodes.as_deref(), reserved.gpus_milli), (Some("n1,n5"), Some(12_000)));
    assert_eq!(reserved.end_ms.unwrap() - reserved.start_ms.unwrap(), 3_600_000);
    let limits = recorded.capacity.iter().filter(|event| event.kind() == CapacityEventKind::LimitSet);
    let limits: Vec<_> = limits.map(|event| (event.owner.as_str(), event.gpus_milli)).collect();
    assert_eq!(limits, [("ai", Some(20_000)), ("qos/loan", Some(8_000))]);

    let mut recorded = Recorded::default();
    cluster.run("scontrol", &["delete", "reservation", "r1"]);
    cluster.run("scontrol", &["update", "NodeName=n3", "State=RESUME"]);
    cluster.run("scontrol", &["delete", "PartitionName=infer"]);
    poll(&mut recorded);
    assert_eq!(find(&recorded, CapacityEventKind::ReservationRemoved).unwrap().owner, "ai");
    assert_eq!(find(&recorded, CapacityEventKind::PartitionRemoved).unwrap().pool.as_deref(), Some("infer"));
    let n3 = recorded.nodes.iter().find(|node| node.node == "n3").unwrap();
    assert_eq!((n3.state.as_deref(), n3.reason.as_deref()), (Some("UP"), None));
}
