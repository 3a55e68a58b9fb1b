//! What the autopilot says of a site and of every object on it: `autopilot doctor`, `plan show` and
//! `plan why` on a real Slurm, while it runs.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Child;

use serde_json::Value;
use tempfile::TempDir;
use tidegate_testing::slurm::Cluster;

use crate::program::{run, succeed, tidegate, wait_until};

/// A site with one team in one of two partitions; the account `ml` is nobody's.
struct Site {
    cluster: Cluster,
    folder: TempDir,
}

impl Site {
    fn start() -> Option<Self> {
        let cluster = Cluster::start(&["--dbd", "--nodes=3+1"])?;
        cluster.run("sacctmgr", &["-i", "add", "account", "research,ml", "cluster=tidegate"]);
        let user =
            cluster.run("sacctmgr", &["-nP", "show", "user", "format=user", "where", "adminlevel=Admin"]);
        let user = user.lines().find(|name| !name.is_empty()).unwrap();
        cluster.run("sacctmgr", &["-i", "add", "user", user, "account=research,ml", "cluster=tidegate"]);
        Some(Self { cluster, folder: tempfile::tempdir().unwrap() })
    }

    fn data(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    /// The deployment file, with these lines at its end.
    fn config(&self, more: &str) -> PathBuf {
        let path = self.folder.path().join("autopilot.toml");
        let conf = self.cluster.conf();
        let text = format!(
            "cluster = \"tidegate\"\npolicy = \"auto\"\nlook_every_s = 1\nplan_every_s = 1\nlease_s = 3\n[slurm]\n\
             conf = {conf:?}\n[slurm.pools.train]\n[slurm.owners.research]\n[slurm.owners.research.shares.train]\n{more}"
        );
        fs::write(&path, text).unwrap();
        path
    }

    fn doctor(&self, config: &Path) -> (Option<i32>, Value) {
        let said = run(tidegate()
            .args(["autopilot", "doctor", "--json", "--config"])
            .arg(config)
            .arg("--data")
            .arg(self.data()));
        let report = serde_json::from_str(&said.stdout);
        (said.status, report.unwrap_or_else(|error| panic!("{error}: {} {}", said.stdout, said.stderr)))
    }

    fn plan(&self, arguments: &[&str]) -> String {
        succeed(tidegate().arg("plan").args(arguments).arg("--data").arg(self.data()))
    }

    fn submit(&self, account: &str, comment: &str, more: &[&str]) -> String {
        let (account, comment) = (format!("--account={account}"), format!("--comment={comment}"));
        let options = [&account, &comment, "--gres=gpu:8", "--time=60"].map(|option: &str| option);
        self.cluster.submit(&[&options[..], more].concat(), "sleep 600")
    }
}

/// Checks of that name, each as its verdict and what was found.
fn found(report: &Value, check: &str) -> Vec<String> {
    let checks = report["checks"].as_array().unwrap().iter().filter(|it| it["check"] == check);
    checks
        .map(|it| format!("{}: {}", it["verdict"].as_str().unwrap(), it["found"].as_str().unwrap()))
        .collect()
}

/// The autopilot in the background; killed when dropped.
struct Life(Child);

impl Drop for Life {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

#[test]
fn a_site_and_all_that_is_on_it_is_explained_before_and_while_the_autopilot_runs() {
    let Some(site) = Site::start() else { return };
    let typo = site.submit("ml", "tidegate:elastik,min=8,max=16", &[]);
    let notified = site.submit("research", "tidegate:preemptible,notice", &[]);
    let held = site.submit("research", "", &["--hold"]);
    site.cluster.wait_state(&typo, &["R"]);
    site.cluster.wait_state(&notified, &["R"]);

    // Before the first plan: no log, no data folder, and a job that asks for what is not set.
    let (status, report) = site.doctor(&site.config(""));
    assert_eq!((status, &report["ok"]), (Some(1), &Value::Bool(false)), "{report:#}");
    let first = |check: &str| found(&report, check).into_iter().next().unwrap_or_default();
    assert!(
        first("scheduler").starts_with("ok: Slurm ") && first("scheduler").contains("3 nodes with 24 GPUs")
    );
    assert!(first("rights").starts_with("ok: "), "{report:#}");
    assert!(first("pools").starts_with("warning: partition infer with 4 GPUs"), "{report:#}");
    let unmapped = format!("warning: no owner maps account \"ml\", of 1 jobs ({typo})");
    assert!(first("owners").starts_with(&unmapped), "{report:#}");
    assert!(
        first("comments").starts_with(&format!("warning: job {typo}: "))
            && first("comments").contains("is elastic meant?"),
        "{report:#}"
    );
    assert!(first("notices").starts_with(&format!("missing: jobs {notified} ask")), "{report:#}");
    assert!(first("waiting").contains(&held), "{report:#}");
    assert!(first("log").starts_with("warning: there is no log"), "{report:#}");
    assert!(!site.data().exists(), "it makes nothing");
    let mended = site.config("[slurm.notice]\nsignal = \"USR1\"\n");
    let (status, report) = site.doctor(&mended);
    assert_eq!((status, &report["ok"]), (Some(0), &Value::Bool(true)), "{report:#}");

    // While it runs, the newest plan knows a job a moment after it has begun.
    let mut command = tidegate();
    command.args(["autopilot", "run", "--config"]).arg(&mended).arg("--data").arg(site.data());
    let said = fs::File::create(site.folder.path().join("said")).unwrap();
    let life = Life(command.stdout(said.try_clone().unwrap()).stderr(said).spawn().unwrap());
    wait_until("a plan to be shown", || {
        run(tidegate().args(["plan", "show", "--data"]).arg(site.data())).status == Some(0)
    });
    let elastic = site.submit("research", "tidegate:elastic,min=8,max=24,grow=requeue", &[]);
    site.cluster.wait_state(&elastic, &["R"]);
    let why = |job: &str| run(tidegate().args(["plan", "why", job, "--data"]).arg(site.data())).stdout;
    wait_until("the newest plan to know the job", || why(&elastic).contains("resize_job"));
    let scaling = format!(
        "job {elastic}: resize_job not considered: its scaling is unknown (would change it: step reports"
    );
    assert!(why(&elastic).contains(&scaling), "{}", why(&elastic));
    let shown = site.plan(&["show"]);
    for part in [
        "of cluster tidegate, made 20",
        " ago), policy auto (",
        "3 nodes with 24 GPUs, 3 running",
        "slurm, 0 s before",
    ] {
        assert!(shown.contains(part), "{part}: {shown}");
    }
    let all = site.plan(&["why"]);
    let unmapped = format!("job {typo}: not considered: no owner maps account \"ml\"");
    for part in [
        unmapped.as_str(),
        "node n1: drain_node not considered: nothing tells its health",
        "owner research: ",
    ] {
        assert!(all.contains(&format!("\n{part}")), "{part}: {all}");
    }
    let json: Value = serde_json::from_str(&site.plan(&["why", "--json"])).unwrap();
    let objects = json["standings"].as_array().unwrap();
    let has = |kind: &str, name: &str| {
        objects.iter().any(|it| it["object"][kind] == name && it["change"].is_string())
    };
    assert!(has("job", &typo) && has("node", "n3") && has("owner", "ml"), "{json:#}");
    let shown: Value = serde_json::from_str(&site.plan(&["show", "--json"])).unwrap();
    assert_eq!(shown["made_from"]["jobs"]["running"], 3, "{shown:#}");
    assert!(
        shown["made"]["age_s"].as_i64().unwrap() < 120 && shown["made"]["generation"].as_i64() >= Some(1),
        "{shown:#}"
    );
    let unknown = run(tidegate().args(["plan", "why", &held, "--data"]).arg(site.data()));
    assert!(unknown.stderr.contains("wait for a person"), "{}", unknown.stderr);
    // Its log is in use: what it told is in the newest plan.
    let (status, report) = site.doctor(&mended);
    assert_eq!(status, Some(0), "{report:#}");
    assert!(found(&report, "log")[0].starts_with("warning: "), "{report:#}");
    drop(life);
    // A process killed while starting a program leaves a child that holds the lock until exec.
    let mut last = (None, Value::Null);
    wait_until("the log to be read", || {
        last = site.doctor(&mended);
        found(&last.1, "log") == ["ok: it can be read"]
    });
    let (status, report) = last;
    assert_eq!(status, Some(0), "{report:#}");
    assert!(found(&report, "agents")[0].starts_with("warning: 0 of 3 nodes"), "{report:#}");
}

#[test]
fn a_deployment_that_cannot_be_read_or_reached_is_named_with_what_to_do() {
    let folder = tempfile::tempdir().unwrap();
    let doctor = |config: &Path| {
        let mut command = tidegate();
        command
            .args(["autopilot", "doctor", "--config"])
            .arg(config)
            .arg("--data")
            .arg(folder.path().join("data"));
        run(&mut command)
    };
    let none = doctor(&folder.path().join("nonesuch.toml"));
    assert!(none.status == Some(1) && none.stdout.starts_with("MISSING deployment"), "{}", none.stdout);
    let config = folder.path().join("autopilot.toml");
    fs::write(&config, "cluster = \"c\"\n[slurm]\nprograms = \"/nonesuch\"\n").unwrap();
    let said = doctor(&config);
    assert_eq!(said.status, Some(1), "{}", said.stdout);
    for part in ["ok      deployment", "warning switch", "→ tidegate autopilot resume", "MISSING scheduler"]
    {
        assert!(said.stdout.contains(part), "{part}: {}", said.stdout);
    }
    let plan = run(tidegate().args(["plan", "show", "--data"]).arg(folder.path().join("data")));
    assert!(plan.status == Some(1), "{}", plan.stderr);
}
