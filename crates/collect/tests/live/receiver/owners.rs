//! Whose step reports are taken: real sockets and the real lookup, in `/proc` folders made up for
//! this process.

use std::fs;
use std::io::{BufReader, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::sync::Arc;

use serde_json::{Value, json};
use tempfile::TempDir;
use tidegate_collect::holds::{HoldOptions, NodeHolds, ScanRoots};
use tidegate_collect::receiver::{
    GpuName, HoldEvent, HoldEvents, HoldKind, Receiver, ReceiverOptions, ReceiverParts, StepReports,
};
use tidegate_collect::reporters::JobsOfNode;

use super::{answer, connect, request};
use crate::support::Recorder;

/// A node on which this test is a process of some job.
struct Node {
    receiver: Receiver,
    recorded: Arc<Recorder>,
    holds: Arc<NodeHolds>,
    folder: TempDir,
}

fn own_uid() -> u32 {
    nix::unistd::Uid::effective().as_raw()
}

impl Node {
    /// `cgroup` is this process's; `ids` are its process ids, from the node's to a container's.
    fn new(step_reports: StepReports, cgroup: &str, ids: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let roots = ScanRoots { cgroup: folder.path().join("cgroup"), proc: folder.path().join("proc") };
        let own = roots.proc.join(std::process::id().to_string());
        fs::create_dir_all(&own).unwrap();
        fs::write(own.join("cgroup"), format!("0::{cgroup}\n")).unwrap();
        let uid = own_uid();
        fs::write(own.join("status"), format!("Uid:\t{uid}\t{uid}\t{uid}\t{uid}\nNSpid:\t{ids}\n")).unwrap();
        fs::create_dir_all(folder.path().join("pods/train_llama-0_11ee")).unwrap();

        let recorded = Recorder::new();
        let mut options = HoldOptions::new("n1", folder.path().join("holds.json"));
        options.roots = roots.clone();
        let holds = Arc::new(NodeHolds::new(options, Arc::clone(&recorded) as _).unwrap());
        let jobs = JobsOfNode::new(Arc::clone(&holds), roots, folder.path().join("pods"));
        let parts = ReceiverParts {
            sink: Arc::clone(&recorded) as _,
            holds: Some(Arc::clone(&holds) as _),
            jobs: Some(Arc::new(jobs)),
            status: Arc::new(|| json!({})),
        };
        let options = ReceiverOptions {
            socket: Some(folder.path().join("agent.sock")),
            tcp: Some("127.0.0.1:0".parse().unwrap()),
            step_reports,
            ..ReceiverOptions::new("n1")
        };
        let receiver = Receiver::start(options, parts).unwrap();
        Self { receiver, recorded, holds, folder }
    }

    fn socket(&self) -> PathBuf {
        self.folder.path().join("agent.sock")
    }

    /// The job gets a GPU, by a prolog.
    fn hold(&self, job: &str, uid: u32) {
        let hold = HoldEvent {
            kind: HoldKind::Hold,
            job_id: job.to_owned(),
            step_id: None,
            node: None,
            gpus: vec![GpuName::Index(0)],
            time_ms: None,
            restart: None,
            share_milli: Some(500),
            uid: Some(uid),
            source: "prolog".into(),
        };
        self.holds.hold_event(hold).unwrap();
    }

    fn report(&self, job: &str) -> Value {
        let mut reader = BufReader::new(connect(&self.socket()));
        reader.get_mut().write_all(line(job).as_bytes()).unwrap();
        answer(&mut reader)
    }

    fn report_over_tcp(&self, job: &str) -> (u16, Value) {
        let stream = TcpStream::connect(self.receiver.tcp_address().unwrap()).unwrap();
        request(stream, "POST", "/v1/steps", "", line(job).as_bytes())
    }
}

fn line(job: &str) -> String {
    format!("{{\"job\":\"{job}\",\"rank\":0,\"step\":1,\"start\":1763712000.5,\"duration_s\":0.25}}\n")
}

#[test]
fn a_job_reports_for_itself() {
    // As if in a container, so that root is nobody special.
    let node =
        Node::new(StepReports::Owned, "/system.slice/slurmstepd.scope/job_7/step_0/user/task_0", "9 1");
    node.hold("8", own_uid() + 1);
    node.hold("9", own_uid());
    assert_eq!(node.report("7"), json!({"acked": 1}), "its cgroup's job");
    assert_eq!(node.report("9"), json!({"acked": 1}), "another job of its user");
    let refused = node.report("8")["error"].as_str().unwrap().to_owned();
    assert!(refused.contains(&format!("job 8 is not known to be user {}'s", own_uid())), "{refused}");
    let refused = node.report("4711")["error"].as_str().unwrap().to_owned();
    assert!(refused.contains("job 4711 is not known on this node"), "{refused}");
    let (status, refused) = node.report_over_tcp("7");
    assert_eq!((status, &refused["rejected"]), (400, &json!(1)));
    assert!(refused["errors"][0].as_str().unwrap().contains("over TCP nobody knows"), "{refused}");

    let counts = node.receiver.counts();
    assert_eq!((&counts["steps"], &counts["refused_reporters"]), (&json!(2), &json!(3)), "{counts}");
    let steps = node.recorded.steps();
    assert!(steps.iter().all(|step| step.node.as_deref() == Some("n1")), "the node is the agent's");
}

#[test]
fn a_pod_reports_for_itself() {
    let cgroup = "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod11ee.slice/cri-x.scope";
    let node = Node::new(StepReports::Owned, cgroup, "9 1");
    assert_eq!(node.report("train/llama-0"), json!({"acked": 1}));
    assert!(node.report("train/llama-1")["error"].is_string());
    // The root of a container ends no hold.
    if own_uid() == 0 {
        let hold = b"{\"event\":\"release\",\"job_id\":\"7\"}\n";
        let (status, answer) = request(connect(&node.socket()), "POST", "/v1/events", "", hold);
        assert_eq!(status, 400);
        assert!(answer["errors"][0].as_str().unwrap().contains("root of a container"), "{answer}");
    }
}

#[test]
fn known_jobs_are_those_on_the_node() {
    let node = Node::new(StepReports::Known, "/user.slice", "9 1");
    node.hold("8", own_uid() + 1);
    assert_eq!(node.report("8"), json!({"acked": 1}));
    assert_eq!(node.report("train/llama-0"), json!({"acked": 1}));
    assert_eq!(node.report_over_tcp("8").0, 200);
    assert_eq!(node.report_over_tcp("4711").0, 400);
    assert!(node.report("4711")["error"].is_string());
}

#[test]
fn root_of_the_node_reports_for_all() {
    let node = Node::new(StepReports::Owned, "/user.slice", "9");
    let expected = own_uid() == 0;
    assert_eq!(node.report("4711")["acked"].is_number(), expected);
}

#[test]
fn invented_jobs_and_ranks_are_few() {
    let node = Node::new(StepReports::Any, "/user.slice", "9 1");
    let body: String = (0..200).map(|job| line(&job.to_string())).collect();
    let (_, answer) = request(connect(&node.socket()), "POST", "/v1/steps", "", body.as_bytes());
    assert_eq!((&answer["accepted"], &answer["rejected"]), (&json!(64), &json!(136)), "{answer}");
    let ranks: String =
        (0..2_000).map(|rank| line("0").replace("\"rank\":0", &format!("\"rank\":{rank}"))).collect();
    let (_, answer) = request(connect(&node.socket()), "POST", "/v1/steps", "", ranks.as_bytes());
    assert_eq!(answer["accepted"], json!(1_024));
    assert_eq!(node.receiver.counts()["refused_excess"], json!(136 + 976));
}
