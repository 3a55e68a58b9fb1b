//! Checks around the agent: exporter, socket, spool, schedulers, log, clock.

use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use tidegate_collect::dcgm::{Dcgm, DcgmOptions};
use tidegate_collect::{Reading, Sink};
use tidegate_events::Event;

use super::{DoctorArgs, Finding, Verdict};

const PATIENCE: Duration = Duration::from_secs(5);

/// Discards everything.
struct DiscardSink;

impl Sink for DiscardSink {
    fn reading(&self, _reading: Reading) {}

    fn event(&self, _event: Event) {}
}

/// Checks the dcgm-exporter.
pub(super) fn dcgm(args: &DoctorArgs) -> Finding {
    let options =
        DcgmOptions { url: args.places.dcgm_url.clone(), patience: PATIENCE, ..DcgmOptions::default() };
    let exporter = match Dcgm::start(options, Arc::new(DiscardSink)) {
        Ok(exporter) => exporter,
        Err(error) => return Finding::new("dcgm", Verdict::Failed, error.to_string()),
    };
    let until = Instant::now() + PATIENCE * 2;
    let mut status = exporter.status();
    while status.pages + status.failures == 0 && Instant::now() < until {
        thread::sleep(Duration::from_millis(20));
        status = exporter.status();
    }
    match status.last_failure {
        None => Finding::new(
            "dcgm",
            Verdict::Ok,
            format!("{} reports {} devices", args.places.dcgm_url, status.devices),
        ),
        Some(what) => Finding::new("dcgm", Verdict::Absent, what),
    }
}

/// Checks the agent's socket.
pub(super) fn socket(args: &DoctorArgs) -> Finding {
    let path = args.socket.display();
    match status_of(&args.socket) {
        Ok(status) => {
            let count = |name: &str| status[name].as_u64().unwrap_or_default();
            let version = status["version"].as_str().unwrap_or("?");
            let found = format!(
                "{path}: agent {version}, {} records, {} delivered, {} dropped",
                count("records"),
                count("delivered"),
                count("dropped")
            );
            match count("dropped") {
                0 => Finding::new("agent", Verdict::Ok, found),
                _ => Finding::new("agent", Verdict::Partly, found)
                    .fix("the log was away for longer than the spool holds: give it more with --spool-limit"),
            }
        }
        Err(error) if error.kind() == ErrorKind::NotFound => {
            Finding::new("agent", Verdict::Absent, format!("there is no {path}")).fix(
                "start the agent (systemctl start tidegate-agent); in a container, mount the folder of the socket, not the socket",
            )
        }
        Err(error) if error.kind() == ErrorKind::PermissionDenied => {
            Finding::new("agent", Verdict::Failed, format!("{path}: no permission"))
                .fix("jobs of this user cannot report: widen --socket-group, or make the user a member of it")
        }
        Err(error) => Finding::new("agent", Verdict::Failed, format!("{path}: {error}"))
            .fix("the agent that made it is gone: systemctl status tidegate-agent"),
    }
}

fn status_of(path: &Path) -> std::io::Result<serde_json::Value> {
    let mut stream = UnixStream::connect(path)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    stream.write_all(b"GET /v1/status HTTP/1.1\r\nHost: agent\r\nConnection: close\r\n\r\n")?;
    let mut answer = String::new();
    stream.take(1 << 20).read_to_string(&mut answer)?;
    let body = answer.split_once("\r\n\r\n").map_or("", |(_, body)| body);
    let json = body.find('{').and_then(|from| body.rfind('}').map(|to| &body[from..=to]));
    serde_json::from_str(json.unwrap_or_default()).map_err(std::io::Error::other)
}

pub(super) fn spool(args: &DoctorArgs) -> Finding {
    let path = args.spool.display();
    let meta = match fs::metadata(&args.spool) {
        Ok(meta) if meta.is_dir() => meta,
        Ok(_) => {
            return Finding::new("spool", Verdict::Failed, format!("{path} is no folder"))
                .fix("remove it, or name another with --spool");
        }
        Err(error) if error.kind() == ErrorKind::NotFound => {
            return Finding::new("spool", Verdict::Absent, format!("there is no {path} yet"));
        }
        Err(error) => {
            return Finding::new("spool", Verdict::Failed, format!("{path}: {error}"))
                .fix("run the doctor as the agent's user, or give that user the folder");
        }
    };
    if rustix::fs::access(&args.spool, rustix::fs::Access::WRITE_OK).is_err() {
        use std::os::unix::fs::MetadataExt;
        return Finding::new(
            "spool",
            Verdict::Failed,
            format!("{path} belongs to user {} and cannot be written", meta.uid()),
        )
        .fix("run the doctor as the agent's user, or give that user the folder");
    }
    let free = rustix::fs::statvfs(&args.spool).map(|fs| (fs.f_bavail * fs.f_frsize) >> 20);
    let free = free.map_or_else(|_| "an unknown amount".into(), |mib| format!("{mib} MiB"));
    Finding::new("spool", Verdict::Ok, format!("{path}, {free} free"))
}

/// Checks whether this is a Slurm node and its controller answers.
pub(super) fn slurm() -> Finding {
    match Command::new("scontrol").arg("ping").output() {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            Finding::new("slurm", Verdict::Absent, "there is no scontrol on the PATH")
        }
        Err(error) => Finding::new("slurm", Verdict::Failed, format!("scontrol: {error}"))
            .fix("let the user run scontrol"),
        Ok(output) => {
            let answer = String::from_utf8_lossy(&output.stdout).trim().to_owned();
            if !output.status.success() || !answer.contains("UP") {
                let error = String::from_utf8_lossy(&output.stderr);
                let answer = format!("{answer} {}", error.lines().next().unwrap_or_default());
                return Finding::new("slurm", Verdict::Failed, answer.trim())
                    .fix("slurm.conf, munge and slurmctld must be as on the other nodes: scontrol ping must say UP");
            }
            prolog(answer.lines().next().unwrap_or_default())
        }
    }
}

/// Checks whether prolog and epilog report holds.
fn prolog(ping: &str) -> Finding {
    let config = Command::new("scontrol")
        .args(["show", "config"])
        .output()
        .map(|output| output.stdout)
        .unwrap_or_default();
    let config = String::from_utf8_lossy(&config);
    let paths = config.lines().filter_map(|line| {
        let (key, value) = line.split_once('=')?;
        matches!(key.trim(), "Prolog" | "Epilog")
            .then(|| value.trim().trim_end_matches('*').trim_end_matches('/'))
    });
    let reports = |path: &str| {
        let files = fs::read_dir(path).map(|entries| entries.flatten().map(|entry| entry.path()).collect());
        let files: Vec<_> = files.unwrap_or_else(|_| vec![path.into()]);
        files.iter().any(|file| fs::read_to_string(file).is_ok_and(|text| text.contains("tidegate")))
    };
    match paths.filter(|path| reports(path)).count() {
        2.. => Finding::new("slurm", Verdict::Ok, format!("{ping}; prolog and epilog report to the agent")),
        _ => Finding::new("slurm", Verdict::Partly, format!("{ping}; prolog and epilog do not report to the agent"))
            .fix("put deploy/slurm's drop-ins where Prolog= and Epilog= of slurm.conf point; until then holds are found by cgroups"),
    }
}

pub(super) fn kubelet(args: &DoctorArgs) -> Finding {
    let path = args.kubelet.display();
    match UnixStream::connect(&args.kubelet) {
        Ok(_) => Finding::new("kubelet", Verdict::Ok, format!("{path} answers")),
        Err(error) if error.kind() == ErrorKind::NotFound => {
            Finding::new("kubelet", Verdict::Absent, format!("there is no {path}"))
                .fix("on a Kubernetes node, mount the folder /var/lib/kubelet/pod-resources")
        }
        Err(error) => Finding::new("kubelet", Verdict::Failed, format!("{path}: {error}"))
            .fix("it is root's: run the agent with CAP_DAC_OVERRIDE, or as root in its container"),
    }
}

/// Checks whether the log answers, and how far apart the clocks are.
pub(super) fn log(args: &DoctorArgs) -> Vec<Finding> {
    if !args.destination.is_named() {
        return vec![Finding::new("log", Verdict::Absent, "no --log was given")];
    }
    let failed = |what: String| {
        let (found, fix) =
            what.split_once("; ").map_or((what.as_str(), None), |(found, fix)| (found, Some(fix.to_owned())));
        vec![Finding { fix, ..Finding::new("log", Verdict::Failed, found) }]
    };
    let log_sink = match args.destination.connect().and_then(|connect| Ok(connect()?)) {
        Ok(log_sink) => log_sink,
        Err(error) => return failed(error.to_string()),
    };
    let reached = match log_sink.partitions("gpu-samples") {
        Ok(partitions) => {
            Finding::new("log", Verdict::Ok, format!("answers; gpu-samples has {partitions} partitions"))
        }
        Err(error) => return failed(error.to_string()),
    };
    let now_ms = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as i64);
    let clock = match log_sink.clock() {
        Ok(Some(clock)) => {
            let skew = now_ms - clock.at_ms;
            let found = format!("{skew} ms ahead of the log's, give or take {} ms", clock.uncertainty_ms);
            let bound = (2 * clock.uncertainty_ms).max(1_000);
            match skew.abs() > bound {
                true => Finding::new("clock", Verdict::Partly, found)
                    .fix("let chrony or systemd-timesyncd set this node's clock"),
                false => Finding::new("clock", Verdict::Ok, found),
            }
        }
        Ok(None) => Finding::new("clock", Verdict::Absent, "the log has no clock"),
        Err(error) => Finding::new("clock", Verdict::Partly, error.to_string()),
    };
    vec![reached, clock]
}
