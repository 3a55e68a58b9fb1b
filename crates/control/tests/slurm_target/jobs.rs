//! Jobs: shrunk, grown, preempted, notified before.

use tidegate_autopilot::action::{Action, Change, Precondition};
use tidegate_autopilot::state::{GrowBy, JobKind, JobState};
use tidegate_autopilot::target::{Effect, Notice, Target, TargetError};
use tidegate_testing::slurm::wait_for;

use crate::site::{Site, action, names};

const ELASTIC: &str = "--comment=tidegate:elastic,min=8,max=32,grow=requeue";

pub fn resize(id: &str, job: &str, from: u32, to: u32, keep: &[&str], facts: Vec<Precondition>) -> Action {
    let (job, keep_nodes, add_nodes) = (job.to_owned(), names(keep), names(&[]));
    let change = Change::ResizeJob { job, from_gpus: from, to_gpus: to, keep_nodes, add_nodes };
    action(id, 5, change, facts)
}

fn goes_on(site: &Site, job: &str) -> Vec<Precondition> {
    vec![Precondition::job_unchanged(&job.to_owned(), &site.observe().jobs[job])]
}

#[test]
fn jobs_shrink_grow_and_stop_once_each() {
    let Some(site) = Site::start() else { return };
    let job = site.submit("research", &["--nodes=3", "--gres=gpu:8", "--nodelist=n1,n2,n3", ELASTIC]);
    site.cluster.wait_state(&job, &["R"]);
    let seen = site.observe().jobs.remove(&job).unwrap();
    let sizes = vec![8, 16, 24, 32];
    assert_eq!(seen.kind, JobKind::Elastic { min_gpus: 8, max_gpus: 32, sizes, grow: GrowBy::Requeue });
    assert_eq!(seen.placement, ["n1", "n2", "n3"].map(|node| (node.to_owned(), 8)).into());
    assert_eq!((seen.owner.as_str(), seen.pool.as_str(), seen.opt_in), ("research", "train", true));
    assert!(matches!(seen.state, JobState::Running { .. }) && seen.anchor_node.as_deref() == Some("n1"));

    shrinks(&site, &job);
    grows(&site, &job);
    is_stopped(&site, &job);
    what_a_person_cancelled_stays(&site, &job);
}

fn shrinks(site: &Site, job: &str) {
    let facts = goes_on(site, job);
    let first = resize("resize_job-1", job, 24, 16, &["n1", "n3"], facts.clone());
    assert_eq!(site.effect(&first), Effect::Absent);
    site.apply(&first);
    assert_eq!(site.nodes_of(job), "n[1,3]");
    assert!(site.is_done(&first));
    site.applies_once(&first);
    assert!(site.show("job", job)["AdminComment"].starts_with("tidegate:resize_job-1"));
    // Preconditions no longer hold: nothing is done and nothing noted.
    let broken = resize("resize_job-2", job, 24, 8, &["n1"], facts);
    assert!(matches!(site.try_apply(&broken), Err(TargetError::Precondition(_))));
    let host = resize("resize_job-3", job, 16, 8, &["n3"], Vec::new());
    let refused = site.try_apply(&host).unwrap_err().to_string();
    assert!(refused.contains("the node its script runs on, n1"), "{refused}");
    assert_eq!((site.nodes_of(job), site.effect(&broken)), ("n[1,3]".to_owned(), Effect::Absent));
    // Shrunk again at once: it waits until accounting has the first resize.
    let second = resize("resize_job-4", job, 16, 8, &["n1"], goes_on(site, job));
    site.apply(&second);
    assert_eq!(site.nodes_of(job), "n1");
    assert!(matches!(site.effect(&first), Effect::Overridden { .. }), "it has another size now");
    let records = ["-n", "-P", "-X", "-D", "-j", job, "-o", "State,NodeList"];
    wait_for("two resizes in accounting", 30, || {
        site.cluster.run("sacct", &records).lines().filter(|line| line.starts_with("RESIZING|")).count() == 2
    });
    let records = site.cluster.run("sacct", &records);
    assert_eq!(records, "RESIZING|n[1-3]\nRESIZING|n[1,3]\nRUNNING|n1");
}

fn grows(site: &Site, job: &str) {
    let fixed = site.submit("research", &["--nodes=1", "--gres=gpu:8", "--nodelist=n5"]);
    site.cluster.wait_state(&fixed, &["R"]);
    let refused = site.try_apply(&resize("resize_job-5", &fixed, 8, 16, &["n5"], Vec::new())).unwrap_err();
    assert!(refused.to_string().contains("does not declare grow=requeue"), "{refused}");
    let odd = site.try_apply(&resize("resize_job-6", job, 8, 12, &["n1"], Vec::new())).unwrap_err();
    assert!(odd.to_string().contains("not whole nodes"), "{odd}");
    let larger = resize("resize_job-7", job, 8, 32, &["n1"], goes_on(site, job));
    site.apply(&larger);
    wait_for("the larger job", 60, || site.is_done(&larger));
    assert_eq!((site.nodes_of(job).as_str(), site.restarts(job)), ("n[1-4]", 1));
    site.applies_once(&larger);
    assert_eq!(site.restarts(job), 1);
    site.cluster.run("scancel", &[&fixed]);
}

fn is_stopped(site: &Site, job: &str) {
    let change = Change::Preempt { job: job.to_owned(), frees_gpus: 32 };
    let stop = action("preempt-1", 5, change, goes_on(site, job));
    site.apply(&stop);
    assert!(matches!(site.effect(&stop), Effect::Done { .. } | Effect::Partial { .. }));
    // It does not wait for Slurm's two minutes.
    site.wait_started(job, 2);
    assert!(site.is_done(&stop));
    site.applies_once(&stop);
    assert_eq!(site.restarts(job), 2);
    let fixed = site.submit("research", &["--nodes=1", "--gres=gpu:8", "--no-requeue"]);
    site.cluster.wait_state(&fixed, &["R"]);
    let change = Change::Preempt { job: fixed.clone(), frees_gpus: 8 };
    let refused = site.try_apply(&action("preempt-2", 5, change, Vec::new())).unwrap_err();
    assert!(refused.to_string().contains("--no-requeue"), "{refused}");
    assert_eq!(site.cluster.state(&fixed), "R");
}

fn what_a_person_cancelled_stays(site: &Site, job: &str) {
    let facts = goes_on(site, job);
    let resized = resize("resize_job-8", job, 32, 24, &["n1", "n2", "n3"], facts.clone());
    site.apply(&resized);
    site.cluster.run("scancel", &[job]);
    wait_for("its end", 60, || site.cluster.state(job) == "CA");
    assert_eq!(site.effect(&resized), Effect::Overridden { found: "the job is gone".into() });
    assert!(site.try_apply(&resized).unwrap().already, "it is not done again");
    let next = resize("resize_job-9", job, 24, 16, &["n1", "n2"], facts);
    assert!(matches!(site.try_apply(&next), Err(TargetError::Precondition(_))));
    assert!(!site.observe().jobs.contains_key(job));
}

#[test]
fn a_job_is_notified_once_and_acknowledges() {
    let Some(site) = Site::start() else { return };
    let notified = site.cluster.path().join("notified");
    let listens = site.cluster.path().join("listens");
    // Each signal leaves a line.
    let step = format!(
        "trap \"echo notified >>{}\" USR1; touch {}; while :; do sleep 0.2; done",
        notified.display(),
        listens.display()
    );
    let script = site.cluster.path().join("step.sh");
    std::fs::write(&script, format!("#!/bin/bash\n{step}\n")).unwrap();
    let options = ["--account=research", "--gres=gpu:8", "--comment=tidegate:preemptible,notice"];
    let job = site.cluster.submit(&options, &format!("srun bash {}", script.display()));
    site.cluster.wait_state(&job, &["R"]);
    wait_for("its step", 60, || {
        site.cluster.run("squeue", &["--steps", "--noheader", "-j", &job]).contains("bash")
    });
    wait_for("its step to listen", 60, || listens.exists());
    let change = Change::Preempt { job: job.clone(), frees_gpus: 8 };
    let stop = Action { notice_ms: 30_000, ..action("preempt-1", 3, change, goes_on(&site, &job)) };
    let Notice::Waiting { since_us } = site.target().notify(&stop).unwrap() else { panic!("it waits") };
    let text = std::fs::read_to_string(site.cluster.path().join(format!("{job}.notice"))).unwrap();
    assert!(text.contains(&(since_us + 30_000_000).to_string()) && text.contains("preempt-1"), "{text}");
    let lines = || std::fs::read_to_string(&notified).unwrap_or_default().lines().count();
    wait_for("the signal", 30, || lines() > 0);
    for _ in 0..3 {
        assert_eq!(site.target().notify(&stop), Ok(Notice::Waiting { since_us }));
    }
    std::thread::sleep(std::time::Duration::from_secs(1));
    assert_eq!(lines(), 1, "notified once");
    std::fs::write(site.cluster.path().join(format!("{job}.ready")), "preempt-1").unwrap();
    assert!(
        matches!(site.target().notify(&stop), Ok(Notice::Acknowledged { at_us, saved_step: None }) if at_us >= since_us)
    );
    // Notified is not done.
    assert_eq!(site.effect(&stop), Effect::Absent);
    site.apply(&stop);
    site.wait_started(&job, 1);
    let silent = site.submit("research", &["--gres=gpu:8"]);
    site.cluster.wait_state(&silent, &["R"]);
    let change = Change::Preempt { job: silent, frees_gpus: 8 };
    assert_eq!(site.target().notify(&action("preempt-2", 3, change, vec![])), Ok(Notice::Unsupported));
}
