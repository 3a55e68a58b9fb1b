//! What runs in an agent beside its core: the sources, and the local way in.

use std::fs;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde_json::{Value, json};
use tidegate_collect::agent::{Agent, AgentStats};
use tidegate_collect::dcgm::{Dcgm, DcgmOptions};
use tidegate_collect::demo::{self, DemoOptions, DemoSource};
use tidegate_collect::holds::{HoldOptions, HoldWatch, NodeHolds};
use tidegate_collect::inlet::{Inlet, InletOptions, InletParts};
use tidegate_collect::kube::{Holds, KubeOptions, KubeWatch, Observation, OpenHold, Tracker};
use tidegate_collect::nvml::{self, NvmlOptions, NvmlSource};

use tidegate_collect::Sink;

use crate::CommandError;

/// Where values come from.
#[derive(Debug, Clone)]
pub enum Source {
    Nvml { lib_path: Option<PathBuf>, kernel_log: Option<PathBuf>, interval: Duration },
    Dcgm { url: String },
    Demo { interval: Duration },
}

/// What is to run.
#[derive(Debug, Clone)]
pub struct SourceOptions {
    pub node: String,
    pub source: Source,
    pub socket: Option<PathBuf>,
    pub socket_group: Option<String>,
    pub listen: Option<SocketAddr>,
    /// Users beside root that may tell of holds.
    pub event_uids: Vec<u32>,
    /// The kubelet's socket, where this is a node of Kubernetes.
    pub kubelet: Option<PathBuf>,
    /// Folder of the spool, where sources keep what they must know after a restart.
    pub state: PathBuf,
}

/// What runs; dropping it ends it.
#[derive(Debug)]
pub struct Sources {
    parts: Arc<Parts>,
    /// Ends first, for it asks the others.
    _inlet: Option<Inlet>,
}

#[derive(Debug)]
struct Parts {
    values: Values,
    kube: Option<KubeWatch>,
    _watch: HoldWatch,
}

#[derive(Debug)]
enum Values {
    Nvml(NvmlSource),
    Dcgm(Dcgm),
    Demo { _source: DemoSource },
}

impl Sources {
    pub fn start(options: &SourceOptions, agent: &Arc<Agent>) -> Result<Self, CommandError> {
        let holds = slurm_jobs(options, agent)?;
        // It writes into readings whose the processes are.
        let sink: Arc<dyn Sink> = holds.clone();
        let values = match &options.source {
            Source::Nvml { lib_path, kernel_log, interval } => {
                let mut nvml =
                    NvmlOptions { lib_path: lib_path.clone(), interval: *interval, ..Default::default() };
                nvml.xid.kernel_log.clone_from(kernel_log);
                nvml.xid.position = Some(options.state.join("kernel-log"));
                Values::Nvml(nvml::start(nvml, sink.clone())?)
            }
            Source::Dcgm { url } => Values::Dcgm(Dcgm::start(
                DcgmOptions { url: url.clone(), ..Default::default() },
                sink.clone(),
            )?),
            Source::Demo { interval } => {
                let options = DemoOptions { interval: *interval, ..DemoOptions::of_node(&options.node) };
                Values::Demo { _source: demo::start(options, sink.clone())? }
            }
        };
        let kube = options.kubelet.as_ref().map(|socket| pods(socket, options, agent)).transpose()?;
        let watch = HoldWatch::start(Arc::clone(&holds))?;
        let parts = Arc::new(Parts { values, kube, _watch: watch });
        let inlet = Self::inlet(options, agent, &parts, holds)?;
        Ok(Self { parts, _inlet: inlet })
    }

    fn inlet(
        options: &SourceOptions,
        agent: &Arc<Agent>,
        parts: &Arc<Parts>,
        holds: Arc<NodeHolds>,
    ) -> Result<Option<Inlet>, CommandError> {
        if options.socket.is_none() && options.listen.is_none() {
            return Ok(None);
        }
        let (for_store, for_status, of) = (Arc::clone(agent), Arc::clone(agent), Arc::clone(parts));
        let told = InletParts {
            sink: agent.sink(),
            store: Arc::new(move || for_store.store()),
            holds: Some(holds),
            status: Arc::new(move || status(&for_status.stats(), &of)),
        };
        let listen = InletOptions {
            socket: options.socket.clone(),
            group: options.socket_group.clone(),
            tcp: options.listen,
            event_uids: options.event_uids.clone(),
            ..InletOptions::new(options.node.clone())
        };
        Ok(Some(Inlet::start(listen, told)?))
    }

    /// Version of the GPU driver, where it is known.
    pub fn driver_version(&self) -> Option<String> {
        match &self.parts.values {
            Values::Nvml(nvml) => nvml.status().driver_version,
            Values::Dcgm(_) | Values::Demo { .. } => None,
        }
    }
}

/// Keeps account of which job of Slurm holds which GPU. Where there is no Slurm it has nothing to do.
fn slurm_jobs(options: &SourceOptions, agent: &Arc<Agent>) -> Result<Arc<NodeHolds>, CommandError> {
    let for_store = Arc::clone(agent);
    let store = Arc::new(move || for_store.store());
    let kept = HoldOptions::new(options.node.clone(), options.state.join("holds.json"), store);
    Ok(Arc::new(NodeHolds::new(kept, agent.sink())?))
}

/// Asks the kubelet which pod holds which GPU.
fn pods(socket: &Path, options: &SourceOptions, agent: &Arc<Agent>) -> Result<KubeWatch, CommandError> {
    let file = options.state.join("pods.json");
    let open = match fs::read(&file) {
        Ok(json) => serde_json::from_slice(&json)
            .map_err(|e| format!("{} cannot be read: {e}; remove it", file.display()))?,
        Err(error) if error.kind() == ErrorKind::NotFound => Vec::new(),
        Err(error) => return Err(format!("read {}: {error}", file.display()).into()),
    };
    let tracker = Tracker::new(options.node.clone(), agent.sink(), open);
    let kept = Kept { file, told: Mutex::new(tracker.open()), tracker, agent: Arc::clone(agent) };
    let asked = KubeOptions { socket: socket.to_owned(), ..KubeOptions::default() };
    Ok(KubeWatch::start(asked, Arc::new(kept))?)
}

/// Pods' holds that a restart of the agent does not forget: without them each would begin a second time.
struct Kept {
    file: PathBuf,
    tracker: Tracker,
    /// As the file has them.
    told: Mutex<Vec<OpenHold>>,
    agent: Arc<Agent>,
}

impl Holds for Kept {
    fn observe(&self, seen: Observation) {
        self.tracker.observe(seen);
        let open = self.tracker.open();
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        if *told == open {
            return;
        }
        // What was told must be safe before the file says so: told twice, it is one event.
        let written =
            self.agent.store().and_then(|()| write(&self.file, &open).map_err(|error| error.to_string()));
        match written {
            Ok(()) => *told = open,
            Err(error) => tracing::warn!("{} is not up to date: {error}", self.file.display()),
        }
    }
}

/// Replaces the file at once: a kill leaves the old one or the new one.
fn write(file: &Path, open: &[OpenHold]) -> std::io::Result<()> {
    let new = file.with_extension("new");
    fs::write(&new, serde_json::to_vec(open)?)?;
    fs::rename(&new, file)
}

/// As `GET /v1/status` of the socket tells it.
fn status(agent: &AgentStats, parts: &Parts) -> Value {
    let source = match &parts.values {
        Values::Nvml(nvml) => {
            let now = nvml.status();
            json!({
                "kind": "nvml",
                "devices": now.devices,
                "lost": now.lost,
                "stale": now.stale,
                "driver_version": now.driver_version,
                "kernel_log_read": now.kernel_log_read,
                "kernel_log": now.kernel_log,
                "kernel_records_lost": now.kernel_records_lost,
            })
        }
        Values::Demo { .. } => json!({"kind": "demo"}),
        Values::Dcgm(dcgm) => json!({"kind": "dcgm", "status": dcgm.status()}),
    };
    json!({
        "version": env!("CARGO_PKG_VERSION"),
        "source": source,
        "kubelet": parts.kube.as_ref().map(KubeWatch::status),
        "records": agent.records,
        "delivered": agent.delivered,
        "dropped": agent.dropped,
        "late_readings": agent.late_readings,
        "dead_letters": agent.dead_letters,
        "overrun_events": agent.overrun_events,
        "failed_attempts": agent.failed_attempts,
    })
}
