//! Slurm prologs and epilogs report to the agent: the scripts of `deploy/slurm`, run by hand and by
//! a real Slurm. The latter is skipped where Slurm is unavailable (see
//! `crates/collect/tests/slurm`).

#![allow(clippy::unwrap_used)]

use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::json;
use tempfile::TempDir;
use tidegate_collect::holds::{HoldOptions, NodeHolds};
use tidegate_collect::reading::Reading;
use tidegate_collect::receiver::{Receiver, ReceiverOptions, ReceiverParts, Reporter, Standing};
use tidegate_collect::{Device, Sink};
use tidegate_events::Event;
use tidegate_events::v1::{JobEvent, JobEventKind as Kind};
use tidegate_testing::slurm::{Cluster, wait_for};

#[derive(Default)]
struct RecordingSink(Mutex<Vec<JobEvent>>);

impl Sink for RecordingSink {
    fn reading(&self, _: Reading) {}

    fn event(&self, event: Event) {
        let Event::Job(job) = event else { panic!("{event:?}") };
        self.0.lock().unwrap().push(job);
    }
}

/// The part of an agent that accepts holds, on a socket in a folder.
struct Node {
    folder: TempDir,
    recorded: Arc<RecordingSink>,
    holds: Arc<NodeHolds>,
    _receiver: Receiver,
}

impl Node {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let recorded = Arc::new(RecordingSink::default());
        let options = HoldOptions::new("n1", folder.path().join("holds.json"));
        let holds = Arc::new(NodeHolds::new(options, recorded.clone()).unwrap());
        for index in 0..8 {
            let device = Device { uuid: format!("GPU-{index}"), index, model: "H200".into(), mig_uuid: None };
            holds.reading(Reading::new(Arc::new(device), 1));
        }
        let parts = ReceiverParts {
            sink: recorded.clone(),
            holds: Some(holds.clone()),
            jobs: None,
            status: Arc::new(|| json!({})),
        };
        let listen =
            ReceiverOptions { socket: Some(folder.path().join("agent.sock")), ..ReceiverOptions::new("n1") };
        let receiver = Receiver::start(listen, parts).unwrap();
        Self { folder, recorded, holds, _receiver: receiver }
    }

    fn socket(&self) -> PathBuf {
        self.folder.path().join("agent.sock")
    }

    /// Kind, job, device and evidence of new events.
    fn news(&self) -> Vec<(Kind, String, String, String)> {
        let recorded = self.recorded.0.lock().unwrap();
        let news = recorded.iter().map(|job| {
            (
                job.kind(),
                job.job_id.clone(),
                job.gpu_uuid.clone().unwrap(),
                job.hold_evidence.clone().unwrap(),
            )
        });
        news.collect()
    }
}

fn deployed(which: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join(format!("../../deploy/slurm/{which}.d/50-tidegate.sh"))
        .canonicalize()
        .unwrap()
}

/// Runs a script as slurmd does, with only these variables, and the program on its path.
fn script(which: &str, socket: &Path, variables: &[(&str, &str)]) -> (ExitStatus, Duration) {
    let program = Path::new(env!("CARGO_BIN_EXE_tidegate-node"));
    let begun = Instant::now();
    let mut command = Command::new(deployed(which));
    command.env_clear().env("PATH", format!("{}:/usr/bin:/bin", program.parent().unwrap().display()));
    let status = command.env("TIDEGATE_SOCKET", socket).envs(variables.iter().copied()).status().unwrap();
    (status, begun.elapsed())
}

#[test]
fn prolog_and_epilog_report_what_a_job_holds() {
    let node = Node::new();
    // As Slurm 22.05 sets them, with variables that give an array index.
    let variables = [
        ("SLURM_JOB_ID", "17"),
        ("SLURM_ARRAY_JOB_ID", "12"),
        ("SLURM_ARRAY_TASK_ID", "4"),
        ("SLURM_JOB_GPUS", "4,5"),
        ("CUDA_VISIBLE_DEVICES", "0,1"),
        ("SLURMD_NODENAME", "n1"),
    ];
    assert!(script("prolog", &node.socket(), &variables).0.success());
    assert!(script("epilog", &node.socket(), &variables).0.success());
    let of = |kind, gpu: &str| (kind, "12_4".to_owned(), gpu.to_owned(), "prolog".to_owned());
    let expected = [
        of(Kind::DeviceHeld, "GPU-4"),
        of(Kind::DeviceHeld, "GPU-5"),
        of(Kind::DeviceReleased, "GPU-4"),
        of(Kind::DeviceReleased, "GPU-5"),
    ];
    assert_eq!(node.news(), expected);
    // A job without GPUs has nothing to report, and another node's job is refused; neither fails
    // the job.
    assert!(
        script("prolog", &node.socket(), &[("SLURM_JOB_ID", "18"), ("SLURMD_NODENAME", "n1")]).0.success()
    );
    let other = [("SLURM_JOB_ID", "18"), ("SLURM_JOB_GPUS", "0"), ("SLURMD_NODENAME", "n2")];
    assert!(script("prolog", &node.socket(), &other).0.success());
    assert_eq!(node.news().len(), 4);
}

#[test]
fn a_prolog_survives_an_absent_or_hanging_agent() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("agent.sock");
    let variables = [("SLURM_JOB_ID", "17"), ("SLURM_JOB_GPUS", "0"), ("SLURMD_NODENAME", "n1")];
    assert!(script("prolog", &socket, &variables).0.success());
    assert!(script("epilog", &socket, &[]).0.success(), "not even a job");
    // A listener that never answers.
    let _listener = UnixListener::bind(&socket).unwrap();
    let (status, took) = script("prolog", &socket, &variables);
    assert!(status.success());
    assert!(took < Duration::from_secs(20), "{took:?}");
}

#[test]
fn the_command_explains_errors() {
    let node = Node::new();
    let event = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate-node"));
        command.env_clear().env("TIDEGATE_SOCKET", node.socket()).args(["event", "hold"]).args(arguments);
        let output = command.output().unwrap();
        (output.status.success(), String::from_utf8(output.stderr).unwrap())
    };
    assert_eq!(event(&["--job", "1_0", "--gpus", "GPU-3"]), (true, String::new()));
    assert_eq!(node.news(), [(Kind::DeviceHeld, "1_0".into(), "GPU-3".into(), "prolog".into())]);
    let (succeeded, error) = event(&["--job", "1_0", "--gpus", "third"]);
    assert!(!succeeded && error.contains("the agent refuses it: ") && error.contains("third"), "{error}");
    let (succeeded, error) = event(&["--job", "1", "--gpus", "0", "--socket", "/nowhere"]);
    assert!(!succeeded && error.contains("is it running"), "{error}");
    assert!(event(&[]).1.contains("give --job"));
}

/// slurmd runs scripts with its own path, so a wrapper sets paths for each. It lives for a second
/// more: the agent must not take it for a task of the job.
fn wrapped(node: &Node, which: &str) -> PathBuf {
    use std::os::unix::fs::PermissionsExt;
    let program = Path::new(env!("CARGO_BIN_EXE_tidegate-node")).parent().unwrap();
    let wrapper = node.folder.path().join(which);
    let text = format!(
        "#!/bin/sh\nPATH={}:/usr/bin:/bin TIDEGATE_SOCKET={} {}\nsleep 1\n",
        program.display(),
        node.socket().display(),
        deployed(which).display()
    );
    std::fs::write(&wrapper, text).unwrap();
    std::fs::set_permissions(&wrapper, PermissionsExt::from_mode(0o755)).unwrap();
    wrapper
}

#[test]
fn a_real_slurm_runs_the_scripts() {
    let node = Node::new();
    let lines = ["prolog", "epilog"].map(|which| format!("{which}={}", wrapped(&node, which).display()));
    let Some(cluster) = Cluster::start_with(&[], &format!("{}\nPrologFlags=Alloc\n", lines.join("\n")))
    else {
        return;
    };
    let job = cluster.submit(&["--array=7", "--nodelist=n1", "--gres=gpu:2"], "sleep 300");
    let name = format!("{job}_7");
    let of = |kind, gpu: &str| (kind, name.clone(), gpu.to_owned(), "prolog".to_owned());
    wait_for("holds of both devices", 60, || {
        node.holds.scan(now_ms());
        node.news().len() >= 2
    });
    assert_eq!(node.news(), [of(Kind::DeviceHeld, "GPU-0"), of(Kind::DeviceHeld, "GPU-1")]);
    // Slurm tells the prolog whose job it is, and only that user may report its steps.
    let owner = nix::unistd::getuid().as_raw();
    for (uid, expected) in [(owner, Standing::Own), (owner + 1, Standing::Others)] {
        let reporter = Reporter { uid: Some(uid), ..Reporter::default() };
        assert_eq!(node.holds.standing(&reporter, &name), expected, "user {uid}");
    }
    cluster.run("scancel", &[&job]);
    wait_for("the release is reported", 60, || node.news().len() == 4);
    assert_eq!(node.news()[2..], [of(Kind::DeviceReleased, "GPU-0"), of(Kind::DeviceReleased, "GPU-1")]);
}

fn now_ms() -> i64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    since.as_millis() as i64
}
