//! `tidegate-node agent`.

use std::collections::{BTreeMap, HashSet};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tidegate_events::Event;
use tidegate_events::v1::{JobEventKind, NodeEventKind};
use tidegate_log::{EmbeddedLog, EventLog, KafkaLog, KafkaOptions};

use crate::broker;
use crate::kit::{PATIENCE, Random, batches, check_numbers, node_events, wait_until};

const EXIT_CONFLICT: i32 = 4;

/// An agent that reads often and delivers soon.
fn agent(log: &str, spool: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate-node"));
    command
        .args(["agent", "--source", "demo", "--node", "n1", "--cluster", "c", "--log", log, "--spool"])
        .arg(spool);
    command.args(["--interval", "20ms", "--flush", "200ms", "--compare-clocks", "1s"]);
    command.env_remove("RUST_LOG").stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Ends the program and returns its output. It must exit within its five seconds and a margin.
fn end(child: Child) -> Output {
    kill(Pid::from_raw(child.id() as i32), Signal::SIGTERM).unwrap();
    child.wait_with_output().unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn has_records(spool: &Path) -> bool {
    let files = std::fs::read_dir(spool).into_iter().flatten().flatten();
    files
        .filter(|file| file.file_name().to_string_lossy().ends_with(".records"))
        .any(|file| file.metadata().is_ok_and(|file| file.len() > 20_000))
}

/// Whether the program has opened its spool; from then on it handles signals.
fn holds(child: &Child, spool: &Path) -> bool {
    let holder = std::fs::read_to_string(spool.join("LOCK")).unwrap_or_default();
    holder.trim() == format!("process {}", child.id())
}

/// A busy prolog: jobs hold a device and release it until the agent stops answering.
fn report_holds(socket: &Path, jobs: std::ops::RangeFrom<u64>) -> Vec<(String, bool)> {
    let mut reported = Vec::new();
    for number in jobs {
        let job = format!("{number}_0");
        let is_held = event("hold", &job, socket);
        reported.push((job.clone(), is_held));
        if !is_held || !event("release", &job, socket) {
            return reported;
        }
    }
    reported
}

/// Whether the agent acknowledges the event.
fn event(what: &str, job: &str, socket: &Path) -> bool {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate-node"));
    command.args(["event", what, "--job", job, "--socket"]).arg(socket);
    if what == "hold" {
        command.args(["--gpus", "0"]);
    }
    command.stderr(Stdio::null()).status().unwrap().success()
}

/// Each hold begins and ends once under one id; events repeated after a kill are identical.
fn check_holds(events: &[Event], reported: &[(String, bool)]) {
    let mut ids = HashSet::new();
    let mut holds: BTreeMap<&str, Vec<(&str, JobEventKind)>> = BTreeMap::new();
    for event in events {
        let Event::Job(job) = event else { continue };
        if ids.insert(event.envelope().unwrap().event_id.clone()) {
            holds.entry(job.hold_id()).or_default().push((&job.job_id, job.kind()));
        }
    }
    for (id, events) in &holds {
        let kinds: Vec<_> = events.iter().map(|(_, kind)| *kind).collect();
        assert_eq!(kinds, [JobEventKind::DeviceHeld, JobEventKind::DeviceReleased], "{id}: {events:?}");
    }
    let jobs: Vec<&str> = holds.values().map(|events| events[0].0).collect();
    for (job, _) in reported.iter().filter(|(_, is_held)| *is_held) {
        let count = jobs.iter().filter(|name| **name == job).count();
        assert_eq!(count, 1, "the agent said that it has the hold of {job}");
    }
    println!(
        "{} holds, {} of them acknowledged",
        holds.len(),
        reported.iter().filter(|(_, held)| *held).count()
    );
}

/// Kills the program repeatedly, lets the last one end, and checks the log.
fn kill_again_and_again(runs: u64, log: &str, open: impl Fn() -> Box<dyn EventLog>) {
    let number = |name| std::env::var(name).ok().and_then(|value| value.parse::<u64>().ok());
    let seed = number("TIDEGATE_CRASH_SEED").unwrap_or(u64::from(std::process::id()));
    println!("TIDEGATE_CRASH_SEED={seed}");
    let (mut random, spool) = (Random::new(seed), tempfile::tempdir().unwrap());
    let socket = spool.path().join("socket");
    let agent = |log| {
        let mut command = agent(log, spool.path());
        command.arg("--socket").arg(&socket).args(["--event-uid", &nix::unistd::getuid().to_string()]);
        command
    };
    let mut reported = Vec::new();
    for run in 0..number("TIDEGATE_CRASH_RUNS").unwrap_or(runs) {
        let mut child = agent(log).spawn().unwrap();
        let prolog = {
            let socket = socket.clone();
            thread::spawn(move || {
                let until = Instant::now() + Duration::from_secs(2);
                while !event("release", "0", &socket) && Instant::now() < until {}
                report_holds(&socket, run * 1_000..)
            })
        };
        thread::sleep(Duration::from_millis(20 + random.below([300, 3_000][run as usize % 2])));
        assert!(
            child.try_wait().unwrap().is_none(),
            "it ended by itself: {}",
            stderr(&child.wait_with_output().unwrap())
        );
        child.kill().unwrap();
        child.wait().unwrap();
        reported.extend(prolog.join().unwrap());
    }
    // An agent that ends gives its deliveries five seconds; a busy broker needs more of them.
    let deliver_all = || {
        let child = agent(log).spawn().unwrap();
        wait_until("it has begun", || holds(&child, spool.path()) && has_records(spool.path()));
        wait_until("it listens", || event("release", "0", &socket));
        assert!(reported.iter().all(|(job, _)| event("release", job, &socket)));
        let output = end(child);
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        !stderr(&output).contains("the rest waits in the spool")
    };
    assert!((0..12).any(|_| deliver_all()), "the log does not get everything");

    let events = check_numbers(&*open(), 0);
    check_holds(&events, &reported);
    let batches = batches(&events);
    assert!(!batches.is_empty());
    for pair in batches.windows(2) {
        let last = pair[0].first_tick_ms + pair[0].tick_delta_ms.iter().sum::<i64>();
        assert!(last < pair[1].first_tick_ms, "ticks of two batches overlap");
    }
    let stopped = node_events(&events, NodeEventKind::CollectorStopped);
    assert_eq!(stopped[0].reason.as_deref(), Some("it was asked to end"));
    println!("{} records, {} of them batches", events.len(), batches.len());
}

#[test]
fn killed_agents_lose_and_duplicate_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    kill_again_and_again(6, data.to_str().unwrap(), || {
        Box::new(EmbeddedLog::open(data.join("log"), Default::default()).unwrap())
    });
}

#[test]
fn agents_killed_while_appending_to_kafka_lose_and_duplicate_nothing() {
    let Some(servers) = broker::shared() else { return };
    let url = broker::options(&servers).url.to_string();
    kill_again_and_again(4, &url, || {
        Box::new(KafkaLog::open(KafkaOptions::new(url.parse().unwrap())).unwrap())
    });
}

#[test]
fn a_second_agent_on_a_spool_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let (data, spool) = (dir.path().join("data"), dir.path().join("spool"));
    let first = agent(data.to_str().unwrap(), &spool).spawn().unwrap();
    wait_until("the first has its spool", || has_records(&spool));
    let second = agent(data.to_str().unwrap(), &spool).output().unwrap();
    assert_eq!(second.status.code(), Some(1));
    assert!(stderr(&second).contains(&format!("in use by process {}", first.id())), "{}", stderr(&second));
    assert_eq!(end(first).status.code(), Some(0));
}

/// One after the other, because a folder's log belongs to one process: the first returns after the
/// second has begun.
#[test]
fn the_older_of_two_agents_ends_with_status_4() {
    let dir = tempfile::tempdir().unwrap();
    let (data, one, other) = (dir.path().join("data"), dir.path().join("one"), dir.path().join("other"));
    let data = data.to_str().unwrap();
    for spool in [&one, &other] {
        let child = agent(data, spool).spawn().unwrap();
        wait_until("something is collected", || has_records(spool));
        assert_eq!(end(child).status.code(), Some(0));
    }
    let refused = agent(data, &one).output().unwrap();
    assert_eq!(refused.status.code(), Some(EXIT_CONFLICT), "{}", stderr(&refused));
    for words in
        ["another collector reports as agent/n1 in cluster c", "--take-over", &one.display().to_string()]
    {
        assert!(stderr(&refused).contains(words), "{}", stderr(&refused));
    }
    let child = agent(data, &one).arg("--take-over").spawn().unwrap();
    wait_until("it has begun", || holds(&child, &one));
    let output = end(child);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert_eq!(agent(data, &other).output().unwrap().status.code(), Some(EXIT_CONFLICT));

    let log = EmbeddedLog::open(Path::new(data).join("log"), Default::default()).unwrap();
    let events: Vec<_> = crate::kit::events(&log).into_values().flatten().collect();
    let conflicts = node_events(&events, NodeEventKind::CollectorConflict);
    assert_eq!(conflicts.len(), 2, "{conflicts:?}");
}

#[test]
fn without_a_log_it_ends_in_time_and_keeps_its_records() {
    let dir = tempfile::tempdir().unwrap();
    let child = agent("http://127.0.0.1:1", dir.path()).spawn().unwrap();
    wait_until("something is collected", || has_records(dir.path()));
    let asked = Instant::now();
    let output = end(child);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert!(asked.elapsed() < PATIENCE, "{:?}", asked.elapsed());
    assert!(
        stderr(&output).contains("the rest waits in the spool") && has_records(dir.path()),
        "{}",
        stderr(&output)
    );
}

#[test]
fn impossible_options_fail_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    std::fs::write(&file, "").unwrap();
    let spool = dir.path().join("spool");
    let mut cases = vec![
        (agent("kafka://broker", &spool), "has no port"),
        (agent("http://up", &file.join("below")), "creating the folder"),
    ];
    let mut token = agent("http://up", &spool);
    token.arg("--log-token-file").arg(dir.path().join("none"));
    cases.push((token, "read the token"));
    let mut roots = agent("https://up", &spool);
    roots.arg("--log-ca").arg(&file);
    cases.push((roots, "no certificate"));
    let mut library = Command::new(env!("CARGO_BIN_EXE_tidegate-node"));
    library.args(["agent", "--log", "http://up", "--nvml-lib"]).arg(&file).arg("--spool").arg(&spool);
    cases.push((library, "--nvml-lib"));
    for (mut command, words) in cases {
        let output = command.output().unwrap();
        assert!(!output.status.success() && stderr(&output).contains(words), "{words}: {}", stderr(&output));
    }
}

/// Sends lines to the agent's socket and prints its answers.
const SENDER: &str = "import socket, sys
agent = socket.socket(socket.AF_UNIX)
agent.connect(sys.argv[1])
agent.sendall(sys.argv[2].encode())
agent.shutdown(socket.SHUT_WR)
while chunk := agent.recv(65536):
    sys.stdout.buffer.write(chunk)
";

#[test]
fn a_user_of_the_node_reports_for_nobody_elses_job() {
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::process::CommandExt;
    let folder = tempfile::tempdir().unwrap();
    std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o755)).unwrap();
    let socket = folder.path().join("agent.sock");
    let mut command = agent("http://127.0.0.1:1", &folder.path().join("spool"));
    let running = command.arg("--socket").arg(&socket).spawn().unwrap();
    wait_until("the agent listens", || socket.exists());

    let uid = nix::unistd::getuid();
    let report = |number: u32, change: &str| {
        let line = format!(
            "{{\"job\":\"{number}\",\"rank\":0,\"world_size\":1032,\"step\":1,\"start\":1763712000,\"duration_s\":1{change}}}"
        );
        line + "\n"
    };
    let mut lines: String = (0..500).map(|number| report(number, "")).collect();
    lines += &report(4711, ",\"tokens\":1000000000000000");
    let mut sender = Command::new("python3");
    sender.args(["-c", SENDER]).arg(&socket).arg(&lines);
    if uid.is_root() {
        sender.uid(65534).gid(65534);
    }
    let output = sender.output().unwrap();
    end(running);
    let answers = String::from_utf8(output.stdout).unwrap();
    assert_eq!(answers.lines().count(), 501, "{answers}\n{}", String::from_utf8_lossy(&output.stderr));
    let taken = answers.lines().filter(|answer| answer.contains("acked")).count();
    assert_eq!(taken, 0, "reports of invented jobs were taken");
    assert!(answers.contains("job 0 is not known on this node"), "{answers}");
}

#[test]
fn what_the_agent_keeps_is_for_its_user_alone() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    let (spool, socket) = (folder.path().join("spool"), folder.path().join("agent.sock"));
    let command = agent("http://127.0.0.1:1", &spool);
    // As a shell starts it, by default.
    let mut shell = Command::new("sh");
    shell.args(["-c", "umask 022 && exec \"$@\"", "sh"]).arg(command.get_program()).args(command.get_args());
    let running = shell.arg("--socket").arg(&socket).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let running = running.unwrap();
    // A file may be replaced meanwhile.
    let mode = |path: &Path| std::fs::metadata(path).ok().map(|found| found.permissions().mode() & 0o777);
    wait_until("it listens, and its records are in the spool", || {
        socket.exists() && spool.is_dir() && std::fs::read_dir(&spool).unwrap().count() >= 4
    });
    let socket_mode = mode(&socket);
    let files = std::fs::read_dir(&spool).unwrap().map(|entry| entry.unwrap().path());
    let modes: Vec<_> =
        files.map(|path| (mode(&path), path)).chain([(mode(&spool), spool.clone())]).collect();
    // Before anything fails: a test that ends early leaves it running.
    end(running);
    assert_eq!(socket_mode, Some(0o666), "jobs of all users report");
    for (mode, path) in modes {
        assert_eq!(mode.unwrap_or_default() & 0o077, 0, "{}", path.display());
    }
}
