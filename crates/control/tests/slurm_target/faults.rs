//! Parts of Slurm that do not answer, and a Slurm without accounting.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};

use tempfile::TempDir;
use tidegate_autopilot::action::{Adjustment, Change, Kind, Precondition};
use tidegate_autopilot::target::{Effect, Target, TargetError};
use tidegate_control::slurm::{SlurmConfig, SlurmTarget};
use tidegate_testing::slurm::wait_for;

use crate::jobs::resize;
use crate::nodes::drain;
use crate::site::{Site, action};

#[test]
fn what_does_not_answer_is_not_taken_for_an_empty_cluster() {
    let Some(site) = Site::start() else { return };
    let job = site.submit("research", &["--nodes=3", "--gres=gpu:8", "--nodelist=n1,n2,n3"]);
    site.cluster.wait_state(&job, &["R"]);
    site.apply(&resize("resize_job-1", &job, 24, 16, &["n1", "n2"], vec![]));
    let mut without_quotas = site.config.clone();
    without_quotas.owners.clear();
    let (mut open, mut without_quotas) = (site.target(), SlurmTarget::open(without_quotas).unwrap());
    site.cluster.process("stop", "slurmdbd");
    let again = resize("resize_job-2", &job, 16, 8, &["n1"], vec![]);
    // Rights are in slurmdbd: no target opens while it is away.
    let began = SlurmTarget::open(site.config.clone());
    assert!(matches!(began, Err(TargetError::Unreachable { .. })), "{began:?}");
    // The state needs the quotas, which are in slurmdbd too.
    assert!(matches!(open.apply(&again), Err(TargetError::Unreachable { .. })));
    let refused = without_quotas.apply(&again).unwrap_err();
    assert!(matches!(refused, TargetError::Refused { .. }), "{refused}");
    assert!(refused.to_string().contains("slurmdbd"), "{refused}");
    assert_eq!(site.nodes_of(&job), "n[1-2]");
    site.cluster.process("start", "slurmdbd");
    wait_for("slurmdbd", 60, || site.cluster.try_run("sacctmgr", &["-nP", "show", "cluster"]).is_ok());
    site.apply(&again);
    assert_eq!(site.nodes_of(&job), "n1");

    let mut open = site.target();
    site.cluster.process("stop", "slurmctld");
    let begun = std::time::Instant::now();
    let drains = drain("drain_node-1", "n4");
    let unreachable = |error: &TargetError| matches!(error, TargetError::Unreachable { .. });
    assert!(unreachable(&open.observe().unwrap_err()) && unreachable(&open.apply(&drains).unwrap_err()));
    assert!(
        unreachable(&open.read_back(&again).unwrap_err()) && unreachable(&open.notify(&drains).unwrap_err())
    );
    assert!(unreachable(&SlurmTarget::open(site.config.clone()).unwrap_err()));
    assert!(begun.elapsed().as_secs() < 10, "each says so at once");
    site.cluster.process("start", "slurmctld");
    wait_for("slurmctld", 60, || site.cluster.try_run("squeue", &["--noheader"]).is_ok());
    // After the restart the notes are there again: what was done, by which generation.
    assert!(site.try_apply(&again).unwrap().already && site.is_done(&again));
    let stale = tidegate_autopilot::action::Action { generation: 4, ..drain("drain_node-2", "n4") };
    assert_eq!(site.try_apply(&stale), Err(TargetError::StaleGeneration { generation: 4, seen: 5 }));
    assert_eq!(site.effect(&drains), Effect::Absent);
}

/// Stand-ins for Slurm's programs that print given answers.
fn pretended(squeue: &str, sinfo: &str) -> (TempDir, SlurmConfig) {
    let folder = tempfile::tempdir().unwrap();
    let config = "ClusterName = t\nSLURM_VERSION = 22.05.8\nSlurmUser = root(0)";
    let scontrol = format!(
        "case \"$*\" in ping) echo Slurmctld is UP;; *config) printf '{config}\\n';; *) echo No reservations in the system;; esac"
    );
    for (name, script) in [("scontrol", scontrol.as_str()), ("squeue", squeue), ("sinfo", sinfo)] {
        let path = folder.path().join(name);
        std::fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
        std::fs::set_permissions(&path, Permissions::from_mode(0o755)).unwrap();
        // A process that another test started meanwhile has the file open until it runs its own
        // program; as long as that lasts, nobody may run this one.
        wait_for("a script that can run", 60, || {
            let began = Command::new(&path).stdout(Stdio::null()).spawn();
            began.and_then(|mut child| child.kill().and_then(|()| child.wait())).is_ok()
        });
    }
    let programs = Some(folder.path().to_owned());
    let config = SlurmConfig { programs, command_ms: 3_000, ..SlurmConfig::default() };
    (folder, config)
}

const NODE: &str = r#"echo '{"errors": [], "nodes": [{"name": "n1", "state": "idle", "gres": "gpu:8", "partitions": ["a"]}]}'"#;

#[test]
fn answers_without_sense_are_unknown_and_slow_ones_end() {
    let whole = r#"echo '{"meta": {}, "errors": [], "jobs": []}'"#;
    let observe = |squeue: &str, sinfo: &str| {
        let (_folder, config) = pretended(squeue, sinfo);
        SlurmTarget::open(config).and_then(|mut target| target.observe())
    };
    let state = observe(whole, NODE).unwrap();
    assert_eq!((state.nodes["n1"].gpus, state.cluster.as_str()), (8, "t"));
    for (squeue, sinfo) in [
        ("echo '{}'", NODE),
        ("true", NODE),
        (r#"echo '{"meta": {}, "errors": ["slurm_load_jobs"], "jobs": []}'"#, NODE),
        (whole, r#"echo '{"errors": [], "nodes": []}'"#),
        (whole, "echo Node"),
    ] {
        let error = observe(squeue, sinfo).unwrap_err();
        assert!(matches!(error, TargetError::Unknown { .. }), "{squeue} {sinfo}: {error}");
    }
    let begun = std::time::Instant::now();
    let error = observe("sleep 60", NODE).unwrap_err();
    assert!(matches!(error, TargetError::Unreachable { .. }), "{error}");
    assert!(begun.elapsed().as_secs() < 30);
}

#[test]
fn without_accounting_what_is_possible_is_done_and_the_rest_is_named() {
    let Some(site) = Site::bare() else { return };
    let lacking = site.target().capabilities().lacking.join("\n");
    assert!(
        lacking.contains("there is no slurmdbd") && lacking.contains("standing reservation"),
        "{lacking}"
    );
    assert_eq!(site.target().capabilities().kinds, Kind::ALL.into_iter().collect());
    let job = site.cluster.submit(&["--nodes=3", "--gres=gpu:8", "--nodelist=n1,n2,n3"], "sleep 3600");
    site.cluster.wait_state(&job, &["R"]);
    let first = resize("resize_job-1", &job, 24, 16, &["n1", "n3"], vec![]);
    site.apply(&first);
    site.applies_once(&first);
    assert_eq!(site.nodes_of(&job), "n[1,3]");
    let second = site.try_apply(&resize("resize_job-2", &job, 16, 8, &["n1"], vec![])).unwrap_err();
    assert!(second.to_string().contains("without slurmdbd Slurm does it once"), "{second}");
    let out = drain("drain_node-1", "n4");
    site.apply(&out);
    assert!(site.is_done(&out));
    let (owner, pool) = ("research".to_owned(), "train".to_owned());
    let facts = vec![Precondition::QuotaIs { owner: owner.clone(), pool: pool.clone(), gpus: 40 }];
    let quota = Change::AdjustReservation(Adjustment::Quota { owner, pool, from_gpus: 40, to_gpus: 8 });
    let refused = site.try_apply(&action("adjust_reservation-1", 8, quota, facts));
    assert!(matches!(refused, Err(TargetError::Unsupported { .. })), "{refused:?}");
}
