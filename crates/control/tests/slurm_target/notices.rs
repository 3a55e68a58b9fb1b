//! Notices on a real Slurm from the planner to the journal: two jobs that declare `notice` are
//! stopped for a third. One runs the Python client and saves, the other takes no notice of it.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use tidegate_autopilot::action::{ActionId, Change};
use tidegate_autopilot::executor::{Executor, Journal, JournalEvent, Settings};
use tidegate_autopilot::forecast::{SelectedForecast, SeriesNames};
use tidegate_autopilot::guard::KillSwitch;
use tidegate_autopilot::intent::Transition;
use tidegate_autopilot::policy::Policy;
use tidegate_control::LogJournal;
use tidegate_testing::slurm::wait_for;

use crate::day::open_log;
use crate::site::{Site, now_us};

/// Notice of the policy: longer than a client takes that looks each second.
const NOTICE_S: i64 = 8;
/// Jobs are stopped at once for others.
const POLICY: &str = r#"
name = "notices"
[modes]
preempt = "act"
[worth]
least_net_gpu_hours = 0.0
[stability]
dwell_s = 0
cooldown_s = 1
[blast]
fleet_share = 1.0
owner_lost_gpu_hours = 1000.0
[preempt]
least_run_s = 0
after_wait_s = 0
notice_s = 8
"#;

/// A training loop of the Python client, whose checkpoint is the number of its step.
pub fn training(folder: &Path) -> String {
    let client = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/clients/python");
    format!(
        r#"
import os, sys, time
sys.path.insert(0, {client:?})
import tidegate

@tidegate.on_notice(folder={folder:?})
def save(notice):
    with open({checkpoint:?}, "w") as file:
        file.write(str(n))

for n in range(1 << 30):
    time.sleep(0.02)
    if n == 10:
        open({listens:?}, "w").close()
    tidegate.check_notice(n)
"#,
        checkpoint = folder.join("checkpoint"),
        listens = folder.join("saver-listens"),
    )
}

/// Steps of one action in the journal, with their times, µs.
type Steps = Vec<(Transition, i64)>;

/// Steps of the action that stopped the job.
fn steps_of(journal: &mut LogJournal, job: &str) -> Steps {
    let events = journal.read().unwrap().into_iter().filter_map(|entry| match entry.event {
        JournalEvent::Step(step) => Some(step),
        _ => None,
    });
    let events: Vec<_> = events.collect();
    let stops = |transition: &Transition| match transition {
        Transition::Proposed { decision, .. } => {
            matches!(&decision.action.change, Change::Preempt { job: of, .. } if of == job)
        }
        _ => false,
    };
    let action = events.iter().find(|event| stops(&event.transition)).unwrap().action.clone();
    let own = events.into_iter().filter(|event| event.action == action);
    own.map(|event| (event.transition, event.at_us)).collect()
}

fn at_of(steps: &Steps, name: &str) -> i64 {
    let mut seen = String::new();
    steps.iter().for_each(|(what, at_us)| writeln!(seen, "{at_us} {}", what.name()).unwrap());
    steps.iter().find(|(what, _)| what.name() == name).unwrap_or_else(|| panic!("no {name}:\n{seen}")).1
}

/// Submits a job of low priority that takes notices on one node; waits until `listens` is there.
fn submit_victim(site: &Site, node: &str, command: &str, listens: &Path) -> String {
    let (node, comment) = (format!("--nodelist={node}"), "--comment=tidegate:preemptible,notice");
    let job = site.cluster.submit(
        &["--account=research", "--gres=gpu:8", "--priority=10", &node, comment],
        &format!("srun {command}"),
    );
    site.cluster.wait_state(&job, &["R"]);
    wait_for("the job to listen", 60, || listens.exists());
    job
}

#[test]
fn a_plan_announces_its_stops_and_records_who_saved_and_who_did_not() {
    let Some(site) = Site::start() else { return };
    let path = |name: &str| -> PathBuf { site.cluster.path().join(name) };
    std::fs::write(path("train.py"), training(site.cluster.path())).unwrap();
    let command = format!("python3 {}", path("train.py").display());
    let saver = submit_victim(&site, "n1", &command, &path("saver-listens"));
    let deaf_listens = path("deaf-listens");
    let command = format!("bash -c 'trap \"\" USR1; touch {}; exec sleep 3600'", deaf_listens.display());
    let deaf = submit_victim(&site, "n2", &command, &deaf_listens);
    let rest = site.submit("research", &["--nodes=3", "--gres=gpu:8"]);
    site.cluster.wait_state(&rest, &["R"]);
    let urgent = site.submit("research", &["--nodes=2", "--gres=gpu:8"]);
    site.wait_refused(&urgent);
    assert_eq!(site.observe().jobs[&saver].checkpoint.save_ms, None, "Slurm does not tell it");

    let log = open_log(&path("journal"));
    let journal = |holder: &str| LogJournal::open(log.clone(), "tidegate", holder).unwrap();
    let settings = Settings { holder: "one".into(), plan_every_ms: 1_000, ..Settings::default() };
    let policy = Policy::parse(POLICY).unwrap();
    let forecast = SelectedForecast::new(&policy, SeriesNames::default());
    let mut executor = Executor::new(policy, settings, journal("one"), forecast);
    let mut target = site.target();
    let deadline = Instant::now() + Duration::from_secs(90);
    // What each step of the executor did.
    let mut done = Vec::new();
    while site.cluster.state(&urgent) != "R" {
        let stepped = executor.step(&mut target, &mut || KillSwitch::On, &[], now_us()).unwrap();
        stepped.steps.iter().for_each(|(action, what)| eprintln!("{action} {what}"));
        done.push(stepped.steps);
        assert!(Instant::now() < deadline, "{:?}", site.show("job", &urgent));
        std::thread::sleep(Duration::from_millis(100));
    }

    let saved = steps_of(&mut journal("reader"), &saver);
    let step: u64 = std::fs::read_to_string(path("checkpoint")).unwrap().parse().unwrap();
    let acknowledged = Transition::Acknowledged { saved_step: Some(step) };
    assert!(saved.iter().any(|(what, _)| *what == acknowledged), "step {step}: {saved:?}");
    assert!(step >= 10);
    // On a busy machine a step takes seconds, so times prove nothing: it is stopped in the very
    // step that finds its acknowledgement.
    let is_stopped_at_once = |steps: &[(ActionId, &str)]| {
        steps
            .windows(2)
            .any(|two| (two[0].1, two[1].1) == ("acknowledged", "applying") && two[0].0 == two[1].0)
    };
    assert!(done.iter().any(|steps| is_stopped_at_once(steps)), "it is kept waiting: {done:?}");

    let waited_us = |steps: &Steps| at_of(steps, "applying") - at_of(steps, "noticed");
    let ignored = steps_of(&mut journal("reader"), &deaf);
    assert!(at_of(&ignored, "notice_ignored") <= at_of(&ignored, "applying"));
    assert!(waited_us(&ignored) >= NOTICE_S * 1_000_000, "it has its whole notice");
    assert!(!ignored.iter().any(|(what, _)| what.name() == "acknowledged"), "{ignored:?}");
    for job in [&saver, &deaf] {
        assert_eq!(site.restarts(job), 1, "stopped once");
    }
}
