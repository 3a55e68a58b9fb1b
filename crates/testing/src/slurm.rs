//! A Slurm cluster that lives as long as the value.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::needs;
use tempfile::TempDir;

/// Number of clusters that one suite runs at a time. Its tests mostly wait: with one cluster,
/// slurm_target used 73 s of processor time in 907 s.
const AT_ONCE: usize = 2;
static RUNNING: Mutex<usize> = Mutex::new(0);
static ENDED: Condvar = Condvar::new();

/// A Slurm cluster on this machine (`tests/slurm/cluster.sh`); it stops when it is dropped.
#[derive(Debug)]
pub struct Cluster {
    supervisor: Child,
    folder: TempDir,
    // Dropped after the supervisor has ended.
    _place: Place,
}

/// One of `AT_ONCE`, free again when it is dropped.
#[derive(Debug)]
struct Place;

impl Place {
    fn wait() -> Self {
        let running = RUNNING.lock().unwrap_or_else(PoisonError::into_inner);
        let free = ENDED.wait_while(running, |running| *running >= AT_ONCE);
        *free.unwrap_or_else(PoisonError::into_inner) += 1;
        Self
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        *RUNNING.lock().unwrap_or_else(PoisonError::into_inner) -= 1;
        ENDED.notify_one();
    }
}

fn script() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/slurm/cluster.sh")
}

impl Cluster {
    /// A cluster whose nodes are idle; `None` if Slurm is not installed and need not be.
    pub fn start(arguments: &[&str]) -> Option<Self> {
        Self::start_with(arguments, "")
    }

    /// The same, with more lines in slurm.conf.
    pub fn start_with(arguments: &[&str], conf: &str) -> Option<Self> {
        let place = Place::wait();
        if std::env::var("CI").is_ok_and(|ci| ci == "true") {
            let installed = Command::new(script()).arg("install").status().unwrap();
            assert!(installed.success(), "Slurm could not be installed");
        }
        if !Command::new(script()).arg("check").status().unwrap().success() {
            needs::skip("Slurm is not installed (tests/slurm/cluster.sh install)");
            return None;
        }
        let folder = tempfile::tempdir().unwrap();
        let mut command = Command::new(script());
        command.arg("run").arg(folder.path()).args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped());
        command.env("SLURM_CONF_LINES", conf);
        let mut supervisor = command.spawn().unwrap();
        let mut ready = String::new();
        BufReader::new(supervisor.stdout.take().unwrap()).read_line(&mut ready).unwrap();
        if ready.trim() != "ready" {
            drop(supervisor.stdin.take());
            supervisor.wait().unwrap();
            panic!("the cluster did not come up; its logs:\n{}", logs(folder.path()));
        }
        Some(Self { supervisor, folder, _place: place })
    }

    /// Folder of the cluster: configuration, logs and state.
    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Its `slurm.conf`.
    pub fn conf(&self) -> PathBuf {
        self.path().join("slurm.conf")
    }

    /// Output of one of Slurm's programs, which must succeed; retried while slurmctld is away.
    pub fn run(&self, program: &str, arguments: &[&str]) -> String {
        for _ in 0..5 {
            match self.try_run(program, arguments) {
                Ok(text) => return text,
                Err(error) if error.contains("Unable to contact") || error.contains("connect") => {}
                Err(error) => panic!("{program} {arguments:?}: {error}"),
            }
        }
        panic!("{program} {arguments:?}: slurmctld stays away");
    }

    /// Output of a program, or its error message.
    pub fn try_run(&self, program: &str, arguments: &[&str]) -> Result<String, String> {
        let mut command = Command::new(program);
        command.args(arguments).env("SLURM_CONF", self.conf()).env("SLURM_TIME_FORMAT", "%s");
        let output = command.env("SLURM_BITSTR_LEN", "0").stdin(Stdio::null()).output().unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap().trim_end().to_owned();
        if output.status.success() { Ok(text(output.stdout)) } else { Err(text(output.stderr)) }
    }

    /// Submits a job that runs the shell command; returns its id.
    pub fn submit(&self, options: &[&str], command: &str) -> String {
        let wrap = format!("--wrap={command}");
        let fixed = ["--parsable", "--output=/dev/null", "--error=/dev/null", "--chdir=/", wrap.as_str()];
        self.run("sbatch", &[&fixed, options].concat())
    }

    /// The state of a job in the queue's short form, e.g. `R`; empty if it is not there.
    pub fn state(&self, job: &str) -> String {
        self.try_run("squeue", &["--noheader", "--states=all", "--format=%t", "--jobs", job])
            .unwrap_or_default()
    }

    /// Waits until the job is in one of the states.
    pub fn wait_state(&self, job: &str, states: &[&str]) {
        let state = || states.contains(&self.state(job).as_str());
        let seen =
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| wait_for("its state", 90, state)));
        assert!(
            seen.is_ok(),
            "not {states:?}: {}",
            self.run("scontrol", &["--oneliner", "show", "job", job])
        );
    }

    /// Stops a process of the cluster (`stop`), or starts it again (`start`).
    pub fn process(&self, command: &str, name: &str) {
        let done = Command::new(script()).arg(command).arg(self.path()).arg(name).status().unwrap();
        assert!(done.success(), "{command} {name}");
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("logs of the cluster:\n{}", logs(self.path()));
        }
        // The supervisor stops everything when its input ends, also if this process is killed.
        drop(self.supervisor.stdin.take());
        self.supervisor.wait().ok();
    }
}

/// The last lines of slurmctld and slurmdbd.
fn logs(folder: &Path) -> String {
    let mut text = String::new();
    for name in ["slurmctld.log", "slurmctld.out", "slurmdbd.out", "n1.out", "mariadb.out", "sacctmgr.out"] {
        let log = std::fs::read_to_string(folder.join("log").join(name)).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        text += &format!("== {name}\n{}\n", lines[lines.len().saturating_sub(60)..].join("\n"));
    }
    text
}

/// Waits until the condition holds; panics after that many seconds.
pub fn wait_for(what: &str, seconds: u64, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(seconds);
    while !condition() {
        assert!(Instant::now() < deadline, "not within {seconds} s: {what}");
        std::thread::sleep(Duration::from_millis(200));
    }
}
