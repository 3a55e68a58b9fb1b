//! A day on a real Slurm: planner, guard and executor act in a process that is killed with -9 every
//! few seconds, while people drain a node, edit a loan and cancel a job.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, Ordering};
use std::time::{Duration, Instant, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use tidegate_autopilot::action::{Action, Kind};
use tidegate_autopilot::executor::{
    Executor, ExecutorState, Journal, JournalEvent, OnlineForecast, Settings,
};
use tidegate_autopilot::forecast::{DemandForecast, Series};
use tidegate_autopilot::intent::{Stage, Transition};
use tidegate_autopilot::policy::Policy;
use tidegate_autopilot::state::ClusterState;
use tidegate_autopilot::target::{Capabilities, Effect, Notice, Receipt, Target, TargetError};
use tidegate_control::slurm::{SlurmConfig, SlurmTarget};
use tidegate_control::{ControlFolder, EnrichedTarget, LogJournal};
use tidegate_events::v1::{Envelope, NodeHealthState, NodeSignal};
use tidegate_events::{Event, SchemaId};
use tidegate_log::{
    Batch, EmbeddedLog, EmbeddedOptions, EventLog, Producer, Record, TopicConfig, TopicPartition,
};
use tidegate_testing::slurm::wait_for;

use crate::site::{Site, now_us};

const CHILD: &str = "TIDEGATE_SLURM_DAY";
/// How long a step is waited for: on a busy machine a killed process is slow to come back.
pub const PATIENCE_S: u64 = 240;
/// Every kind acts without waits: a day of minutes. Bounds are taken as forecast, since demand
/// comes in steps.
const POLICY: &str = r#"
name = "day"
[modes]
resize_job = "act"
lend = "act"
reclaim = "act"
drain_node = "act"
return_node = "act"
preempt = "act"
[worth]
least_net_gpu_hours = 0.0
[lend]
buffer_gpus = 0
step_every_s = 0
reclaim_within_s = 60
promise_quantile = 0.99
across_models = true
[stability]
dwell_s = 0
cooldown_s = 1
reversals = 100
[floors]
in_service_share = 0.5
[drain]
good_for_s = 1
[blast]
racks = 8
failures = 1000
fleet_share = 1.0
owner_lost_gpu_hours = 1000.0
[preempt]
least_run_s = 0
notice_s = 2
"#;

#[derive(Serialize, Deserialize)]
struct Given {
    config: SlurmConfig,
    data: PathBuf,
}

/// Demand of `serving` is what a file says, once an observation has begun after it was written.
/// Otherwise a plan could combine the new demand with a cluster where the job that the script
/// waited for does not run yet, and take back the one node that the job cannot leave.
struct Scripted {
    file: PathBuf,
    observed_since_us: Arc<AtomicI64>,
    at_us: i64,
}

impl Scripted {
    fn gpus(&self, of: Series<'_>) -> Option<f64> {
        let written = std::fs::metadata(&self.file).and_then(|file| file.modified()).ok()?;
        let since_us = u64::try_from(self.observed_since_us.load(Ordering::Relaxed)).ok()?;
        if written >= UNIX_EPOCH + Duration::from_micros(since_us) {
            return None;
        }
        let text = std::fs::read_to_string(&self.file).ok()?;
        if of.owner == "serving" { text.trim().parse().ok() } else { None }
    }
}

impl DemandForecast for Scripted {
    fn highest_gpus(&self, of: Series<'_>, _: f64, _: i64) -> Option<f64> {
        self.gpus(of)
    }

    fn typical_gpus(&self, of: Series<'_>, _: f64, _: i64) -> Option<f64> {
        self.gpus(of)
    }

    fn coverage(&self, _: Series<'_>) -> Option<f64> {
        Some(0.95)
    }

    fn as_of_us(&self, _: Series<'_>) -> Option<i64> {
        Some(self.at_us)
    }
}

impl OnlineForecast for Scripted {
    fn observe(&mut self, state: &ClusterState) {
        self.at_us = state.at_us;
    }
}

/// Prints the target's answers, to find out why a day went wrong; records when it is called.
struct Loud<T> {
    target: T,
    observed_since_us: Arc<AtomicI64>,
}

impl<T: Target> Target for Loud<T> {
    fn capabilities(&self) -> Capabilities {
        self.target.capabilities()
    }

    fn observe(&mut self) -> Result<ClusterState, TargetError> {
        self.observed_since_us.store(now_us(), Ordering::Relaxed);
        self.target.observe()
    }

    fn notify(&mut self, action: &Action) -> Result<Notice, TargetError> {
        let answer = self.target.notify(action);
        println!("notify {}: {answer:?}", action.id);
        answer
    }

    fn apply(&mut self, action: &Action) -> Result<Receipt, TargetError> {
        let answer = self.target.apply(action);
        println!("apply {}: {answer:?}", action.id);
        answer
    }

    fn read_back(&mut self, action: &Action) -> Result<Effect, TargetError> {
        let answer = self.target.read_back(action);
        println!("read back {}: {answer:?}", action.id);
        answer
    }
}

pub fn open_log(data: &Path) -> Arc<dyn EventLog> {
    let log = EmbeddedLog::open(data, EmbeddedOptions::default()).unwrap();
    for schema in [SchemaId::AutopilotEvent, SchemaId::NodeSignal] {
        let config = TopicConfig { partitions: 1, retain_ms: None, retain_bytes: None };
        log.create_topic(schema.topic(), config).unwrap();
    }
    Arc::new(log)
}

/// Appends the script's node states to the log, `n: NODE STATE` on line n; the log takes each line
/// once.
fn signal(log: &dyn EventLog, script: &Path) {
    let text = std::fs::read_to_string(script).unwrap_or_default();
    for (seq, line) in text.lines().enumerate() {
        let Some((node, state)) = line.split_once(' ') else { continue };
        let is_bad = state == "BAD";
        let mut event = Event::NodeHealth(NodeSignal {
            envelope: Some(Envelope {
                cluster: "tidegate".into(),
                source: "insight/day".into(),
                seq: seq as u64,
                event_time_ms: now_us() / 1000,
                observed_time_ms: now_us() / 1000,
                ..Envelope::default()
            }),
            state: if is_bad { NodeHealthState::Bad } else { NodeHealthState::Healthy }.into(),
            node: node.into(),
            bad_ppm: if is_bad { 990_000 } else { 1_000 },
            evidence: if is_bad { vec!["xid value=63".into(), "ecc value=2".into()] } else { vec![] },
            ..NodeSignal::default()
        });
        let producer = Producer { source: "insight/day".into(), epoch: 0 };
        let at = TopicPartition { topic: SchemaId::NodeSignal.topic().into(), partition: 0 };
        let records = vec![Record::from(event.record().unwrap())];
        log.append(&at, Batch { producer, first_seq: seq as u64, records }).unwrap();
    }
}

/// One process of the autopilot.
#[test]
#[ignore = "started by the other tests"]
fn child() {
    let given = std::env::var(CHILD).unwrap();
    let Given { config, data } = serde_json::from_str(&given).unwrap();
    let log = open_log(&data);
    let holder = format!("{}", std::process::id());
    let settings = Settings {
        holder: holder.clone(),
        lease_ms: 1_500,
        plan_every_ms: 500,
        repeat_every_ms: 60_000,
        ..Settings::default()
    };
    let journal = LogJournal::open(Arc::clone(&log), "tidegate", &holder).unwrap();
    let observed_since_us = Arc::new(AtomicI64::new(0));
    let forecast =
        Scripted { file: data.join("demand"), observed_since_us: Arc::clone(&observed_since_us), at_us: 0 };
    let target =
        EnrichedTarget::new(SlurmTarget::open(config).unwrap(), Arc::clone(&log), "tidegate", None).unwrap();
    let mut target = Loud { target, observed_since_us };
    let control = ControlFolder::in_data(&data);
    let mut executor = Executor::new(Policy::parse(POLICY).unwrap(), settings, journal, forecast);
    loop {
        signal(log.as_ref(), &data.join("nodes"));
        let stepped = executor.step(&mut target, &mut || control.switch(), &[], now_us()).unwrap();
        for (action, what) in stepped.steps {
            println!("{action} {what}");
        }
        if let Some(blind) = stepped.observe_error {
            println!("blind: {blind}");
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// A test of this program that is a process of its own: its name, and a variable with its value.
pub type ChildTest<'a> = (&'a str, &'a str, &'a str);

fn spawn((test, variable, given): ChildTest<'_>) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--ignored", "--nocapture"])
        .env(variable, given)
        .stdout(Stdio::inherit())
        .spawn()
        .unwrap()
}

/// Runs processes of the autopilot one after the other, each killed after so many milliseconds,
/// until told to stop.
pub fn kill_again_and_again(
    child: ChildTest<'_>,
    lasts_ms: Range<u64>,
    stop: &AtomicBool,
    lives: &AtomicU32,
) {
    let mut state = 0x9e37_79b9_u64;
    while !stop.load(Ordering::Relaxed) {
        let mut child = spawn(child);
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let until = Instant::now()
            + Duration::from_millis(lasts_ms.start + (state >> 33) % (lasts_ms.end - lasts_ms.start));
        while Instant::now() < until && !stop.load(Ordering::Relaxed) {
            assert!(child.try_wait().unwrap().is_none(), "the autopilot ended by itself");
            std::thread::sleep(Duration::from_millis(20));
        }
        child.kill().unwrap();
        child.wait().unwrap();
        lives.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn a_day_by_itself_killed_again_and_again() {
    let Some(site) = Site::start() else { return };
    let data = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| std::fs::write(data.path().join(name), text).unwrap();
    write("demand", "12");
    ControlFolder::in_data(data.path()).set(&ControlFolder::on("test", "now")).unwrap();
    let given = Given { config: site.config.clone(), data: data.path().to_owned() };
    let given = serde_json::to_string(&given).unwrap();
    let (stop, lives) = (AtomicBool::new(false), AtomicU32::new(0));
    std::thread::scope(|scope| {
        let killer =
            scope.spawn(|| kill_again_and_again(("day::child", CHILD, &given), 4_000..10_000, &stop, &lives));
        let script = scope.spawn(|| the_day(&site, &write));
        let went = script.join();
        stop.store(true, Ordering::Relaxed);
        killer.join().unwrap();
        went.unwrap();
    });
    check_journal(data.path(), lives.into_inner());
}

fn loans(site: &Site) -> String {
    let shown = site.cluster.run("scontrol", &["--oneliner", "show", "reservation"]);
    shown.lines().filter(|line| line.contains("tidegate-loan")).collect()
}

fn the_day(site: &Site, write: &dyn Fn(&str, &str)) {
    let run = |args: &[&str]| site.cluster.run("scontrol", args);
    let node = |name: &str| site.show("node", name)["State"].clone();
    for at in ["n1", "n2", "n3", "n4", "n5"] {
        let job = site.submit("research", &["--gres=gpu:8", &format!("--nodelist={at}")]);
        site.cluster.wait_state(&job, &["R"]);
    }
    let elastic = "--comment=tidegate:elastic,preemptible,min=4,max=8";
    let job = site.submit("research", &["--partition=train,infer", "--nodes=2", "--gres=gpu:4", elastic]);
    site.wait_refused(&job);
    assert!(site.cluster.state(&job) == "PD" && loans(site).is_empty(), "serving needs all it has");

    // Night: serving needs nothing, and keeps its floor of one node.
    write("demand", "0");
    wait_for("the loan to start the job", PATIENCE_S, || site.cluster.state(&job) == "R");
    assert_eq!(loans(site).matches("tidegate-loan").count(), 1);
    // Before the morning it needs two of its three nodes: the job shrinks and goes on.
    write("demand", "8");
    wait_for("the job to shrink", PATIENCE_S, || site.show("job", &job)["NumNodes"] == "1");
    assert_eq!((site.cluster.state(&job).as_str(), site.restarts(&job)), ("R", 0));
    // Then all of it: the job goes, and waits for the next night.
    write("demand", "12");
    wait_for("the rest to come back", PATIENCE_S, || loans(site).is_empty());
    wait_for("the job to wait again", PATIENCE_S, || site.cluster.state(&job) == "PD");
    let serving = site.submit("serving", &["--partition=infer", "--nodes=3", "--gres=gpu:4"]);
    wait_for("serving to have all", PATIENCE_S, || site.cluster.state(&serving) == "R");

    // A node is bad, and later healthy; a person drains another one with the same health.
    run(&["update", "NodeName=n4", "State=DRAIN", "Reason=bad fan"]);
    write("nodes", "n3 BAD\nn4 BAD\n");
    wait_for("n3 to be drained", PATIENCE_S, || node("n3").contains("DRAIN"));
    assert!(site.show("node", "n3")["Reason"].starts_with("tidegate:"), "{:?}", site.show("node", "n3"));
    write("nodes", "n3 BAD\nn4 BAD\nn3 HEALTHY\nn4 HEALTHY\n");
    wait_for("n3 to be returned", PATIENCE_S, || !node("n3").contains("DRAIN"));

    // The next night; a person makes the loan end sooner, and cancels the job on it.
    site.cluster.run("scancel", &[&serving]);
    write("demand", "0");
    wait_for("the second loan", PATIENCE_S, || site.cluster.state(&job) == "R");
    let name = loans(site).split(' ').next().unwrap().to_owned();
    run(&["update", &name, "EndTime=now+20minutes"]);
    let theirs = site.show("reservation", name.split_once('=').unwrap().1)["EndTime"].clone();
    site.cluster.run("scancel", &[&job]);
    write("demand", "12");
    std::thread::sleep(Duration::from_secs(10));
    assert_eq!(site.show("reservation", name.split_once('=').unwrap().1)["EndTime"], theirs);
    assert_eq!(site.cluster.state(&job), "CA");
    let n4 = site.show("node", "n4");
    assert!(
        n4["State"].contains("DRAIN") && n4["Reason"].starts_with("bad"),
        "a person's drain stands: {n4:?}"
    );
    run(&["delete", &name]);
}

/// By the journal each action ended once, whichever process began it.
fn check_journal(data: &Path, lives: u32) {
    let mut journal = LogJournal::open(open_log(data), "tidegate", "test").unwrap();
    let entries = journal.read().unwrap();
    let mut known = ExecutorState::default();
    entries.iter().cloned().for_each(|entry| known.fold(entry));
    let mut verified: BTreeMap<Kind, u32> = BTreeMap::new();
    let mut decided: BTreeMap<String, i64> = BTreeMap::new();
    let mut latencies_ms: Vec<i64> = Vec::new();
    for intent in known.intents.all() {
        // A person edits the second loan before or after it was verified.
        if let Stage::Verified { .. } | Stage::Yielded = intent.stage {
            *verified.entry(intent.decision.kind).or_default() += 1;
        }
        let is_half_done = matches!(intent.stage, Stage::Applying { .. } | Stage::Compensating { .. });
        assert!(!is_half_done, "{:?} {:?}", intent.decision.action, intent.stage);
    }
    for entry in &entries {
        let JournalEvent::Step(event) = &entry.event else { continue };
        match event.transition {
            Transition::Proposed { .. } => {
                decided.insert(event.action.clone(), event.at_us);
            }
            Transition::Verified => latencies_ms.push((event.at_us - decided[&event.action]) / 1000),
            _ => {}
        }
    }
    latencies_ms.sort_unstable();
    let generation = known.lease.as_ref().map_or(0, |lease| lease.generation);
    eprintln!(
        "{lives} lives, generation {generation}, {} entries, done {verified:?}; from decision to verified ms: median {}, most {}",
        entries.len(),
        latencies_ms[latencies_ms.len() / 2],
        latencies_ms[latencies_ms.len() - 1],
    );
    for (kind, least) in [
        (Kind::Lend, 2),
        (Kind::Reclaim, 2),
        (Kind::ResizeJob, 1),
        (Kind::DrainNode, 1),
        (Kind::ReturnNode, 1),
    ] {
        assert!(verified.get(&kind).copied().unwrap_or(0) >= least, "{kind}: {verified:?}");
    }
    assert!(lives > 5 && generation > 3, "{lives} lives");
}
