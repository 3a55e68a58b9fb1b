//! What an agent reads on its node: the exporter's pages, the kubelet's answers, files of
//! processes and their cgroups, lines of the kernel.

use std::collections::BTreeSet;
use std::fs;
use std::hint::black_box;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use prost::Message;
use tidegate_collect::dcgm::{Dcgm, DcgmOptions};
use tidegate_collect::holds::ScanRoots;
use tidegate_collect::kube::v1::{
    AllocatableResourcesResponse, CdiDevice, ClaimResource, ContainerDevices, ContainerResources,
    DynamicResource, ListPodResourcesResponse, PodResources,
};
use tidegate_collect::kube::{ReplicaCounts, pod_holds};
use tidegate_collect::{Reading, Sink, xid};
use tidegate_events::Event;

use super::{Parser, Target, files_of, lines, of_text};

pub const TARGETS: [Target; 4] = [
    Target {
        name: "dcgm",
        start: || {
            let mut exporter = Exporter::start();
            Box::new(move |page| exporter.answer(page))
        },
        seeds: || files_of("crates/collect/tests/live/dcgm", "prom"),
    },
    Target { name: "pods", start: || Box::new(pods), seeds: pod_seeds },
    Target { name: "cgroups", start: cgroups, seeds: || lines(PROCESSES) },
    Target { name: "xid", start: || of_text(xid::parse), seeds: || lines(XIDS) },
];

const XIDS: &[&str] = &[
    "NVRM: Xid (PCI:0000:41:00): 79, pid=1234, name=python, GPU has fallen off the bus.",
    "NVRM: Xid (PCI:0000:41:00 GPU-I:05): 94, pid='<unknown>', Contained: SM (0x1)",
    "nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 28006, Non-fatal, Link 46 MC TS crumbstore",
];
/// `cgroup`, `environ`, `status` and `cgroup.procs`.
const PROCESSES: &[&str] = &[
    "0::/system.slice/slurmstepd.scope/job_7/step_0/user/task_0\n\x1eSLURM_JOB_ID=7\0SLURM_PROCID=0\0SLURM_ARRAY_JOB_ID=5\0SLURM_ARRAY_TASK_ID=2\0\x1eName:\tx\nUid:\t1000\t1000\t0\t0\nNSpid:\t7\n\x1e7\n",
    "9:memory:/slurm_n1/uid_1000/job_7/step_batch\n0::/\n\x1eSLURM_JOB_ID=7\0\x1eUid:\t0\t0\t0\t0\nNSpid:\t7\t1\n\x1e7\n8\n",
];

struct Ignored;

impl Sink for Ignored {
    fn reading(&self, reading: Reading) {
        black_box(reading);
    }

    fn event(&self, event: Event) {
        black_box(event.encode_to_vec());
    }
}

/// A dcgm-exporter that the real source asks, over and over.
struct Exporter {
    listener: TcpListener,
    /// A connection whose request is not answered yet.
    asking: Option<TcpStream>,
    _dcgm: Dcgm,
}

impl Exporter {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let options = DcgmOptions {
            url: format!("http://{}/metrics", listener.local_addr().unwrap()),
            every: Duration::ZERO,
            patience: Duration::from_secs(60),
            ..DcgmOptions::default()
        };
        let dcgm = Dcgm::start(options, Arc::new(Ignored)).unwrap();
        Self { listener, asking: None, _dcgm: dcgm }
    }

    /// Answers with a page, and returns when the source asks again: then it has parsed it.
    fn answer(&mut self, page: &[u8]) {
        let mut stream = self.asking.take().unwrap_or_else(|| self.asked(None));
        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", page.len());
        stream.write_all(&[head.as_bytes(), page].concat()).unwrap();
        self.asking = Some(self.asked(Some(stream)));
    }

    /// Waits for the next request, on this connection or on another.
    fn asked(&self, mut stream: Option<TcpStream>) -> TcpStream {
        loop {
            let mut asked = stream.take().unwrap_or_else(|| self.listener.accept().unwrap().0);
            let (mut head, mut part) = (Vec::new(), [0; 4096]);
            while !head.ends_with(b"\r\n\r\n") {
                match asked.read(&mut part) {
                    Ok(read @ 1..) => head.extend_from_slice(&part[..read]),
                    _ => break,
                }
            }
            if !head.is_empty() {
                return asked;
            }
        }
    }
}

fn pod_seeds() -> Vec<Vec<u8>> {
    let device = |resource: &str, ids: &[&str]| ContainerDevices {
        resource_name: resource.into(),
        device_ids: ids.iter().map(|id| (*id).to_owned()).collect(),
        ..ContainerDevices::default()
    };
    let claim = ClaimResource {
        cdi_devices: vec![CdiDevice { name: "k8s.gpu.nvidia.com/claim=x".into() }],
        driver_name: "gpu.nvidia.com".into(),
        pool_name: "n1".into(),
        device_name: "gpu-0".into(),
    };
    let container = ContainerResources {
        name: "train".into(),
        devices: vec![
            device("nvidia.com/gpu", &["GPU-604ac76c-d9cf-fef3-62e9-d92044ab6e52::1", "GPU-1"]),
            device("nvidia.com/mig-1g.10gb", &["MIG-604ac76c-d9cf-fef3-62e9-d92044ab6e52", "MIG-GPU-1/3/0"]),
        ],
        dynamic_resources: vec![DynamicResource {
            claim_resources: vec![claim],
            ..DynamicResource::default()
        }],
        ..ContainerResources::default()
    };
    let devices = container.devices.clone();
    let pod = PodResources { name: "llm-0".into(), namespace: "ml".into(), containers: vec![container] };
    vec![
        ListPodResourcesResponse { pod_resources: vec![pod] }.encode_to_vec(),
        AllocatableResourcesResponse { devices, ..AllocatableResourcesResponse::default() }.encode_to_vec(),
    ]
}

fn pods(input: &[u8]) {
    let allocatable = AllocatableResourcesResponse::decode(input).unwrap_or_default();
    let replicas = ReplicaCounts::count(&allocatable.devices);
    if let Ok(response) = ListPodResourcesResponse::decode(input) {
        black_box(pod_holds(&response.pod_resources, &replicas));
    }
}

/// One process of one job, in made-up folders.
fn cgroups() -> Parser {
    let folder = tempfile::tempdir().unwrap();
    let roots = ScanRoots { cgroup: folder.path().join("cgroup"), proc: folder.path().join("proc") };
    let (process, job) = (roots.proc.join("7"), roots.cgroup.join("system.slice/slurmstepd.scope/job_7"));
    fs::create_dir_all(&process).unwrap();
    fs::create_dir_all(&job).unwrap();
    let files =
        [process.join("cgroup"), process.join("environ"), process.join("status"), job.join("cgroup.procs")];
    Box::new(move |input| {
        let _folder = &folder;
        let mut parts = input.split(|byte| *byte == b'\x1e');
        for file in &files {
            fs::write(file, parts.next().unwrap_or_default()).unwrap();
        }
        black_box((roots.job_of(7), roots.proven_job_of(7), roots.jobs()));
        black_box(roots.names(&BTreeSet::from(["7".to_owned()])));
    })
}
