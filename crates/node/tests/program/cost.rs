//! System calls of the agent, in counts: they do not depend on the machine's load.
//!
//! Skipped where strace is not installed; with `CI=true` it is installed, or the test fails.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use tidegate_testing::needs;

const DEVICES: u64 = 8;
/// Ticks of a short and a long run. The difference is the cost of ticks without start and end.
const TICKS: (u64, u64) = (30, 130);
/// System calls per sample (device × tick), over all threads, spool and delivery included.
/// Measured: 2.9.
const LIMIT: f64 = 5.0;

fn strace_is_there() -> bool {
    let there = || Command::new("strace").arg("-V").stdout(Stdio::null()).status().is_ok();
    if !there() && std::env::var("CI").is_ok_and(|ci| ci == "true") {
        let install = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/install.sh");
        assert!(Command::new(install).arg("strace").status().unwrap().success(), "strace is missing");
    }
    there()
}

/// System calls of a run of this many ticks of 100 ms.
fn calls(folder: &Path, ticks: u64) -> u64 {
    let counts = folder.join("counts");
    let status = Command::new("timeout")
        .args(["--signal=TERM", &format!("{}", ticks as f64 / 10.0), "strace", "-f", "-c", "-o"])
        .arg(&counts)
        .arg(env!("CARGO_BIN_EXE_tidegate-node"))
        .args([
            "agent",
            "--node",
            "n1",
            "--interval",
            "100ms",
            "--flush",
            "1s",
            "--kernel-log",
            "/nonexistent",
        ])
        .arg("--nvml-lib")
        .arg(folder.join("driver.so"))
        .arg("--spool")
        .arg(folder.join(format!("spool-{ticks}")))
        .arg("--log")
        .arg(folder.join(format!("log-{ticks}")))
        .stderr(Stdio::null())
        .status()
        .unwrap();
    // timeout's status for a run that took its whole time, as it should.
    assert_eq!(status.code(), Some(124));
    let table = fs::read_to_string(&counts).unwrap();
    let total = table.lines().rev().find(|line| line.ends_with("total")).unwrap();
    total.split_whitespace().nth(3).unwrap().parse().unwrap()
}

#[test]
fn a_sample_costs_few_system_calls() {
    if !strace_is_there() {
        return needs::skip("strace is not installed");
    }
    let folder = tempfile::tempdir().unwrap();
    let build = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/nvml/build.sh");
    assert!(Command::new(build).arg(folder.path().join("driver.so")).status().unwrap().success());
    fs::write(folder.path().join("driver.so.scenario"), format!("devices {DEVICES}\n")).unwrap();
    let (short, long) = (calls(folder.path(), TICKS.0), calls(folder.path(), TICKS.1));
    let each = (long - short) as f64 / ((TICKS.1 - TICKS.0) * DEVICES) as f64;
    println!("{each:.2} system calls per sample");
    assert!(each > 0.5, "{short} and {long} calls: it did not run");
    assert!(each <= LIMIT, "{each:.2} system calls per sample, more than {LIMIT}");
}
