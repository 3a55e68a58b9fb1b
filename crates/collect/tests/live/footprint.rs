//! Memory of the idle receiver and pollers.

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use tidegate_collect::dcgm::{Dcgm, DcgmOptions};
use tidegate_collect::kube::{KubeOptions, KubeWatch, Tracker};
use tidegate_collect::receiver::{Receiver, ReceiverOptions, ReceiverParts};

use crate::support::{Recorder, wait_until};

const FOLDER: &str = "TIDEGATE_TEST_FOLDER";
/// Memory that all of them may add to a process beside code, KiB. The whole agent must stay under
/// 20 MiB.
const LIMIT_KIB: u64 = 3 << 10;

/// Prints its resident memory before and with the receiver, the kubelet client and the dcgm source.
#[test]
#[ignore = "started by the other test"]
fn idle_process() {
    let Some(folder) = std::env::var_os(FOLDER) else { return };
    let folder = Path::new(&folder);
    println!("before {}", resident_kib());
    let recorded = Recorder::new();
    let mut options = ReceiverOptions::new("n1");
    options.socket = Some(folder.join("agent.sock"));
    options.tcp = Some("127.0.0.1:0".parse().unwrap());
    let sink = Arc::clone(&recorded) as _;
    let _receiver = Receiver::start(
        options,
        ReceiverParts { sink, holds: None, jobs: None, status: Arc::new(|| json!({})) },
    )
    .unwrap();
    let tracker = Arc::new(Tracker::new("n1", folder.join("pods.json"), Arc::clone(&recorded) as _).unwrap());
    let every = Duration::from_millis(50);
    let kube = KubeWatch::start(
        KubeOptions { socket: folder.join("kubelet.sock"), every, ..KubeOptions::default() },
        tracker,
    )
    .unwrap();
    let url = "http://127.0.0.1:1/metrics".to_owned();
    let dcgm = Dcgm::start(DcgmOptions { url, every, ..DcgmOptions::default() }, recorded as _).unwrap();
    wait_until("the kubelet answers", || kube.status().answers >= 20);
    wait_until("the exporter is asked", || dcgm.status().failures >= 20);
    println!("with {}", resident_kib());
    std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
}

/// Resident memory and its part that is not code, KiB.
fn resident_kib() -> String {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let of = |name: &str| {
        let line = status.lines().find(|line| line.starts_with(name)).unwrap();
        line.split_ascii_whitespace().nth(1).unwrap().to_owned()
    };
    format!("{} {}", of("VmRSS:"), of("RssAnon:"))
}

#[test]
fn idle_receivers_and_pollers_are_small() {
    let folder = tempfile::tempdir().unwrap();
    let _kubelet = crate::kube::serve_one_pod(&folder.path().join("kubelet.sock"));
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "footprint::idle_process", "--ignored", "--nocapture"])
        .env(FOLDER, folder.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = child.stdin.take();
    let mut figures = Vec::new();
    for line in BufReader::new(child.stdout.take().unwrap()).lines() {
        let line = line.unwrap();
        if let Some(kib) = line.strip_prefix("before ").or_else(|| line.strip_prefix("with ")) {
            figures.push(kib.split(' ').map(|kib| kib.parse::<u64>().unwrap()).collect::<Vec<_>>());
        }
        if figures.len() == 2 {
            input = None;
        }
    }
    drop(input);
    assert!(child.wait().unwrap().success());
    let (before, with) = (&figures[0], &figures[1]);
    println!(
        "resident, KiB (without code): {} ({}) before, {} ({}) with all",
        before[0], before[1], with[0], with[1]
    );
    assert!(with[1] - before[1] < LIMIT_KIB, "{figures:?}");
}
