//! Growth by satellites: once each, as the job's own user, and ended with their job.

use std::os::unix::fs::PermissionsExt;

use tidegate_autopilot::action::{Action, Change, Precondition};
use tidegate_autopilot::state::{GrowBy, JobKind};
use tidegate_autopilot::target::{Effect, Target, TargetError};
use tidegate_testing::slurm::wait_for;

use crate::jobs::resize;
use crate::site::{Site, action};

impl Site {
    /// User of the jobs that grow: another one if we may submit for others.
    fn trainer(&self) -> Vec<String> {
        if !nix::unistd::Uid::effective().is_root() {
            return Vec::new();
        }
        self.cluster.run("sacctmgr", &["-i", "add", "user", "nobody", "account=research,serving"]);
        ["--uid=nobody", "--gid=nogroup"].map(str::to_owned).into()
    }

    /// The satellites' script, and the file in which they leave a trace.
    pub fn join_script(&self) -> String {
        let path = self.cluster.path().join("join.sh");
        let joined = self.cluster.path().join("joined");
        let text = format!(
            "#!/bin/bash\n#SBATCH --output=/dev/null\necho \"$TIDEGATE_JOINS $TIDEGATE_JOINS_NODE $(id -un)\" >> {}\nsleep 3600\n",
            joined.display()
        );
        std::fs::write(&path, text).unwrap();
        std::fs::write(&joined, "").unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        std::fs::set_permissions(&joined, std::fs::Permissions::from_mode(0o666)).unwrap();
        path.display().to_string()
    }

    /// Starts a job on n1 that can grow by satellites. `options` go to sbatch, e.g. the job's user.
    pub fn submit_joined(&self, options: &[String]) -> String {
        let comment = format!(
            "--comment=tidegate:elastic,min=8,max=32,grow=satellites,satellite={}",
            self.join_script()
        );
        let mut all = vec!["--nodes=1", "--gres=gpu:8", "--nodelist=n1", "--export=ALL", &comment];
        all.extend(options.iter().map(String::as_str));
        let job = self.submit("research", &all);
        self.cluster.wait_state(&job, &["R"]);
        job
    }

    /// Satellites that have not ended, by their names.
    pub fn joined(&self, job: &str) -> Vec<String> {
        let shown = self.cluster.run("squeue", &["--noheader", "--array", "--states=PD,R", "--format=%j %i"]);
        let name = format!("tidegate-join.{job}.");
        shown.lines().filter(|line| line.starts_with(&name)).map(str::to_owned).collect()
    }
}

#[test]
fn satellites_join_once_leave_on_shrink_and_end_with_their_job() {
    let Some(site) = Site::start() else { return };
    let whose = site.trainer();
    let job = site.submit_joined(&whose);
    if !whose.is_empty() {
        let facts = Vec::<Precondition>::new();
        let root_s = site.try_apply(&resize("resize_job-0", &job, 8, 24, &["n1"], facts)).unwrap_err();
        assert!(root_s.to_string().contains("it belongs to user 0 and not to user"), "{root_s}");
        let path = site.cluster.path().join("join.sh");
        std::process::Command::new("chown").args(["nobody", path.to_str().unwrap()]).status().unwrap();
        assert!(site.target().capabilities().grow_by_satellites);
    }
    let grown = resize(
        "resize_job-1",
        &job,
        8,
        24,
        &["n1"],
        vec![Precondition::job_unchanged(&job, &site.observe().jobs[&job])],
    );
    site.apply(&grown);
    wait_for("two to join", 60, || site.is_done(&grown));
    site.applies_once(&grown);
    assert_eq!((site.joined(&job).len(), site.restarts(&job)), (2, 0));
    let said = || std::fs::read_to_string(site.cluster.path().join("joined")).unwrap();
    wait_for("two to say so", 30, || said().lines().count() >= 2);
    let user = if whose.is_empty() { whoami() } else { "nobody".to_owned() };
    assert_eq!(said(), format!("{job} n1 {user}\n").repeat(2));
    let state = site.observe();
    let seen = &state.jobs[&job];
    assert_eq!((seen.held_gpus(), state.jobs.len()), (24, 1), "one job of three nodes");
    assert!(matches!(seen.kind, JobKind::Elastic { grow: GrowBy::Satellites, max_gpus: 32, .. }));
    let beyond = resize("resize_job-2", &job, 24, 28, &["n1"], vec![]);
    assert!(matches!(site.try_apply(&beyond), Err(TargetError::Refused { .. })), "half a node");

    let keep: Vec<&str> = seen.placement.keys().take(2).map(String::as_str).collect();
    let shrunk = resize("resize_job-3", &job, 24, 16, &keep, vec![Precondition::job_unchanged(&job, seen)]);
    site.apply(&shrunk);
    assert!(site.is_done(&shrunk));
    site.applies_once(&shrunk);
    assert_eq!((site.joined(&job).len(), site.cluster.state(&job).as_str()), (1, "R"));
    assert!(matches!(site.effect(&grown), Effect::Overridden { .. }), "it has another size now");
    let stop = action("preempt-1", 5, Change::Preempt { job: job.clone(), frees_gpus: 16 }, vec![]);
    site.apply(&stop);
    site.wait_started(&job, 1);
    assert!(site.joined(&job).is_empty(), "who joined goes with it");

    // A waiting satellite is cancelled like the others; and the end of the job ends them with
    // nothing of ours running.
    let again = Action { preconditions: vec![], ..resize("resize_job-4", &job, 8, 16, &["n1"], vec![]) };
    site.apply(&again);
    wait_for("one to join", 60, || site.is_done(&again));
    site.cluster.run("scancel", &[&job]);
    wait_for("who joined to go with it", 60, || site.joined(&job).is_empty());
}

fn whoami() -> String {
    nix::unistd::User::from_uid(nix::unistd::Uid::effective()).unwrap().unwrap().name
}
