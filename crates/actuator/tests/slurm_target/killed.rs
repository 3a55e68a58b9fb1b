//! Killed with -9 at any time of an action: whoever asks next finishes it, and its effect is there once.

use std::process::{Command, Stdio};
use std::time::Duration;

use tidegate_actuator::slurm::{SlurmConfig, SlurmTarget};
use tidegate_autopilot::action::{Action, Change};
use tidegate_autopilot::target::{Effect, Target};

use crate::cluster::wait_for;
use crate::jobs::resize;
use crate::loans::lend;
use crate::nodes::drain;
use crate::site::{MINUTE_US, Site, action, now_us};

const CHILD: &str = "TIDEGATE_SLURM_CHILD";
/// An action takes about 300 ms here.
const DELAYS_MS: [u64; 6] = [20, 60, 110, 170, 240, 320];

/// Applies one action in a process of its own; it is no test unless it is called so.
#[test]
fn child() {
    let Ok(given) = std::env::var(CHILD) else { return };
    let (config, action): (SlurmConfig, Action) = serde_json::from_str(&given).unwrap();
    let applied = SlurmTarget::open(config).and_then(|mut target| target.apply(&action));
    println!("applied: {applied:?}");
}

/// All of one generation: the last ones of the others would be refused.
fn of_this_lease(action: Action) -> Action {
    Action { generation: 9, ..action }
}

/// Lets a process apply the action, kills it after a while, and finishes what it left; says what stood there in between.
fn killed_after(site: &Site, action: &Action, delay_ms: u64) -> Effect {
    let given = serde_json::to_string(&(&site.config, action)).unwrap();
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "killed::child", "--nocapture"])
        .env(CHILD, given)
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    std::thread::sleep(Duration::from_millis(delay_ms));
    child.kill().unwrap();
    child.wait().unwrap();
    let between = site.effect(action);
    site.try_apply(action)
        .unwrap_or_else(|error| panic!("{} killed after {delay_ms} ms: {error}", action.id));
    assert!(site.try_apply(action).unwrap().already);
    between
}

#[test]
fn an_action_killed_at_any_time_is_finished_once() {
    let Some(site) = Site::start() else { return };
    let mut seen = std::collections::BTreeMap::<String, u32>::new();
    let mut note = |what: &str, between: &Effect| {
        let found = match between {
            Effect::Absent => "absent",
            Effect::Partial { .. } => "partial",
            Effect::Done { .. } => "done",
            Effect::Overridden { .. } => "overridden",
        };
        *seen.entry(format!("{what} {found}")).or_default() += 1;
    };
    for (n, delay_ms) in DELAYS_MS.into_iter().enumerate() {
        note("shrink", &shrinks_once(&site, n, delay_ms));
        note("preempt", &is_stopped_once(&site, n, delay_ms));
        note("grow", &grows_once(&site, n, delay_ms * 8));
        note("drain", &drains_once(&site, n, delay_ms));
        note("lend", &lends_once(&site, n, delay_ms));
    }
    eprintln!("found after the kill: {seen:?}");
    let partial: u32 =
        seen.iter().filter(|(what, _)| what.ends_with("partial")).map(|(_, count)| count).sum();
    assert!(partial > 0, "no kill fell into an action: {seen:?}");
    assert!(!seen.keys().any(|what| what.ends_with("overridden")), "{seen:?}");
}

fn shrinks_once(site: &Site, n: usize, delay_ms: u64) -> Effect {
    let job = site.submit("research", &["--nodes=2", "--gres=gpu:8", "--nodelist=n1,n2"]);
    site.cluster.wait_state(&job, &["R"]);
    let change = of_this_lease(resize(&format!("resize_job-s{n}"), &job, 16, 8, &["n1"], vec![]));
    let between = killed_after(site, &change, delay_ms);
    assert!(site.is_done(&change));
    assert_eq!((site.nodes_of(&job).as_str(), site.restarts(&job)), ("n1", 0));
    ends(site, &job);
    between
}

fn is_stopped_once(site: &Site, n: usize, delay_ms: u64) -> Effect {
    let job = site.submit("research", &["--gres=gpu:8", "--nodelist=n1"]);
    site.cluster.wait_state(&job, &["R"]);
    let change = Change::Preempt { job: job.clone(), frees_gpus: 8 };
    let between = killed_after(site, &action(&format!("preempt-{n}"), 9, change, vec![]), delay_ms);
    site.wait_started(&job, 1);
    ends(site, &job);
    between
}

fn grows_once(site: &Site, n: usize, delay_ms: u64) -> Effect {
    let elastic = "--comment=tidegate:elastic,min=8,max=32,grow=requeue";
    let job = site.submit("research", &["--nodes=1", "--gres=gpu:8", "--nodelist=n1", elastic]);
    site.cluster.wait_state(&job, &["R"]);
    let change = of_this_lease(resize(&format!("resize_job-g{n}"), &job, 8, 16, &["n1"], vec![]));
    let between = killed_after(site, &change, delay_ms);
    wait_for("the larger job", 60, || site.is_done(&change));
    assert_eq!(site.restarts(&job), 1, "stopped once, killed after {delay_ms} ms");
    let shown = site.show("job", &job);
    assert_eq!((shown["NumNodes"].as_str(), shown["JobState"].as_str()), ("2", "RUNNING"));
    ends(site, &job);
    between
}

fn drains_once(site: &Site, n: usize, delay_ms: u64) -> Effect {
    let change = of_this_lease(drain(&format!("drain_node-{n}"), "n5"));
    let between = killed_after(site, &change, delay_ms);
    assert!(site.is_done(&change));
    site.cluster.run("scontrol", &["update", "NodeName=n5", "State=RESUME"]);
    wait_for("the node", 60, || site.cluster.run("sinfo", &["-h", "-n", "n5", "-o", "%t"]) == "idle");
    assert!(site.try_apply(&change).unwrap().already, "a person returned it");
    assert_eq!(site.show("node", "n5")["State"], "IDLE");
    between
}

fn lends_once(site: &Site, n: usize, delay_ms: u64) -> Effect {
    let id = format!("lend-{n}");
    let until_us = now_us() + 30 * MINUTE_US;
    let change = of_this_lease(lend(&id, &["n8"], until_us, None));
    let between = killed_after(site, &change, delay_ms);
    assert!(site.is_done(&change));
    let state = site.observe();
    assert_eq!(state.loans.len(), 1, "{:?}", state.loans.keys());
    assert_eq!(state.loans[&id].expires_us, until_us / 1_000_000 * 1_000_000);
    site.cluster.run("scontrol", &["delete", &format!("ReservationName=tidegate-loan.{id}.g9")]);
    between
}

fn ends(site: &Site, job: &str) {
    site.cluster.run("scancel", &[job]);
    wait_for("its end", 60, || site.cluster.state(job) == "CA");
}
