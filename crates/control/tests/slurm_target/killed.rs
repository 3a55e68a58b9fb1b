//! A process killed with -9 at any time of an action: the next one finishes it, and the effect is
//! there once.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::Duration;

use tidegate_autopilot::action::{Action, Change};
use tidegate_autopilot::target::{Effect, Target};
use tidegate_control::slurm::{SlurmConfig, SlurmTarget};
use tidegate_testing::slurm::wait_for;

use crate::jobs::resize;
use crate::limits;
use crate::loans::lend;
use crate::nodes::drain;
use crate::site::{MINUTE_US, Site, action, names, now_us};

const CHILD: &str = "TIDEGATE_SLURM_CHILD";
/// Kills of each kind of action; with `TIDEGATE_LONG` seven.
const ROUNDS: usize = 3;

/// What the process prints when it begins.
const OPEN: &str = "open";

/// Applies one action in a process of its own.
#[test]
#[ignore = "started by the other tests"]
fn child() {
    let given = std::env::var(CHILD).unwrap();
    let (config, action): (SlurmConfig, Action) = serde_json::from_str(&given).unwrap();
    let mut target = SlurmTarget::open(config).unwrap();
    println!("\n{OPEN}");
    println!("{:?}", target.apply(&action));
}

/// All actions are of one generation: those of older ones would be refused.
fn of_this_lease(action: Action) -> Action {
    Action { generation: 9, ..action }
}

/// Lets a process apply the action, kills it after a while, and finishes what it left; returns the
/// effect in between.
fn killed_after(site: &Site, action: &Action, delay_ms: u64) -> Effect {
    let given = serde_json::to_string(&(&site.config, action)).unwrap();
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "killed::child", "--ignored", "--nocapture"])
        .env(CHILD, given)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(said.any(|line| line.unwrap() == OPEN), "it did not begin");
    std::thread::sleep(Duration::from_millis(delay_ms));
    child.kill().unwrap();
    child.wait().unwrap();
    let between = site.effect(action);
    site.try_apply(action)
        .unwrap_or_else(|error| panic!("{} killed after {delay_ms} ms: {error}", action.id));
    assert!(site.try_apply(action).unwrap().already);
    between
}

/// Applies, kills, finishes and checks one action of a kind; returns the effect after the kill.
type Once = fn(&Site, usize, u64) -> Effect;

/// When to kill next: later if nothing had been done, earlier if all had, so that most kills hit
/// the action.
fn next_delay_ms(delay_ms: u64, between: &Effect) -> u64 {
    match between {
        Effect::Absent => delay_ms * 3 / 2,
        Effect::Done { .. } => delay_ms * 17 / 20,
        Effect::Partial { .. } | Effect::Overridden { .. } => delay_ms * 21 / 20,
    }
}

#[test]
fn an_action_killed_at_any_time_is_finished_once() {
    let Some(mut site) = Site::start() else { return };
    site.share_train();
    let kinds: [(&str, Once); 7] = [
        ("shrink", shrinks_once),
        ("preempt", is_stopped_once),
        ("grow", grows_once),
        ("drain", drains_once),
        ("lend", lends_once),
        ("lend by limit", lends_a_limit_once),
        ("join", is_joined_once),
    ];
    // An action first observes, which takes about as long for every kind.
    let (mut partial, mut delay_ms) = (0, 250);
    let rounds = if std::env::var_os("TIDEGATE_LONG").is_some() { 7 } else { ROUNDS };
    for (kind, once) in kinds {
        let mut seen = Vec::new();
        for round in 0..rounds {
            let between = once(&site, round, delay_ms);
            let found = match between {
                Effect::Absent => "absent",
                Effect::Partial { .. } => "partial",
                Effect::Done { .. } => "done",
                Effect::Overridden { ref found } => panic!("{kind}: {found}"),
            };
            partial += usize::from(found == "partial");
            seen.push(format!("{found} after {delay_ms} ms"));
            delay_ms = next_delay_ms(delay_ms, &between);
        }
        eprintln!("{kind} killed: {}", seen.join(", "));
    }
    assert!(partial > 0, "no kill fell into an action");
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

fn lends_a_limit_once(site: &Site, n: usize, delay_ms: u64) -> Effect {
    let own = site.limit();
    let id = format!("lend-q{n}");
    let change = of_this_lease(limits::lend(&id, 8, now_us() + 30 * MINUTE_US, None));
    let between = killed_after(site, &change, delay_ms);
    assert!(site.is_done(&change) && site.limit().starts_with("gres/gpu=24|"), "{}", site.limit());
    let ends = site.cluster.run("squeue", &["--noheader", "--format=%j", "--states=PENDING"]);
    assert_eq!(ends.matches(&format!("restore.{id}.")).count(), 1, "ended once");
    let back = Change::Reclaim { loan: id, from_gpus: 8, to_gpus: 0, nodes: names(&[]) };
    let back = action(&format!("reclaim-q{n}"), 9, back, vec![]);
    site.apply(&back);
    assert!(site.is_done(&back));
    assert_eq!(site.limit(), own);
    between
}

fn is_joined_once(site: &Site, n: usize, delay_ms: u64) -> Effect {
    let job = site.submit_joined(&[]);
    let change = of_this_lease(resize(&format!("resize_job-j{n}"), &job, 8, 24, &["n1"], vec![]));
    let between = killed_after(site, &change, delay_ms);
    wait_for("two to join", 60, || site.is_done(&change));
    assert_eq!(site.joined(&job).len(), 2, "killed after {delay_ms} ms");
    ends(site, &job);
    wait_for("who joined to go too", 60, || site.joined(&job).is_empty());
    between
}

fn ends(site: &Site, job: &str) {
    site.cluster.run("scancel", &[job]);
    wait_for("its end", 60, || site.cluster.state(job) == "CA");
}
