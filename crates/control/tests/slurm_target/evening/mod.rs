//! An evening on a real Slurm with the autopilot's own service, as sites run it: its guard, its
//! snapshots, demand from forecasts on the log. Its policy is the shipped `auto` with waits of
//! seconds instead of minutes. A slow node leaves a gang; lending, demoted by a bad record, waits
//! for a person through several lives; of two jobs on the loan one heeds its notice and one does
//! not; a peak gets its reservation. All the while the service is killed with -9.

mod script;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use tidegate_autopilot::action::Kind;
use tidegate_autopilot::executor::{ExecutorState, Journal, JournalEntry, JournalEvent};
use tidegate_autopilot::intent::{Intent, Stage, Transition};
use tidegate_autopilot::scorecard::Score;
use tidegate_control::service::{Hooks, Service, ServiceConfig};
use tidegate_control::{ControlFolder, LogJournal};
use tidegate_events::SchemaId;
use tidegate_log::{EmbeddedLog, EmbeddedOptions, EventLog, TopicConfig};
use tidegate_testing::slurm::wait_for;

use crate::day::{PATIENCE_S, kill_again_and_again};
use crate::notices::training;
use crate::site::{Site, now_us};

const CHILD: &str = "TIDEGATE_SLURM_EVENING";
/// `auto` with reservations. Three things differ from the shipped numbers. Waits take seconds. No
/// GPUs are kept back, because the usual buffer is more than this cluster has. More of the fleet
/// may change in an hour, because the gang alone is a third of it.
const POLICY: &str = r#"
name = "evening"
[modes]
resize_job = "act"
lend = "act"
reclaim = "act"
adjust_reservation = "act"
drain_node = "act"
return_node = "act"
preempt = "act"
[forecast]
source = "log"
[blast]
fleet_share = 0.6
[stability]
dwell_s = 0
cooldown_s = 1
[lend]
buffer_gpus = 0
step_every_s = 0
reclaim_within_s = 60
across_models = true
[reservation]
ahead = { research = 8 }
[drain]
good_for_s = 1
[preempt]
least_run_s = 0
notice_s = 8
"#;

fn open_log(folder: &Path) -> Arc<dyn EventLog> {
    let log = EmbeddedLog::open(folder.join("log"), EmbeddedOptions::default()).unwrap();
    for topic in SchemaId::ALL.map(SchemaId::topic).into_iter().collect::<BTreeSet<_>>() {
        let config = TopicConfig { partitions: 1, retain_ms: None, retain_bytes: None };
        log.create_topic(topic, config).unwrap();
    }
    Arc::new(log)
}

/// One life of the service.
#[test]
#[ignore = "started by the other tests"]
fn service() {
    let folder = PathBuf::from(std::env::var(CHILD).unwrap());
    let log = open_log(&folder);
    let config = ServiceConfig::read(&folder.join("autopilot.toml")).unwrap();
    let service = Service::open(config, &folder, &folder.join("deaths"), &log, "evening").unwrap();
    let hooks = Hooks {
        stopped: &|| {
            script::append_new(log.as_ref(), &folder.join("script"));
            false
        },
        line: &|line| println!("{line}"),
        status: &|status| {
            let waiting = status.waiting.iter().filter(|action| action.needs_approval);
            let lines: String =
                waiting.map(|action| format!("{} {}\n", action.kind, action.action)).collect();
            std::fs::write(folder.join("waiting"), lines).unwrap();
        },
    };
    service.run(false, &hooks).unwrap();
}

/// A record by which lending does not act: of ten loans two took effect.
fn bad_record_of_lending(log: &Arc<dyn EventLog>) {
    let score = |number: i64| Score {
        action: format!("lend-{number:016x}"),
        kind: Kind::Lend,
        decided_us: now_us() - 3_600_000_000 + number,
        verified: number < 2,
        predicted_gpu_ms: 3_600_000,
        realised_gpu_ms: None,
        benefit_ratio_ppm: None,
        predicted_benefit: None,
        realised_benefit_gpu_ms: None,
        within: None,
        interval: None,
        without: None,
        canary: None,
    };
    let entry =
        |number| JournalEntry { at_us: now_us(), generation: 1, event: JournalEvent::Scored(score(number)) };
    let mut journal = LogJournal::open(Arc::clone(log), "tidegate", "an earlier life").unwrap();
    journal.append((0..10).map(entry).collect()).unwrap();
}

struct Evening<'a> {
    site: &'a Site,
    folder: &'a Path,
    lives: &'a AtomicU32,
}

impl Evening<'_> {
    fn report(&self, line: &str) {
        let mut script = std::fs::read_to_string(self.folder.join("script")).unwrap_or_default();
        script += &format!("{line}\n");
        std::fs::write(self.folder.join("script.new"), script).unwrap();
        std::fs::rename(self.folder.join("script.new"), self.folder.join("script")).unwrap();
    }

    fn state(&self, job: &str) -> String {
        self.site.cluster.state(job)
    }

    fn node(&self, name: &str) -> String {
        self.site.show("node", name)["State"].clone()
    }

    fn loans(&self) -> usize {
        let shown = self.site.cluster.run("scontrol", &["--oneliner", "show", "reservation"]);
        shown.matches("ReservationName=tidegate-loan").count()
    }

    /// Loans that wait for a person.
    fn waiting(&self) -> Vec<String> {
        let text = std::fs::read_to_string(self.folder.join("waiting")).unwrap_or_default();
        text.lines().filter_map(|line| line.strip_prefix("lend ")).map(str::to_owned).collect()
    }

    fn whole_nodes(&self, options: &[&str]) -> String {
        let job = self.site.submit("research", &[&["--gres=gpu:8"], options].concat());
        self.site.cluster.wait_state(&job, &["R"]);
        job
    }

    /// A slow node: it is drained, its gang restarts on others, and once healthy it comes back.
    fn straggler(&self) -> String {
        let on_n5 = self.whole_nodes(&["--nodelist=n5"]);
        let gang = self.whole_nodes(&["--nodes=2", "--comment=tidegate:preemptible"]);
        self.site.cluster.run("scancel", &[&on_n5]);
        self.report("history -");
        self.report(&format!("started {gang}"));
        self.report(&format!("slow {gang} n2"));
        wait_for("n2 to be drained", PATIENCE_S, || self.node("n2").contains("DRAIN"));
        wait_for("the gang to run on others", PATIENCE_S, || {
            self.site.restarts(&gang) == 1 && self.state(&gang) == "R"
        });
        let nodes = self.site.nodes_of(&gang);
        assert!(!nodes.contains('2'), "{nodes}");
        self.report(&format!("fast {gang} n2"));
        self.report("healthy n2");
        wait_for("n2 to be returned", PATIENCE_S, || !self.node("n2").contains("DRAIN"));
        gang
    }

    /// Night: serving needs nothing. Lending has a bad record, so a loan waits for a person,
    /// whatever dies meanwhile.
    fn loan_of_a_demoted_kind(&self, jobs: &[&String]) {
        self.report("holds serving");
        self.report("demand serving 0 0");
        wait_for("a loan to wait for a person", PATIENCE_S, || !self.waiting().is_empty());
        let life = self.lives.load(Ordering::Relaxed);
        wait_for("three more lives", PATIENCE_S, || self.lives.load(Ordering::Relaxed) >= life + 3);
        assert_eq!(self.loans(), 0, "nobody has approved one");
        let control = ControlFolder::in_data(self.folder);
        wait_for("the loan to start both", PATIENCE_S, || {
            self.waiting().iter().for_each(|action| control.approve(action, "anna", None).unwrap());
            jobs.iter().all(|job| self.state(job) == "R")
        });
    }

    fn go(&self) {
        for at in ["n3", "n4"] {
            self.whole_nodes(&[&format!("--nodelist={at}")]);
        }
        let gang = self.straggler();
        self.whole_nodes(&["--nodelist=n2"]);

        let cluster = &self.site.cluster;
        let path = |name: &str| cluster.path().join(name);
        std::fs::write(path("train.py"), training(cluster.path())).unwrap();
        let small = ["--account=research", "--partition=train,infer", "--gres=gpu:4"];
        let small = [&small[..], &["--comment=tidegate:preemptible,notice"]].concat();
        let saver = cluster.submit(&small, &format!("srun python3 {}", path("train.py").display()));
        let deaf =
            format!("srun bash -c 'trap \"\" USR1; touch {}; exec sleep 3600'", path("deaf").display());
        let deaf = cluster.submit(&small, &deaf);
        [&saver, &deaf].into_iter().for_each(|job| self.site.wait_refused(job));
        self.loan_of_a_demoted_kind(&[&saver, &deaf]);
        wait_for("both to listen", PATIENCE_S, || path("saver-listens").exists() && path("deaf").exists());

        // Morning: serving needs all it has.
        self.report("demand serving 12 12");
        wait_for("the loan to end", PATIENCE_S, || self.loans() == 0);
        wait_for("both to wait again", PATIENCE_S, || {
            [&saver, &deaf].into_iter().all(|job| self.state(job) == "PD" && self.site.restarts(job) == 1)
        });
        let step: u64 = std::fs::read_to_string(path("checkpoint")).unwrap().parse().unwrap();
        assert!(step >= 10, "saved at step {step}");

        // Research needs a node more in the next hour.
        [&saver, &deaf, &gang].into_iter().for_each(|job| _ = cluster.run("scancel", &[job]));
        self.report("holds research");
        self.report("demand research 24 32");
        let shown = || cluster.run("scontrol", &["--oneliner", "show", "reservation"]);
        wait_for("the reservation ahead", PATIENCE_S, || shown().contains("ahead-research-train"));
        assert_eq!(self.site.show("reservation", "ahead-research-train")["NodeCnt"], "1");
    }
}

#[test]
fn an_evening_of_the_service_killed_again_and_again() {
    let Some(site) = Site::start() else { return };
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let mut config = toml::Table::new();
    for (key, seconds) in [("look_every_s", 1), ("plan_every_s", 1), ("lease_s", 3)] {
        config.insert(key.into(), toml::Value::Integer(seconds));
    }
    for (key, text) in [("cluster", "tidegate"), ("policy", "evening.toml")] {
        config.insert(key.into(), toml::Value::String(text.into()));
    }
    config.insert("slurm".into(), toml::Value::try_from(&site.config).unwrap());
    std::fs::write(folder.join("autopilot.toml"), config.to_string()).unwrap();
    std::fs::write(folder.join("evening.toml"), POLICY).unwrap();
    ControlFolder::in_data(folder).set(&ControlFolder::on("test", "now")).unwrap();
    bad_record_of_lending(&open_log(folder));

    let (stop, lives) = (AtomicBool::new(false), AtomicU32::new(0));
    let child = ("evening::service", CHILD, folder.to_str().unwrap());
    std::thread::scope(|scope| {
        let killer = scope.spawn(|| kill_again_and_again(child, 9_000..15_000, &stop, &lives));
        let evening = Evening { site: &site, folder, lives: &lives };
        let script = scope.spawn(move || evening.go());
        let went = script.join();
        stop.store(true, Ordering::Relaxed);
        killer.join().unwrap();
        went.unwrap();
    });
    let log = open_log(folder);
    finish(folder, &log);
    check_journal(&log, lives.into_inner());
}

/// A last life, undisturbed, until all that was begun has ended.
fn finish(folder: &Path, log: &Arc<dyn EventLog>) {
    let config = ServiceConfig::read(&folder.join("autopilot.toml")).unwrap();
    let service = Service::open(config, folder, &folder.join("deaths"), log, "evening").unwrap();
    let begun = Instant::now();
    let stopped = || {
        let known = fold(&entries(log));
        let half_done: Vec<_> = known.intents.all().filter(|intent| is_half_done(intent)).collect();
        assert!(begun.elapsed() < Duration::from_secs(120), "{half_done:?}");
        half_done.is_empty()
    };
    service.run(false, &Hooks { stopped: &stopped, line: &|_| (), status: &|_| () }).unwrap();
}

fn is_half_done(intent: &Intent) -> bool {
    matches!(intent.stage, Stage::Applying { .. } | Stage::Compensating { .. })
}

fn entries(log: &Arc<dyn EventLog>) -> Vec<JournalEntry> {
    LogJournal::open(Arc::clone(log), "tidegate", "test").unwrap().read().unwrap()
}

fn fold(entries: &[JournalEntry]) -> ExecutorState {
    let mut known = ExecutorState::default();
    entries.iter().cloned().for_each(|entry| known.fold(entry));
    known
}

/// By the journal: what was done was done once, by whose leave, and who heeded the notice.
fn check_journal(log: &Arc<dyn EventLog>, lives: u32) {
    let entries = entries(log);
    let known = fold(&entries);
    let mut verified: BTreeMap<Kind, u32> = BTreeMap::new();
    for intent in known.intents.all() {
        if matches!(intent.stage, Stage::Verified { .. }) {
            *verified.entry(intent.decision.kind).or_default() += 1;
        }
    }
    let steps: Vec<&Transition> = entries
        .iter()
        .filter_map(|entry| match &entry.event {
            JournalEvent::Step(step) => Some(&step.transition),
            _ => None,
        })
        .collect();
    eprintln!("{lives} lives, {} entries, done {verified:?}", entries.len());
    for kind in
        [Kind::DrainNode, Kind::Preempt, Kind::ReturnNode, Kind::Lend, Kind::Reclaim, Kind::AdjustReservation]
    {
        assert!(verified.contains_key(&kind), "{kind}: {verified:?}");
    }
    assert!(steps.iter().any(|step| matches!(step, Transition::Acknowledged { saved_step: Some(10..) })));
    assert!(steps.iter().any(|step| matches!(step, Transition::NoticeIgnored)), "{steps:?}");
    assert!(lives > 5, "{lives} lives");
}
