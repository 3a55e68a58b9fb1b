use std::fs;

use tidegate_autopilot::policy::Policy;
use tidegate_autopilot::rollout::{Canary, Rollout};
use tidegate_autopilot::state::{ClusterState, Job, JobState};
use tidegate_autopilot::target::Capabilities;

use super::knowledge::SiteKnowledge;
use super::*;
use crate::control_folder::ControlFolder;
use crate::slurm::{Survey, SurveyedJob};

/// A deployment file in a folder.
fn file(folder: &Path, slurm: &str) -> std::path::PathBuf {
    let path = folder.join("autopilot.toml");
    fs::write(&path, format!("cluster = \"prod\"\npolicy = \"auto\"\n[slurm]\n{slurm}")).unwrap();
    path
}

fn config(slurm: &str) -> ServiceConfig {
    let folder = tempfile::tempdir().unwrap();
    ServiceConfig::read(&file(folder.path(), slurm)).unwrap()
}

/// Checks of that name, as they are printed.
fn of(checks: &[Check], name: &str) -> Vec<String> {
    let text = |check: &Check| {
        format!("{:?}: {} -> {}", check.verdict, check.found, check.fix.as_deref().unwrap_or("-"))
    };
    checks.iter().filter(|check| check.check == name).map(text).collect()
}

fn job(id: &str, account: &str, owner: &str) -> SurveyedJob {
    SurveyedJob {
        id: id.into(),
        account: account.into(),
        owner: owner.into(),
        partitions: vec!["gpu".into()],
        declares: true,
        has_time_limit: true,
        ..SurveyedJob::default()
    }
}

fn survey(jobs: Vec<SurveyedJob>) -> Survey {
    let partitions = [("gpu".to_owned(), 40), ("debug".to_owned(), 8)].into();
    Survey { user: "pilot".into(), lacking: vec![], jobs, partitions }
}

fn known() -> SiteKnowledge {
    SiteKnowledge {
        state: ClusterState { cluster: "prod".into(), ..ClusterState::default() },
        capabilities: Capabilities::default(),
        has_steps: false,
        agents: None,
    }
}

fn cluster_checks(slurm: &str, survey: &Survey, known: &SiteKnowledge) -> Vec<Check> {
    let (config, mut checks) = (config(slurm), Vec::new());
    let policy = config.policy().unwrap();
    cluster::check(&config, Some(&policy), survey, Some(known), &mut checks);
    jobs::check(&config, survey, Some(known), &mut checks);
    checks
}

const OWNERS: &str = "[slurm.pools.train]\npartition = \"gpu\"\n[slurm.pools.infer]\n\
    [slurm.owners.research]\naccounts = [\"res\"]\n[slurm.owners.research.shares.train]\n";

#[test]
fn what_lies_outside_of_pools_and_owners_is_named_with_what_to_add() {
    let survey = survey(vec![job("1", "res", "research"), job("7", "ml", "ml"), job("9", "ml", "ml")]);
    let checks = cluster_checks(OWNERS, &survey, &known());
    let pools = of(&checks, "pools");
    assert!(
        pools[0].starts_with("Warning: partition debug with 8 GPUs and 0 jobs belongs to no pool"),
        "{pools:?}"
    );
    assert!(
        pools[1].starts_with("Missing: pool infer is partition infer") && pools[1].contains("debug, gpu")
    );
    let owners = of(&checks, "owners");
    assert_eq!(
        owners,
        [
            "Warning: no owner maps account \"ml\", of 2 jobs (7, 9): nothing is kept, lent or foreseen for it -> add \
          [slurm.owners.ml] with accounts = [\"ml\"], and its shares, to the deployment file"
        ]
    );
    let all_mapped = self::survey(vec![job("1", "res", "research")]);
    let checks = cluster_checks(OWNERS, &all_mapped, &known());
    assert_eq!(of(&checks, "owners"), ["Ok: research: every account of a job has one -> -"]);
    let none = cluster_checks("", &all_mapped, &known());
    assert!(of(&none, "owners").iter().any(|check| check.contains("the deployment file names none")));
    let elsewhere = OWNERS.replace("shares.train", "shares.infer");
    let checks = cluster_checks(&elsewhere, &all_mapped, &known());
    assert!(of(&checks, "owners")[0].starts_with("Missing: owner research has a share of pool infer"));
}

#[test]
fn owners_and_pools_that_only_the_policy_knows_are_named_with_their_key() {
    let text = "name = \"p\"\n[floors.owners]\nresearch = 8\n[floors.pools]\ngpu = 8\ntrain = 8\n\
        [promise.owner_wait_p95_s]\nreserch = 60\n[lend.owner_promise_quantile]\nml = 0.99\nbatch = 0.99\n\
        [[scopes]]\nowner = \"nobody\"\nmode = \"stop\"\n";
    let policy = Policy::parse(text).unwrap();
    let (config, mut checks) = (config(OWNERS), Vec::new());
    // An account that no owner maps is an owner of its name.
    cluster::check(&config, Some(&policy), &survey(vec![job("7", "ml", "ml")]), None, &mut checks);
    let unknown = |key: &str, name: &str| {
        format!(
            "Warning: {key} names \"{name}\", which is no owner of the deployment file and has no job -> one of \
             research, or remove it"
        )
    };
    assert_eq!(
        of(&checks, "policy"),
        [
            unknown("lend.owner_promise_quantile", "batch"),
            unknown("promise.owner_wait_p95_s", "reserch"),
            unknown("scopes", "nobody"),
            "Missing: floors.pools names pool \"gpu\", which this site does not have -> one of train, or remove it"
                .to_owned(),
        ]
    );
}

#[test]
fn names_in_candidates_are_checked_too() {
    let policy = |text: &str| Policy::parse(&format!("name = \"p\"\n{text}")).unwrap();
    let canary = Canary {
        policy: policy("[floors.owners]\nresearch = 8\nvison = 8\n"),
        owners: ["ml", "resaerch"].map(str::to_owned).into(),
        rollback: Policy::shipped().canary.rollback,
    };
    let shadow = policy("[floors.pools]\ngpu = 8\n");
    let rollout = Rollout { canary: Some(canary), shadow: Some(shadow) };
    let mut checks = Vec::new();
    cluster::candidates(&config(OWNERS), &rollout, &survey(vec![job("7", "ml", "ml")]), &mut checks);
    assert_eq!(
        of(&checks, "policy"),
        [
            "Missing: canary.owners names \"resaerch\", and the autopilot does not start with it -> one of ml, \
             research, or remove it",
            "Warning: canary p: floors.owners names \"vison\", which is no owner of the deployment file and has no \
             job -> one of research, or remove it",
            "Missing: shadow p: floors.pools names pool \"gpu\", which this site does not have -> one of train, or \
             remove it",
        ]
    );
}

#[test]
fn jobs_that_declare_wrongly_or_ask_for_what_is_not_set_are_named() {
    let problem = Some("tidegate:elastik declares nothing".to_owned());
    let survey = survey(vec![
        SurveyedJob { problem, declares: false, ..job("3", "res", "research") },
        SurveyedJob { wants_notice: true, has_time_limit: false, ..job("4", "res", "research") },
        SurveyedJob { waits_for: Some("Dependency".into()), ..job("5", "res", "research") },
    ]);
    let checks = cluster_checks(OWNERS, &survey, &known());
    let comments = of(&checks, "comments");
    assert!(
        comments[0]
            .starts_with("Warning: job 3: tidegate:elastik declares nothing -> scontrol update JobId=3")
    );
    assert_eq!(comments[1], "Ok: 2 of 3 jobs declare something in their comment -> -");
    assert!(of(&checks, "time limits")[0].starts_with("Warning: jobs 4 have none"));
    assert!(of(&checks, "waiting")[0].contains("5 (Dependency) wait for a person"));
    assert!(of(&checks, "notices")[0].starts_with("Missing: jobs 4 ask to be notified, and no way is set"));
    let with_folder = format!("{OWNERS}[slurm.notice]\nfolder = \"/nonesuch\"\n");
    let notices = of(&cluster_checks(&with_folder, &survey, &known()), "notices");
    assert!(notices[0].starts_with("Ok: folder /nonesuch; jobs 4 ask for it"), "{notices:?}");
    assert!(notices[1].starts_with("Missing: /nonesuch is no folder"), "{notices:?}");
    let silent = self::survey(vec![SurveyedJob { declares: false, ..job("3", "res", "research") }]);
    let comments = of(&cluster_checks(OWNERS, &silent, &known()), "comments");
    assert!(comments[0].contains("no running job may be touched"), "{comments:?}");
}

#[test]
fn rights_and_names_that_do_not_suffice_are_said() {
    let mut known = known();
    let survey = Survey { lacking: vec!["quotas: there is no slurmdbd".into()], ..survey(vec![]) };
    let rights = |known: &SiteKnowledge| of(&cluster_checks(OWNERS, &survey, known), "rights").remove(0);
    assert!(rights(&known).starts_with("Missing: pilot may only look"), "{}", rights(&known));
    known.capabilities.kinds = [tidegate_autopilot::action::Kind::Preempt].into();
    assert!(rights(&known).starts_with("Warning: pilot may preempt; not resize_job"), "{}", rights(&known));
    known.state.cluster = "other".into();
    let checks = cluster_checks(OWNERS, &survey, &known);
    assert_eq!(of(&checks, "lacks"), ["Warning: quotas -> there is no slurmdbd"]);
    assert!(of(&checks, "scheduler")[1].contains("Slurm is \"other\""));
}

#[test]
fn what_the_log_does_not_tell_is_said_for_whom() {
    let mut known = known();
    let text = r#"{"nodes": {}, "pools": {"train": {}}, "owners": {"serving": {"shares": {"train":
        {"quota_gpus": 8, "lendable": true}}}}}"#;
    known.state = serde_json::from_str(text).unwrap();
    let node: tidegate_autopilot::state::Node = serde_json::from_str(
        r#"{"pool": "train", "rack": null, "gpu_model": "h100", "gpus": 8, "state": "up", "health": {},
            "drain": null, "do_not_disrupt": false}"#,
    )
    .unwrap();
    known.state.nodes = [("n1".to_owned(), node.clone()), ("n2".to_owned(), node)].into();
    known.state.nodes.get_mut("n1").unwrap().health.bad_ppm = Some(0);
    known.agents = Some(["n1".to_owned()].into());
    let mut checks = Vec::new();
    knowledge::check(&known, &mut checks);
    assert!(
        of(&checks, "agents")[0].starts_with("Warning: 1 of 2 nodes sent readings within a minute; not n2")
    );
    assert!(of(&checks, "health")[0].starts_with("Warning: known of 1 of 2 nodes"));
    assert!(
        of(&checks, "forecasts")[0].starts_with("Warning: serving in train may lend, and nothing foresees")
    );
    assert!(of(&checks, "prices")[0].starts_with("Warning: pools train have none"));
    assert!(of(&checks, "topology")[0].starts_with("Warning: no rack is known"));
    // An elastic job without a curve.
    let job: Job = serde_json::from_value(serde_json::json!({
        "owner": "serving", "pool": "train", "queue": null, "priority": 0, "gpus": 8, "placement": {},
        "kind": {"elastic": {"min_gpus": 8, "max_gpus": 16, "sizes": [], "grow": "requeue"}},
        "state": JobState::Unknown, "anchor_node": null, "restarts": 0, "loan": null, "preemptible": false,
        "preemptions_24h": 0, "checkpoint": {}, "curve": null, "remaining_work_ms": null,
        "expected_end_us": null, "resized_us": null, "opt_in": true, "do_not_disrupt": false,
    }))
    .unwrap();
    let mut stopped = Job { preemptible: true, ..job.clone() };
    stopped.checkpoint.resumes = Some(false);
    known.state.jobs = [("7".to_owned(), job), ("8".to_owned(), stopped)].into();
    let mut checks = Vec::new();
    knowledge::check(&known, &mut checks);
    assert!(of(&checks, "restarts")[0].starts_with("Warning: jobs of serving start over after a stop"));
    // Its family reports saves: it was stopped before the first.
    known.state.jobs.get_mut("8").unwrap().checkpoint.save_ms = Some(20_000);
    let mut checks = Vec::new();
    knowledge::check(&known, &mut checks);
    assert!(of(&checks, "restarts").is_empty());
    known.state.jobs.remove("8");
    let scaling = of(&cluster_checks(OWNERS, &survey(vec![]), &known), "scaling");
    assert!(
        scaling[0].starts_with("Warning: elastic jobs 7 do not grow")
            && scaling[0].contains("no job reports steps")
    );
}

#[test]
fn the_deployment_is_checked_before_the_scheduler_and_without_it() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path();
    let none = examine(&data.join("nonesuch.toml"), data, Err("no log"));
    assert_eq!((none.len(), none[0].check, none[0].verdict), (1, "deployment", Verdict::Missing));
    let nowhere = file(data, "programs = \"/nonesuch\"\n");
    let checks = examine(&nowhere, data, Err("no log"));
    assert!(of(&checks, "policy")[0].starts_with("Ok: auto; act: "), "{checks:#?}");
    assert!(
        of(&checks, "switch")[0].starts_with("Warning: off: never switched on -> tidegate autopilot resume")
    );
    assert!(of(&checks, "pager")[0].starts_with("Warning: nobody is told"));
    assert!(of(&checks, "scheduler")[0].starts_with("Missing: "), "{checks:#?}");
    ControlFolder::in_data(data).set(&ControlFolder::on("anna", "now")).unwrap();
    let checks = examine(&nowhere, data, Err("no log"));
    assert_eq!(of(&checks, "switch"), ["Ok: on by anna at now -> -"]);
    // The same switch without a signature does not count where the site has signers.
    let text =
        fs::read_to_string(&nowhere).unwrap().replace("[slurm]", "[authority]\nsigners = \"none\"\n[slurm]");
    fs::write(&nowhere, text.replace("\"auto\"", "\"default\"")).unwrap();
    let checks = examine(&nowhere, data, Err("no log"));
    assert!(of(&checks, "switch")[0].contains("without the signature"));
    assert!(of(&checks, "approvals")[0].starts_with("Missing: "));
    assert!(of(&checks, "policy")[0].contains("nothing is ever done"), "{checks:#?}");
}
