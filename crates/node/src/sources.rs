//! What runs in an agent beside its core: the sources, and the local way in.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tidegate_collect::agent::{Agent, AgentStats};
use tidegate_collect::dcgm::{Dcgm, DcgmOptions};
use tidegate_collect::demo::{self, DemoOptions, DemoSource};
use tidegate_collect::holds::{HoldOptions, HoldWatch, NodeHolds};
use tidegate_collect::inlet::{Inlet, InletOptions, InletParts};
use tidegate_collect::kube::{KubeOptions, KubeWatch, Tracker};
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
        // Which job of Slurm holds which GPU; where there is no Slurm it has nothing to do.
        let account = HoldOptions::new(options.node.clone(), options.state.join("holds.json"));
        let holds = Arc::new(NodeHolds::new(account, agent.sink())?);
        // It writes into readings whose the processes are.
        let sink: Arc<dyn Sink> = holds.clone();
        let values = match &options.source {
            Source::Nvml { lib_path, kernel_log, interval } => {
                let mut nvml =
                    NvmlOptions { lib_path: lib_path.clone(), interval: *interval, ..Default::default() };
                nvml.xid.kernel_log.clone_from(kernel_log);
                nvml.xid.position = Some(options.state.join("kernel-log.json"));
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
        let kube = options.kubelet.clone().map(|socket| pods(socket, options, agent)).transpose()?;
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
        let (for_status, of) = (Arc::clone(agent), Arc::clone(parts));
        let told = InletParts {
            sink: agent.sink(),
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

/// Asks the kubelet which pod holds which GPU.
fn pods(socket: PathBuf, options: &SourceOptions, agent: &Agent) -> Result<KubeWatch, CommandError> {
    let tracker = Tracker::new(options.node.clone(), options.state.join("pods.json"), agent.sink())?;
    Ok(KubeWatch::start(KubeOptions { socket, ..KubeOptions::default() }, Arc::new(tracker))?)
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
