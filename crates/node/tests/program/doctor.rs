//! `tidegate-node doctor`, on the stand-in for the driver's library.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use tempfile::TempDir;

use crate::kit::wait_until;

/// A node made of files: a stand-in driver with a scenario, and nothing else unless a test adds it.
struct Node(TempDir);

impl Node {
    fn new(scenario: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let build = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/nvml/build.sh");
        assert!(Command::new(build).arg(folder.path().join("driver.so")).status().unwrap().success());
        fs::write(folder.path().join("driver.so.scenario"), scenario).unwrap();
        fs::write(folder.path().join("kmsg"), "").unwrap();
        fs::create_dir_all(folder.path().join("empty-path")).unwrap();
        fs::create_dir_all(folder.path().join("spool")).unwrap();
        Self(folder)
    }

    fn file(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn program(&self, command: &str) -> Command {
        let mut program = Command::new(env!("CARGO_BIN_EXE_tidegate-node"));
        // No Slurm of this machine, no exporter, no settings of the environment.
        program.env_clear().env("PATH", self.file("empty-path"));
        program.arg(command).arg("--nvml-lib").arg(self.file("driver.so"));
        program.arg("--kernel-log").arg(self.file("kmsg")).arg("--socket").arg(self.file("agent.sock"));
        program.arg("--spool").arg(self.file("spool")).args(["--dcgm-url", "http://127.0.0.1:1/metrics"]);
        program.current_dir(self.0.path());
        program
    }

    fn doctor(&self, arguments: &[&str]) -> (bool, Value) {
        let mut doctor = self.program("doctor");
        let output = doctor
            .arg("--kubelet")
            .arg(self.file("kubelet.sock"))
            .arg("--json")
            .args(arguments)
            .output()
            .unwrap();
        let report: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|e| {
            panic!(
                "{e}: {}{}",
                String::from_utf8_lossy(&output.stdout),
                String::from_utf8_lossy(&output.stderr)
            )
        });
        assert_eq!(report["ok"].as_bool(), Some(output.status.success()), "{report}");
        (output.status.success(), report)
    }
}

/// Verdict, finding and fix of a check.
fn check<'a>(report: &'a Value, name: &str) -> (&'a str, &'a str, &'a str) {
    let found = report["checks"].as_array().unwrap().iter().find(|check| check["check"] == name);
    let found = found.unwrap_or_else(|| panic!("no check {name} in {report}"));
    let text = |field: &str| found[field].as_str().unwrap_or_default();
    (text("verdict"), text("found"), text("fix"))
}

#[test]
fn a_working_node_passes() {
    let node = Node::new("devices 2\ndriver 570.133.20\n");
    let log = node.file("log");
    let (ok, report) = node.doctor(&["--log", log.to_str().unwrap()]);
    assert!(ok, "{report}");
    assert_eq!(check(&report, "driver").1, "driver 570.133.20, 2 GPUs");
    let (verdict, found, _) = check(&report, "gpu 1");
    assert_eq!(verdict, "ok");
    assert!(found.contains("H100") && found.contains("metrics; not supported: nvlink_tx_bytes"), "{found}");
    assert_eq!(check(&report, "xids").0, "ok");
    assert_eq!(check(&report, "spool").0, "ok");
    assert_eq!(check(&report, "log").0, "ok");
    // A local folder has no clock of its own.
    for absent in ["dcgm", "agent", "slurm", "kubelet", "clock"] {
        assert_eq!(check(&report, absent).0, "absent", "{report}");
    }
    assert!(check(&report, "agent").2.contains("mount the folder of the socket"));
}

#[test]
fn failures_are_reported_with_a_fix() {
    let old = Node::new("devices 1\nno_gpm *\nfail * nvmlDeviceGetTotalEnergyConsumption 4 0 9e18\n");
    fs::remove_file(old.file("kmsg")).unwrap();
    let (_, report) = old.doctor(&["--log", "http://127.0.0.1:1"]);
    let (verdict, found, fix) = check(&report, "gpu 0");
    assert_eq!(verdict, "partly");
    assert!(
        found.contains("sm_active_ppm") && fix.contains("Hopper") && fix.contains("--source dcgm"),
        "{found}: {fix}"
    );
    let (verdict, _, fix) = check(&report, "xids");
    assert!(verdict == "partly" && fix.contains("CAP_SYSLOG"), "{report}");
    let (verdict, _, fix) = check(&report, "log");
    assert!(verdict == "failed" && fix.contains("tidegate up --ingest"), "{report}");

    let none = Node::new("");
    fs::remove_file(none.file("driver.so")).unwrap();
    let (ok, report) = none.doctor(&[]);
    let (verdict, _, fix) = check(&report, "driver");
    assert!(!ok && verdict == "failed" && fix.contains("install NVIDIA's driver"), "{report}");

    // Slurm's programs exist, slurmctld is down.
    let scontrol = none.file("empty-path/scontrol");
    fs::write(&scontrol, "#!/bin/sh\necho 'Slurmctld(primary) at head is DOWN'\nexit 1\n").unwrap();
    let mut rights = fs::metadata(&scontrol).unwrap().permissions();
    std::os::unix::fs::PermissionsExt::set_mode(&mut rights, 0o755);
    fs::set_permissions(&scontrol, rights).unwrap();
    let (_, report) = none.doctor(&[]);
    let (verdict, found, fix) = check(&report, "slurm");
    assert!(verdict == "failed" && found.contains("DOWN") && fix.contains("munge"), "{report}");
}

/// The agent reads the stand-in and accepts a hold, and the doctor sees it.
#[test]
fn a_running_agent_is_seen() {
    let node = Node::new("devices 2\n");
    let mut agent = node.program("agent");
    agent.args(["--source", "nvml", "--node", "n1", "--interval", "100ms", "--flush", "300ms", "--log"]);
    let mut agent = agent.arg(node.file("log")).spawn().unwrap();
    wait_until("the agent listens", || node.file("agent.sock").exists());
    let mut hold = Command::new(env!("CARGO_BIN_EXE_tidegate-node"));
    hold.args(["event", "hold", "--job", "4711", "--gpus", "0,1", "--socket"]).arg(node.file("agent.sock"));
    assert!(hold.env_clear().status().unwrap().success());
    wait_until("the doctor sees records delivered", || {
        let (_, report) = node.doctor(&[]);
        let (verdict, found, _) = check(&report, "agent");
        assert_eq!(verdict, "ok", "{report}");
        !found.contains(" 0 delivered")
    });
    assert!(agent.try_wait().unwrap().is_none(), "the agent ended");
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(agent.id() as i32), nix::sys::signal::SIGTERM).unwrap();
    assert!(agent.wait().unwrap().success());
}
