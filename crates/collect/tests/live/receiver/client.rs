//! The Python client against the real receiver, which is killed in the middle.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};
use tidegate_collect::receiver::{Receiver, ReceiverOptions, ReceiverParts, StepReports};
use tidegate_collect::{Reading, Sink};
use tidegate_events::Event;
use tidegate_testing::needs;

use crate::support::wait_until;

const SOCKET: &str = "TIDEGATE_TEST_SOCKET";
const FILE: &str = "TIDEGATE_TEST_FILE";
/// The receiver kills itself after this many records, between storing the last one and answering.
const DIES_AFTER: &str = "TIDEGATE_TEST_DIES_AFTER";

/// Writes `event id, step` of each report to a file, as a spool would.
struct ToFile {
    file: Mutex<File>,
    left: AtomicUsize,
}

impl Sink for ToFile {
    fn reading(&self, _reading: Reading) {}

    fn event(&self, mut event: Event) {
        event.envelope_mut().cluster = "c".into();
        let id = u128::from_be_bytes(event.content_id());
        let Event::Step(step) = event else { panic!("a step") };
        let line = format!("{id:032x} {} {}\n", step.step, step.dropped.unwrap_or(0));
        self.file.lock().unwrap().write_all(line.as_bytes()).unwrap();
        if self.left.fetch_sub(1, Ordering::Relaxed) == 1 {
            kill(Pid::this(), Signal::SIGKILL).unwrap();
        }
    }
}

/// The receiver in a process of its own, so that it can be killed. It ends with its standard input.
#[test]
#[ignore = "started by the other tests"]
fn receiver_process() {
    let Some(socket) = std::env::var_os(SOCKET) else { return };
    let file = OpenOptions::new().create(true).append(true).open(std::env::var_os(FILE).unwrap()).unwrap();
    let mut options = ReceiverOptions::new("n1");
    options.socket = Some(PathBuf::from(socket));
    options.limits.lines_per_second = 1_000_000;
    options.step_reports = StepReports::Any;
    let left = std::env::var(DIES_AFTER).ok().and_then(|count| count.parse().ok()).unwrap_or(usize::MAX);
    let sink = Arc::new(ToFile { file: Mutex::new(file), left: AtomicUsize::new(left) });
    let _receiver = Receiver::start(
        options,
        ReceiverParts { sink, holds: None, jobs: None, status: Arc::new(|| json!({})) },
    )
    .unwrap();
    std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
}

/// A child that does not outlive its test.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

fn receiver(folder: &Path, dies_after: usize) -> Process {
    let child = Command::new(std::env::current_exe().unwrap())
        .env(DIES_AFTER, dies_after.to_string())
        .args(["--exact", "receiver::client::receiver_process", "--ignored"])
        .env(SOCKET, folder.join("agent.sock"))
        .env(FILE, folder.join("received"))
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    Process(child)
}

fn python(folder: &Path, script: &str) -> Command {
    let mut command = Command::new("python3");
    command
        .args(["-c", script])
        .env("PYTHONPATH", clients())
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .env("TIDEGATE_SOCKET", folder.join("agent.sock"))
        .env("TIDEGATE_JOB", "4711")
        .stdout(Stdio::piped());
    command
}

fn clients() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/clients/python")
}

/// Number of arrivals of each step, by event id.
fn received(folder: &Path) -> BTreeMap<String, (u64, u32)> {
    let mut steps = BTreeMap::new();
    for line in std::fs::read_to_string(folder.join("received")).unwrap_or_default().lines() {
        let mut words = line.split(' ');
        let (id, step) = (words.next().unwrap(), words.next().unwrap().parse().unwrap());
        let entry = steps.entry(id.to_owned()).or_insert((step, 0));
        assert_eq!(entry.0, step, "two steps have one id");
        entry.1 += 1;
    }
    steps
}

#[test]
fn a_killed_receiver_loses_and_duplicates_nothing() {
    const STEPS: usize = 3_000;
    let folder = tempfile::tempdir().unwrap();
    let script = format!(
        "import json, time, tidegate\n\
         for n in range({STEPS}):\n    tidegate.step(n, duration_s=0.001, tokens=n)\n    time.sleep(0.0003)\n\
         done = tidegate.flush(60)\n\
         print(json.dumps(dict(tidegate.stats(), done=done)))\n"
    );
    let mut child = Process(python(folder.path(), &script).spawn().unwrap());
    // Dies by itself with a stored but unanswered record.
    let mut dying = receiver(folder.path(), 300);
    // Waiting would close its input and end it in order.
    let _input = dying.0.stdin.take();
    assert!(!dying.0.wait().unwrap().success());
    let mut running = receiver(folder.path(), usize::MAX);
    for kill_at in [600, 1_200, 2_000] {
        wait_until("steps arrive", || received(folder.path()).len() >= kill_at);
        running.0.kill().unwrap();
        running.0.wait().unwrap();
        running = receiver(folder.path(), usize::MAX);
    }
    let mut printed = String::new();
    child.0.stdout.take().unwrap().read_to_string(&mut printed).unwrap();
    assert!(child.0.wait().unwrap().success());
    let stats: Value = serde_json::from_str(&printed).unwrap();
    assert_eq!(
        (&stats["done"], &stats["dropped"], &stats["acked"]),
        (&json!(true), &json!(0), &json!(STEPS)),
        "{stats}"
    );

    let received = received(folder.path());
    let mut steps: Vec<_> = received.values().map(|(step, _)| *step).collect();
    steps.sort_unstable();
    assert_eq!(steps, (0..STEPS as u64).collect::<Vec<_>>(), "each step has exactly one id");
    let again = received.values().filter(|(_, times)| *times > 1).count();
    println!("{again} reports came twice, with the same id");
    assert!(again > 0, "a report that was kept and not answered comes again");
}

#[test]
fn what_a_call_costs() {
    // A figure, not a limit: printed, and far from noticeable.
    let script = "import json, time, tidegate\n\
        def cost(n=20000):\n    begun = time.perf_counter()\n    for i in range(n):\n\
        \x20       tidegate.step(i, start=1763712000.5, duration_s=0.5, compute_s=0.4, tokens=8192, loss=2.5)\n\
        \x20   return (time.perf_counter() - begun) / n * 1e6\n\
        print(json.dumps({'us': cost(), 'stats': tidegate.stats()}))";
    let mut costs = Vec::new();
    for agent in [false, true] {
        let folder = tempfile::tempdir().unwrap();
        let running = agent.then(|| receiver(folder.path(), usize::MAX));
        if agent {
            wait_until("it listens", || folder.path().join("agent.sock").exists());
        }
        let output = python(folder.path(), script).output().unwrap();
        drop(running);
        assert!(output.status.success());
        let printed: Value = serde_json::from_slice(&output.stdout).unwrap();
        costs.push(printed["us"].as_f64().unwrap());
    }
    println!("µs a call: {:.1} without an agent, {:.1} with one", costs[0], costs[1]);
    assert!(costs.iter().all(|&us| us < 1_000.0), "{costs:?}");
}

#[test]
fn a_pytorch_loop_reports_its_steps() {
    let python = std::env::var("TIDEGATE_TEST_PYTHON").unwrap_or_else(|_| "python3".into());
    let torch = Command::new(&python).args(["-c", "import torch"]).stderr(Stdio::null()).status();
    if !torch.is_ok_and(|status| status.success()) {
        return needs::note(&format!("{python} has no torch; TIDEGATE_TEST_PYTHON names one that has"));
    }
    let folder = tempfile::tempdir().unwrap();
    let _running = receiver(folder.path(), usize::MAX);
    wait_until("it listens", || folder.path().join("agent.sock").exists());
    let output = Command::new(python)
        .arg(clients().join("example_torch.py"))
        .args(["--steps", "20"])
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .env("TIDEGATE_SOCKET", folder.path().join("agent.sock"))
        .env("TIDEGATE_JOB", "4711")
        .output()
        .unwrap();
    println!("{}", String::from_utf8_lossy(&output.stdout));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(received(folder.path()).len(), 20);
}
