//! Names with which a user tries to write other people's history.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use tidegate_events::v1::{CapacityEventKind, JobEventKind as Kind};
use tidegate_testing::slurm::Cluster;

use crate::bare::{now_ms, polled, watcher};
use crate::recorded::Recorded;

/// A record as a parser of `sacct --parsable2` with one character between columns would take it:
/// that of another user's job, with 97 GPU-hours.
fn record_of_another(job: &str, now_s: i64) -> String {
    let (start, end) = ((now_s - 43_650).to_string(), (now_s - 1).to_string());
    let gpus = "gres/gpu=8";
    let values = [
        job,
        "t",
        "victim",
        "ai",
        "train",
        "normal",
        &start,
        &start,
        &start,
        &end,
        "COMPLETED",
        "0:0",
        gpus,
        gpus,
        "n1",
        "1",
        "",
        "1",
    ];
    values.join("\u{1f}")
}

/// The job's events with a name, as they came from queue and accounting.
fn names(recorded: &Recorded, job: &str) -> BTreeSet<String> {
    let own = recorded.jobs.iter().filter(|it| it.job_id == job && it.step_id.is_none());
    own.filter_map(|it| it.job_name.clone()).collect()
}

#[test]
fn a_name_makes_no_record_and_hides_none() {
    let Some(cluster) = Cluster::start(&["--dbd", "--nodes=1+1"]) else { return };
    let mut watched = watcher(&cluster);
    let mut recorded = Recorded::default();
    recorded.add(polled(&mut watched).unwrap());
    let invented = "77777777";
    // Every line that it makes has all columns: the rest of its own record, as if the job ran, the
    // other record, and the beginning of a third, which what Slurm prints behind the name goes on.
    let rest = ["x", "", "", "", "", "", "", "", "", "RUNNING", "", "", "", "", "", "", ""].join("\u{1f}");
    let forged = format!("{rest}\n{}\n8\u{1f}y", record_of_another(invented, now_ms() / 1000));
    let columns = "x\u{1f}y|z";
    let plain = "honest";
    let submit = |name: &str| cluster.submit(&["--gres=gpu:1", &format!("--job-name={name}")], "true");
    let jobs = [forged.as_str(), columns, plain].map(submit);
    // squeue prints bytes that are not UTF-8 as they are.
    let script =
        "sbatch --parsable --output=/dev/null --chdir=/ --job-name=\"$(printf 'a\\377b')\" --wrap=true";
    let bytes = cluster.run("sh", &["-c", script]);
    let all: Vec<&str> = jobs.iter().map(String::as_str).chain([bytes.as_str()]).collect();
    let ended = |recorded: &Recorded, job: &str| {
        recorded.jobs.iter().any(|it| it.job_id == job && it.kind() == Kind::Ended && it.step_id.is_none())
    };
    let deadline = Instant::now() + Duration::from_secs(45);
    while !all.iter().all(|job| ended(&recorded, job)) {
        assert!(Instant::now() < deadline, "not all of {all:?} ended: {:#?}", recorded.jobs);
        std::thread::sleep(Duration::from_millis(500));
        recorded.add(polled(&mut watched).unwrap());
    }
    // Another watcher, which saw none of them, has accounting's answer alone.
    std::fs::remove_dir_all(cluster.path().join("watch")).unwrap();
    recorded.add(polled(&mut watcher(&cluster)).unwrap());
    let known: BTreeSet<&str> =
        recorded.jobs.iter().map(|it| it.job_id.as_str()).filter(|id| !id.is_empty()).collect();
    assert_eq!(known, all.iter().copied().collect(), "no job is invented");
    for (job, name) in jobs.iter().zip([forged.as_str(), columns, plain]) {
        assert_eq!(names(&recorded, job), BTreeSet::from([name.to_owned()]));
    }
}

#[test]
fn a_name_of_an_account_makes_no_limit() {
    let Some(cluster) = Cluster::start(&["--dbd", "--nodes=1+1"]) else { return };
    let mut watched = watcher(&cluster);
    let mut recorded = Recorded::default();
    let limits = |recorded: &Recorded| -> BTreeSet<String> {
        let set = recorded.capacity.iter().filter(|it| it.kind() == CapacityEventKind::LimitSet);
        set.map(|it| it.owner.clone()).collect()
    };
    cluster.run("sacctmgr", &["-i", "modify", "account", "ai", "set", "GrpTRES=gres/gpu=24"]);
    recorded.add(polled(&mut watched).unwrap());
    let known = BTreeSet::from(["ai", "qos/loan"].map(str::to_owned));
    assert_eq!(limits(&recorded), known);
    // A coordinator may add accounts, and choose their names.
    let name = "name=\"evil\nvictim|||gres/gpu=5\nx\"";
    cluster.run("sacctmgr", &["-i", "add", "account", name, "cluster=tidegate", "parent=root"]);
    // By its clock, limits are due again.
    recorded.add(watched.poll(now_ms() + 2_000).unwrap());
    assert_eq!(limits(&recorded), known, "no limit is invented");
    let of_ai: Vec<_> = recorded.capacity.iter().filter(|it| it.owner == "ai").collect();
    assert_eq!(of_ai.last().unwrap().gpus_milli, Some(24_000), "the limit that was known stays");
}
