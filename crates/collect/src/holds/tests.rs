//! Holds on a simulated node.

use std::fs;
use std::path::Path;
use std::sync::{Arc, Mutex};

use tidegate_events::v1::JobEventKind as Kind;
use tidegate_events::v1::gpu_sample_batch::process;
use tidegate_events::{Event, v1};

use super::*;
use crate::reading::RunningProcess;
use crate::receiver::{GpuName, HoldKind};

#[derive(Default)]
struct RecordingSink(Mutex<(Vec<v1::JobEvent>, Vec<Reading>)>);

impl Sink for RecordingSink {
    fn reading(&self, reading: Reading) {
        self.0.lock().unwrap().1.push(reading);
    }

    fn event(&self, event: Event) {
        let Event::Job(job) = event else { panic!("{event:?}") };
        self.0.lock().unwrap().0.push(job);
    }
}

/// A node with two GPUs and one slice, whose cgroups and processes are files.
struct Node {
    folder: tempfile::TempDir,
    sink: Arc<RecordingSink>,
    holds: NodeHolds,
    /// User whom prologs name.
    uid: Option<u32>,
}

const MINUTE_MS: i64 = 60_000;

impl Node {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir_all(folder.path().join("cgroup/system.slice/slurmstepd.scope")).unwrap();
        let sink = Arc::new(RecordingSink::default());
        let holds = holds(folder.path(), "boot-one", &sink);
        let node = Self { folder, sink, holds, uid: None };
        node.read(1, &[]);
        node
    }

    /// Restarts the agent.
    fn restart(&mut self, boot: &str) {
        self.holds = holds(self.folder.path(), boot, &self.sink);
        self.read(1, &[]);
    }

    /// A reading of each device; processes as device and pid.
    fn read(&self, tick_ms: i64, processes: &[(usize, u32)]) {
        for (place, device) in devices().into_iter().enumerate() {
            let mut reading = Reading::new(Arc::new(device), tick_ms);
            let on_it = processes.iter().filter(|(at, _)| *at == place);
            reading.processes = on_it
                .map(|(_, pid)| RunningProcess {
                    pid: *pid,
                    kind: process::Kind::Compute,
                    memory_bytes: None,
                    name: None,
                    job_id: None,
                })
                .collect();
            self.holds.reading(reading);
        }
    }

    fn report(&self, kind: HoldKind, job: &str, gpus: &[GpuName], time_ms: i64, share_milli: Option<u32>) {
        let sink = HoldEvent {
            kind,
            job_id: job.to_owned(),
            step_id: None,
            node: Some("n1".to_owned()),
            gpus: gpus.to_vec(),
            time_ms: Some(time_ms),
            restart: None,
            share_milli,
            uid: self.uid,
            source: "prolog".to_owned(),
        };
        self.holds.hold_event(sink).unwrap();
    }

    fn cgroup(&self, job: &str, pid: u32, environment: &[&str]) {
        let cgroup = format!("system.slice/slurmstepd.scope/job_{job}/step_0/user/task_0");
        let folder = self.folder.path().join("cgroup").join(&cgroup);
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("cgroup.procs"), format!("{pid}\n")).unwrap();
        let process = self.folder.path().join("proc").join(pid.to_string());
        fs::create_dir_all(&process).unwrap();
        fs::write(process.join("cgroup"), format!("0::/{cgroup}\n")).unwrap();
        fs::write(process.join("environ"), environment.join("\0")).unwrap();
    }

    fn end(&self, job: &str) {
        let scope = self.folder.path().join("cgroup/system.slice/slurmstepd.scope");
        fs::remove_dir_all(scope.join(format!("job_{job}"))).unwrap();
    }

    /// Events since the last call: kind, job, device, quality and evidence, time.
    fn news(&self) -> Vec<(Kind, String, String, String, i64)> {
        let events = std::mem::take(&mut self.sink.0.lock().unwrap().0);
        let news = events.into_iter().map(|job| {
            let index = job.gpu_index.map(|index| index.to_string());
            let device = job.mig_uuid.clone().or(job.gpu_uuid.clone()).or(index).unwrap();
            let how =
                format!("{} {}", job.hold_quality.as_deref().unwrap(), job.hold_evidence.as_deref().unwrap());
            (job.kind(), job.job_id.clone(), device, how, job.envelope.unwrap().event_time_ms)
        });
        news.collect()
    }
}

fn holds(folder: &Path, boot: &str, sink: &Arc<RecordingSink>) -> NodeHolds {
    let options = HoldOptions {
        node: "n1".into(),
        boot_id: boot.into(),
        booted_ms: 90 * MINUTE_MS,
        file: folder.join("holds.json"),
        every: Duration::from_secs(10),
        roots: ScanRoots { cgroup: folder.join("cgroup"), proc: folder.join("proc") },
    };
    NodeHolds::new(options, sink.clone()).unwrap()
}

fn devices() -> Vec<Device> {
    let gpu = |index: u32, uuid: &str, mig: Option<&str>| Device {
        uuid: uuid.into(),
        index,
        model: "H100".into(),
        mig_uuid: mig.map(str::to_owned),
    };
    vec![gpu(0, "GPU-a", None), gpu(1, "GPU-b", None), gpu(1, "GPU-b", Some("MIG-b1"))]
}

fn news(kind: Kind, job: &str, device: &str, how: &str, at_ms: i64) -> (Kind, String, String, String, i64) {
    (kind, job.into(), device.into(), how.into(), at_ms)
}

#[test]
fn a_prolog_and_an_epilog_are_a_hold_of_each_device() {
    let node = Node::new();
    let now = now_ms();
    node.report(HoldKind::Hold, "7_3", &[GpuName::Index(0), GpuName::Uuid("MIG-b1".into())], now, None);
    node.report(HoldKind::Hold, "7_3", &[GpuName::Index(0)], now + 1, None);
    let held = |device| news(Kind::DeviceHeld, "7_3", device, "EXACT prolog", now);
    assert_eq!(node.news(), [held("GPU-a"), held("MIG-b1")]);
    node.report(HoldKind::Release, "7_3", &[], now + 5000, None);
    let released = |device| news(Kind::DeviceReleased, "7_3", device, "EXACT prolog", now + 5000);
    assert_eq!(node.news(), [released("GPU-a"), released("MIG-b1")]);
    node.report(HoldKind::Release, "7_3", &[], now + 6000, None);
    assert_eq!(node.news(), []);
}

#[test]
fn an_array_task_gets_its_full_id_or_else_its_number() {
    let node = Node::new();
    let now = now_ms();
    node.report(HoldKind::Hold, "17", &[GpuName::Index(0)], now, None);
    node.report(HoldKind::Hold, "18", &[GpuName::Index(1)], now, None);
    assert_eq!(node.news(), [], "whose they are is not known yet");
    node.cgroup(
        "17",
        700,
        &["SLURM_JOB_ID=17", "SLURM_ARRAY_JOB_ID=12", "SLURM_ARRAY_TASK_ID=4", "SLURM_PROCID=0"],
    );
    node.holds.scan(now + 10_000);
    assert_eq!(node.news(), [news(Kind::DeviceHeld, "12_4", "GPU-a", "EXACT prolog", now)]);
    node.holds.scan(now + 31_000);
    assert_eq!(node.news(), [news(Kind::DeviceHeld, "18", "GPU-b", "EXACT prolog", now)]);
    node.report(HoldKind::Release, "17", &[], now + 40_000, None);
    assert_eq!(node.news(), [news(Kind::DeviceReleased, "12_4", "GPU-a", "EXACT prolog", now + 40_000)]);
}

#[test]
fn a_missed_epilog_is_found_by_the_missing_cgroup() {
    let node = Node::new();
    let now = now_ms();
    node.cgroup("5", 50, &["SLURM_JOB_ID=5", "SLURM_PROCID=0"]);
    node.report(HoldKind::Hold, "5", &[GpuName::Index(0)], now, None);
    node.holds.scan(now + 1000);
    assert_eq!(node.news().len(), 1);
    node.end("5");
    node.holds.scan(now + MINUTE_MS);
    assert_eq!(node.news(), [], "a young job may have no cgroup yet");
    node.holds.scan(now + 3 * MINUTE_MS);
    assert_eq!(node.news(), [], "missed once");
    node.holds.scan(now + 4 * MINUTE_MS);
    assert_eq!(node.news(), [news(Kind::DeviceReleased, "5", "GPU-a", "EXACT prolog", now + 3 * MINUTE_MS)]);
}

#[test]
fn the_next_jobs_prolog_ends_the_hold_before_it() {
    let node = Node::new();
    let now = now_ms();
    node.report(HoldKind::Hold, "1_0", &[GpuName::Index(0)], now, None);
    node.report(HoldKind::Hold, "2_0", &[GpuName::Uuid("GPU-a".into())], now + 9000, None);
    let kinds: Vec<_> =
        node.news().into_iter().map(|(kind, job, _, _, at_ms)| (kind, job, at_ms - now)).collect();
    let expected =
        [(Kind::DeviceHeld, "1_0", 0), (Kind::DeviceReleased, "1_0", 9000), (Kind::DeviceHeld, "2_0", 9000)];
    assert_eq!(kinds, expected.map(|(kind, job, at_ms)| (kind, job.to_owned(), at_ms)));
    // Shared holds do not end each other.
    node.report(HoldKind::Hold, "3_0", &[GpuName::Index(1)], now, Some(500));
    node.report(HoldKind::Hold, "4_0", &[GpuName::Index(1)], now, Some(500));
    let held = |job| news(Kind::DeviceHeld, job, "GPU-b", "SHARED_ESTIMATED prolog", now);
    assert_eq!(node.news(), [held("3_0"), held("4_0")]);
}

#[test]
fn a_process_without_a_hold_opens_one_of_unknown_quality() {
    let node = Node::new();
    let now = now_ms();
    node.cgroup("8", 80, &["SLURM_JOB_ID=8", "SLURM_PROCID=0"]);
    node.read(now, &[(0, 80), (1, 81)]);
    let readings = std::mem::take(&mut node.sink.0.lock().unwrap().1);
    let jobs: Vec<_> =
        readings.iter().flat_map(|reading| &reading.processes).map(|p| p.job_id.as_deref()).collect();
    assert_eq!(jobs, [Some("8"), None]);
    node.holds.scan(now);
    assert_eq!(node.news(), [news(Kind::DeviceHeld, "8", "GPU-a", "UNKNOWN cgroup", now)]);
    node.read(now + 10_000, &[(0, 80)]);
    node.holds.scan(now + 10_000);
    assert_eq!(node.news(), []);
    // Once a prolog reports it, it is known.
    node.report(HoldKind::Hold, "8", &[GpuName::Index(0)], now + 11_000, None);
    assert_eq!(node.news(), [news(Kind::DeviceReleased, "8", "GPU-a", "UNKNOWN cgroup", now + 11_000)]);
    node.read(now + 12_000, &[(0, 80)]);
    node.holds.scan(now + 12_000);
    assert_eq!(node.news(), [news(Kind::DeviceHeld, "8", "GPU-a", "EXACT prolog", now + 11_000)]);
}

#[test]
fn a_process_that_is_gone_ends_its_hold() {
    let node = Node::new();
    let now = now_ms();
    node.cgroup("8", 80, &["SLURM_JOB_ID=8", "SLURM_PROCID=0"]);
    node.read(now, &[(1, 80)]);
    node.holds.scan(now);
    assert_eq!(node.news().len(), 1);
    node.holds.scan(now + 10_000);
    node.holds.scan(now + 20_000);
    assert_eq!(node.news(), [news(Kind::DeviceReleased, "8", "GPU-b", "UNKNOWN cgroup", now + 10_000)]);
}

#[test]
fn open_holds_outlive_the_agent_and_end_with_the_node() {
    let mut node = Node::new();
    let now = now_ms();
    node.cgroup("5", 50, &["SLURM_JOB_ID=5", "SLURM_PROCID=0"]);
    node.report(HoldKind::Hold, "5", &[GpuName::Index(0)], now, None);
    node.report(HoldKind::Hold, "6_1", &[GpuName::Index(1)], MINUTE_MS, None);
    assert_eq!(node.news().len(), 1);
    node.restart("boot-one");
    node.holds.scan(now + 1000);
    // Open holds keep their ids, and unreported ones are emitted.
    assert_eq!(node.news(), [news(Kind::DeviceHeld, "5", "GPU-a", "EXACT prolog", now)]);
    node.restart("boot-two");
    let ended = node.news();
    assert_eq!(ended[0], news(Kind::DeviceReleased, "5", "GPU-a", "EXACT prolog", now));
    assert_eq!(ended[1], news(Kind::DeviceReleased, "6_1", "GPU-b", "EXACT prolog", 90 * MINUTE_MS));
    node.holds.scan(now + 2000);
    assert_eq!(node.news(), []);
    node.report(HoldKind::Hold, "6_1", &[GpuName::Index(1)], now, None);
    let ids: Vec<_> = node.sink.0.lock().unwrap().0.iter().map(|job| job.hold_id.clone().unwrap()).collect();
    assert_eq!(ids, ["n1/boot-two/1"], "numbers begin anew with the boot");
}

#[test]
fn a_hold_of_another_node_is_refused() {
    let node = Node::new();
    let sink = HoldEvent {
        kind: HoldKind::Hold,
        job_id: "1".into(),
        step_id: None,
        node: Some("n2".into()),
        gpus: vec![GpuName::Index(0)],
        time_ms: None,
        restart: None,
        share_milli: None,
        uid: None,
        source: "prolog".into(),
    };
    assert!(node.holds.hold_event(sink).unwrap_err().contains("--node"));
}

#[test]
fn owners_are_those_of_prologs_and_survive_a_restart() {
    use crate::receiver::{Reporter, Standing};
    let mut node = Node::new();
    node.uid = Some(1001);
    node.report(HoldKind::Hold, "7", &[GpuName::Index(0)], MINUTE_MS, None);
    let standing = |node: &Node, uid, job: &str| {
        node.holds.standing(&Reporter { uid: Some(uid), ..Reporter::default() }, job)
    };
    assert_eq!(standing(&node, 1001, "7"), Standing::Own);
    assert_eq!(standing(&node, 1002, "7"), Standing::Others);
    assert_eq!(standing(&node, 1001, "8"), Standing::Unknown);
    node.restart("boot-one");
    assert_eq!(standing(&node, 1001, "7"), Standing::Own);
    node.report(HoldKind::Release, "7", &[], 2 * MINUTE_MS, None);
    assert_eq!(standing(&node, 1001, "7"), Standing::Unknown, "it has ended");
}

#[test]
fn an_environment_takes_no_other_jobs_id() {
    let (node, now) = (Node::new(), now_ms());
    node.report(HoldKind::Hold, "7", &[GpuName::Index(0)], now, None);
    let array = |number: &str| {
        [format!("SLURM_JOB_ID={number}"), "SLURM_ARRAY_JOB_ID=5".into(), "SLURM_ARRAY_TASK_ID=3".into()]
    };
    for (number, pid) in [("7", 70), ("9", 90)] {
        let variables = array(number);
        let mut variables: Vec<&str> = variables.iter().map(String::as_str).collect();
        variables.push("SLURM_PROCID=0");
        node.cgroup(number, pid, &variables);
    }
    node.holds.scan(now + 1);
    // The second job's user wrote the first one's index into his environment.
    node.report(HoldKind::Hold, "9", &[GpuName::Index(1)], now + 2, None);
    node.holds.scan(now + 3);
    node.holds.scan(now + MINUTE_MS);
    let ids: Vec<_> = node.sink.0.lock().unwrap().0.iter().map(|job| job.job_id.clone()).collect();
    assert_eq!(ids, ["5_3", "9"]);
}
