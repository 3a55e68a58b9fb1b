//! The Kubernetes source against a stand-in kubelet, whose pod-resources API is generated from the
//! same file.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tempfile::TempDir;
use tidegate_collect::kube::{KubeOptions, KubeWatch, Tracker};
use tidegate_events::{Event, v1 as events};
use tokio::net::UnixListener;
use tokio::runtime::Runtime;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::{Request, Response, Status};

use crate::support::Recorder;

#[allow(clippy::all, clippy::pedantic, missing_docs)]
mod v1 {
    include!(concat!(env!("OUT_DIR"), "/server/v1.rs"));
}

use v1::pod_resources_lister_server::{PodResourcesLister, PodResourcesListerServer};

/// Answers of the stand-in kubelet.
#[derive(Default)]
struct Node {
    pods: Vec<v1::PodResources>,
    devices: Vec<v1::ContainerDevices>,
    /// Whether polls hang.
    hangs: bool,
    /// Number of polls.
    asked: u64,
}

#[derive(Clone, Default)]
struct Kubelet(Arc<Mutex<Node>>);

#[tonic::async_trait]
impl PodResourcesLister for Kubelet {
    async fn list(
        &self,
        _: Request<v1::ListPodResourcesRequest>,
    ) -> Result<Response<v1::ListPodResourcesResponse>, Status> {
        let (hangs, pod_resources) = {
            let mut node = self.0.lock().unwrap();
            node.asked += 1;
            (node.hangs, node.pods.clone())
        };
        if hangs {
            std::future::pending::<()>().await;
        }
        Ok(Response::new(v1::ListPodResourcesResponse { pod_resources }))
    }

    async fn get_allocatable_resources(
        &self,
        _: Request<v1::AllocatableResourcesRequest>,
    ) -> Result<Response<v1::AllocatableResourcesResponse>, Status> {
        let devices = self.0.lock().unwrap().devices.clone();
        Ok(Response::new(v1::AllocatableResourcesResponse { devices, ..Default::default() }))
    }

    async fn get(
        &self,
        _: Request<v1::GetPodResourcesRequest>,
    ) -> Result<Response<v1::GetPodResourcesResponse>, Status> {
        Err(Status::unimplemented("not asked for"))
    }
}

impl Kubelet {
    /// Serves on a new socket, as a starting kubelet does. Ends with the runtime.
    fn serve(&self, socket: &Path) -> Runtime {
        std::fs::remove_file(socket).ok();
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let listener = {
            let _inside = runtime.enter();
            UnixListener::bind(socket).unwrap()
        };
        let server =
            tonic::transport::Server::builder().add_service(PodResourcesListerServer::new(self.clone()));
        runtime.spawn(server.serve_with_incoming(UnixListenerStream::new(listener)));
        runtime
    }

    fn set(&self, pods: Vec<v1::PodResources>) {
        self.0.lock().unwrap().pods = pods;
    }

    /// Waits for two more polls: the first answer may have been in progress.
    fn wait_for_polls(&self) {
        let before = self.0.lock().unwrap().asked;
        crate::support::wait_until("the kubelet is asked", || self.0.lock().unwrap().asked >= before + 2);
    }
}

fn pod(name: &str, resource: &str, ids: &[&str]) -> v1::PodResources {
    let devices = v1::ContainerDevices {
        resource_name: resource.into(),
        device_ids: ids.iter().map(|&id| id.into()).collect(),
        topology: None,
    };
    let container = v1::ContainerResources { name: "c".into(), devices: vec![devices], ..Default::default() };
    v1::PodResources { name: name.into(), namespace: "ml".into(), containers: vec![container] }
}

struct Setup {
    kubelet: Kubelet,
    recorded: Arc<Recorder>,
    tracker: Arc<Tracker>,
    socket: PathBuf,
    folder: TempDir,
}

fn setup() -> Setup {
    setup_in(tempfile::tempdir().unwrap())
}

/// In a folder that an earlier agent may have used.
fn setup_in(folder: TempDir) -> Setup {
    let recorded = Recorder::new();
    let tracker = Tracker::new("n1", folder.path().join("pods.json"), Arc::clone(&recorded) as _);
    let tracker = Arc::new(tracker.unwrap());
    Setup {
        kubelet: Kubelet::default(),
        recorded,
        tracker,
        socket: folder.path().join("kubelet.sock"),
        folder,
    }
}

impl Setup {
    fn watch(&self, settling: Duration) -> KubeWatch {
        let options = KubeOptions {
            socket: self.socket.clone(),
            every: Duration::from_millis(20),
            patience: Duration::from_millis(500),
            settling,
        };
        KubeWatch::start(options, Arc::clone(&self.tracker) as _).unwrap()
    }

    /// Waits for this many job events and returns them.
    fn events(&self, count: usize) -> Vec<events::JobEvent> {
        self.recorded.wait("holds", |recorded| {
            let jobs: Vec<_> = recorded
                .events
                .iter()
                .map(|event| match event {
                    Event::Job(job) => job.clone(),
                    other => panic!("{other:?}"),
                })
                .collect();
            (jobs.len() >= count).then_some(jobs)
        })
    }
}

#[test]
fn pods_hold_and_release_devices() {
    let setup = setup();
    let _kubelet = setup.kubelet.serve(&setup.socket);
    setup.kubelet.set(vec![
        pod("a", "nvidia.com/gpu", &["GPU-0", "GPU-1"]),
        pod("b", "nvidia.com/mig-1g.10gb", &["MIG-5"]),
        pod("c", "cpu.example/gpu", &["GPU-9"]),
    ]);
    let watch = setup.watch(Duration::ZERO);
    let held = setup.events(3);
    assert_eq!(held.len(), 3);
    for event in &held {
        assert_eq!(event.kind(), events::JobEventKind::DeviceHeld);
        assert_eq!(event.hold_quality.as_deref(), Some("EXACT"));
        assert_eq!(
            (event.hold_evidence.as_deref(), event.node.as_deref()),
            (Some("pod_resources"), Some("n1"))
        );
        assert_eq!(event.share_milli, Some(1_000));
    }
    let devices: Vec<_> =
        held.iter().map(|e| (e.job_id.as_str(), e.gpu_uuid.as_deref(), e.mig_uuid.as_deref())).collect();
    let expected =
        [("ml/a", Some("GPU-0"), None), ("ml/a", Some("GPU-1"), None), ("ml/b", None, Some("MIG-5"))];
    assert_eq!(devices, expected);

    // One pod ends and another gets its devices; unchanged holds are not repeated.
    setup
        .kubelet
        .set(vec![pod("d", "nvidia.com/gpu", &["GPU-0"]), pod("b", "nvidia.com/mig-1g.10gb", &["MIG-5"])]);
    let all = setup.events(6);
    assert_eq!(all.len(), 6);
    for (released, before) in all[3..5].iter().zip(&held) {
        assert_eq!(released.kind(), events::JobEventKind::DeviceReleased);
        assert_eq!((&released.hold_id, &released.job_id), (&before.hold_id, &before.job_id));
        let at = |event: &events::JobEvent| event.envelope.as_ref().unwrap().event_time_ms;
        assert!(at(released) >= at(before));
    }
    assert_eq!((all[5].kind(), all[5].job_id.as_str()), (events::JobEventKind::DeviceHeld, "ml/d"));
    assert_ne!(all[5].hold_id, held[0].hold_id);
    let status = watch.status();
    assert_eq!((status.answering, status.held, status.failures), (true, 2, 0));
}

#[test]
fn shared_devices_are_estimates() {
    let setup = setup();
    let _kubelet = setup.kubelet.serve(&setup.socket);
    let all = ["GPU-0::0", "GPU-0::1", "GPU-0::2", "GPU-0::3", "GPU-1"].map(String::from).to_vec();
    setup.kubelet.0.lock().unwrap().devices = vec![v1::ContainerDevices {
        resource_name: "nvidia.com/gpu.shared".into(),
        device_ids: all,
        topology: None,
    }];
    setup.kubelet.set(vec![
        pod("a", "nvidia.com/gpu.shared", &["GPU-0::3"]),
        pod("b", "nvidia.com/gpu.shared", &["GPU-0::0", "GPU-0::1"]),
        // The number of replicas of this one is unknown.
        pod("c", "nvidia.com/mig-2g.20gb.shared", &["MIG-7::1"]),
    ]);
    let _watch = setup.watch(Duration::ZERO);
    let held = setup.events(3);
    let shares: Vec<_> = held.iter().map(|event| (event.gpu_uuid.as_deref(), event.share_milli)).collect();
    assert_eq!(shares, [(Some("GPU-0"), Some(250)), (Some("GPU-0"), Some(500)), (None, None)]);
    assert!(held.iter().all(|event| event.hold_quality.as_deref() == Some("SHARED_ESTIMATED")));
    assert_eq!(held[2].mig_uuid.as_deref(), Some("MIG-7"));
}

#[test]
fn devices_without_uuid_are_unknown_and_garbage_is_harmless() {
    let setup = setup();
    let _kubelet = setup.kubelet.serve(&setup.socket);
    let claim = |driver: &str, device: &str| v1::ClaimResource {
        driver_name: driver.into(),
        pool_name: "n1".into(),
        device_name: device.into(),
        ..Default::default()
    };
    let mut claims = pod("dra", "nvidia.com/gpu", &[]);
    claims.containers[0].dynamic_resources = vec![v1::DynamicResource {
        claim_name: "x".into(),
        claim_namespace: "ml".into(),
        claim_resources: vec![
            claim("gpu.nvidia.com", "gpu-3"),
            claim("nic.example", "nic-0"),
            claim("gpu.nvidia.com", ""),
        ],
    }];
    let mut twice = pod("twice", "nvidia.com/gpu", &["GPU-2"]);
    twice.containers.push(twice.containers[0].clone());
    setup.kubelet.set(vec![
        claims,
        pod("gke", "nvidia.com/gpu", &["nvidia0"]),
        pod("", "nvidia.com/gpu", &["GPU-8"]),
        pod("new\nline", "nvidia.com/gpu", &["GPU-8"]),
        pod(&"x".repeat(2_000), "nvidia.com/gpu", &["GPU-8"]),
        pod("odd", "nvidia.com/gpu", &["", "\u{0}", &"y".repeat(2_000)]),
        pod("bare", "", &[]),
        twice,
    ]);
    let _watch = setup.watch(Duration::ZERO);
    let held = setup.events(3);
    setup.kubelet.wait_for_polls();
    assert_eq!(setup.events(3).len(), 3);
    let of = |job: &str| held.iter().find(|event| event.job_id == job).unwrap();
    let dra = of("ml/dra");
    assert_eq!(
        (dra.hold_quality.as_deref(), dra.gpu_uuid.as_deref(), dra.share_milli),
        (Some("UNKNOWN"), None, None)
    );
    assert!(dra.hold_id.as_ref().unwrap().contains("gpu.nvidia.com/n1/gpu-3"), "{dra:?}");
    assert_eq!(of("ml/gke").hold_quality.as_deref(), Some("UNKNOWN"));
    assert_eq!(
        of("ml/twice").gpu_uuid.as_deref(),
        Some("GPU-2"),
        "containers of one pod that share a device"
    );
}

#[test]
fn a_kubelet_that_is_down_or_hangs_ends_no_hold() {
    let setup = setup();
    let watch = setup.watch(Duration::from_secs(3_600));
    crate::support::wait_until("a failure is counted", || watch.status().failures > 0);
    assert!(
        watch.status().last_failure.unwrap().contains("mount the folder"),
        "an absent socket is explained"
    );

    let first = setup.kubelet.serve(&setup.socket);
    setup.kubelet.set(vec![pod("a", "nvidia.com/gpu", &["GPU-0"])]);
    assert_eq!(setup.events(1).len(), 1);
    // It restarts on a new socket and does not know its pods yet.
    first.shutdown_background();
    crate::support::wait_until("it is missed", || !watch.status().answering);
    setup.kubelet.set(Vec::new());
    let second = setup.kubelet.serve(&setup.socket);
    setup.kubelet.wait_for_polls();
    assert_eq!(setup.events(1).len(), 1, "a kubelet that has just come back ends no hold");
    // New holds count at once.
    setup.kubelet.set(vec![pod("b", "nvidia.com/gpu", &["GPU-1"])]);
    assert_eq!(setup.events(2)[1].job_id, "ml/b");

    setup.kubelet.0.lock().unwrap().hangs = true;
    crate::support::wait_until("it hangs", || !watch.status().answering);
    assert!(watch.status().last_failure.unwrap().contains("no answer within"), "{:?}", watch.status());
    setup.kubelet.0.lock().unwrap().hangs = false;
    crate::support::wait_until("it answers again", || watch.status().answering);
    assert_eq!(setup.events(2).len(), 2);
    drop(second);

    // A server that does not speak gRPC.
    std::fs::remove_file(&setup.socket).unwrap();
    let nonsense = std::os::unix::net::UnixListener::bind(&setup.socket).unwrap();
    std::thread::spawn(move || {
        for stream in nonsense.incoming().flatten() {
            std::io::Write::write_all(&mut { stream }, b"HTTP/1.1 400 Bad Request\r\n\r\n").ok();
        }
    });
    crate::support::wait_until("nonsense is no answer", || !watch.status().answering);
    assert_eq!(setup.events(2).len(), 2);
}

#[test]
fn a_restarted_agent_continues_its_holds() {
    let before = setup();
    let kubelet = before.kubelet.serve(&before.socket);
    before.kubelet.set(vec![pod("a", "nvidia.com/gpu", &["GPU-0"]), pod("b", "nvidia.com/gpu", &["GPU-1"])]);
    let watch = before.watch(Duration::ZERO);
    let held = before.events(2);
    drop(watch);

    let after = setup_in(before.folder);
    before.kubelet.set(vec![pod("b", "nvidia.com/gpu", &["GPU-1"])]);
    let _watch = after.watch(Duration::ZERO);
    let events = after.events(1);
    assert_eq!(
        (events[0].kind(), &events[0].hold_id),
        (events::JobEventKind::DeviceReleased, &held[0].hold_id)
    );
    before.kubelet.wait_for_polls();
    assert_eq!(after.events(1).len(), 1, "what is still held is not reported again");
    drop(kubelet);
}

/// A kubelet with one pod.
pub fn serve_one_pod(socket: &Path) -> Runtime {
    let kubelet = Kubelet::default();
    kubelet.set(vec![pod("a", "nvidia.com/gpu", &["GPU-0"])]);
    kubelet.serve(socket)
}
