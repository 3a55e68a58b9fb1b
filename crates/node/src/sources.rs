//! The agent's sources and receiver: what runs beside its core.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tidegate_collect::agent::{Agent, AgentStats};
use tidegate_collect::dcgm::{Dcgm, DcgmOptions};
use tidegate_collect::demo::{self, DemoOptions, DemoSource};
use tidegate_collect::holds::{HoldOptions, HoldWatch, NodeHolds, ScanRoots};
use tidegate_collect::kube::{KubeOptions, KubeWatch, Tracker};
use tidegate_collect::nvml::{self, NvmlOptions, NvmlSource};
use tidegate_collect::receiver::{Receiver, ReceiverOptions, ReceiverParts, StepReports};
use tidegate_collect::reporters::{JobsOfNode, POD_LOGS};

use tidegate_collect::Sink;

use crate::error::CommandError;

/// Source of GPU readings.
#[derive(Debug, Clone)]
pub enum Source {
    Nvml { lib_path: Option<PathBuf>, kernel_log: Option<PathBuf>, interval: Duration },
    Dcgm { url: String },
    Demo { interval: Duration },
}

/// What to start.
#[derive(Debug, Clone)]
pub struct SourceOptions {
    pub node: String,
    pub source: Source,
    pub socket: Option<PathBuf>,
    pub socket_group: Option<String>,
    pub listen: Option<SocketAddr>,
    /// Users beside root that may report holds.
    pub event_uids: Vec<u32>,
    pub step_reports: StepReports,
    /// The kubelet's socket, on a Kubernetes node.
    pub kubelet: Option<PathBuf>,
    /// Folder of the spool, where sources also keep their checkpoints.
    pub state: PathBuf,
}

/// Running sources and receiver. Dropping it stops them.
#[derive(Debug)]
pub struct Sources {
    parts: Arc<Parts>,
    /// Declared before the others: it ends first, because its status queries them.
    _receiver: Option<Receiver>,
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
        // Tracks which Slurm job holds which GPU; without Slurm it has nothing to do.
        let hold_options = HoldOptions::new(options.node.clone(), options.state.join("holds.json"));
        let holds = Arc::new(NodeHolds::new(hold_options, agent.sink())?);
        // It adds job ids to the processes of readings, so readings pass through it.
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
                let options = DemoOptions { interval: *interval, ..DemoOptions::for_node(&options.node) };
                Values::Demo { _source: demo::start(options, sink.clone())? }
            }
        };
        let kube = options.kubelet.clone().map(|socket| pods(socket, options, agent)).transpose()?;
        let watch = HoldWatch::start(Arc::clone(&holds))?;
        let parts = Arc::new(Parts { values, kube, _watch: watch });
        let receiver = Self::receiver(options, agent, &parts, holds)?;
        Ok(Self { parts, _receiver: receiver })
    }

    fn receiver(
        options: &SourceOptions,
        agent: &Arc<Agent>,
        parts: &Arc<Parts>,
        holds: Arc<NodeHolds>,
    ) -> Result<Option<Receiver>, CommandError> {
        if options.socket.is_none() && options.listen.is_none() {
            return Ok(None);
        }
        let (for_status, of) = (Arc::clone(agent), Arc::clone(parts));
        let receiver_parts = ReceiverParts {
            sink: agent.sink(),
            jobs: Some(Arc::new(JobsOfNode::new(holds.clone(), ScanRoots::default(), POD_LOGS.into()))),
            holds: Some(holds),
            status: Arc::new(move || status(&for_status.stats(), &of)),
        };
        let listen = ReceiverOptions {
            socket: options.socket.clone(),
            group: options.socket_group.clone(),
            tcp: options.listen,
            event_uids: options.event_uids.clone(),
            step_reports: options.step_reports,
            ..ReceiverOptions::new(options.node.clone())
        };
        Ok(Some(Receiver::start(listen, receiver_parts)?))
    }

    /// Version of the GPU driver, if known.
    pub fn driver_version(&self) -> Option<String> {
        match &self.parts.values {
            Values::Nvml(nvml) => nvml.status().driver_version,
            Values::Dcgm(_) | Values::Demo { .. } => None,
        }
    }
}

/// Starts to poll the kubelet for the holds of pods.
fn pods(socket: PathBuf, options: &SourceOptions, agent: &Agent) -> Result<KubeWatch, CommandError> {
    let tracker = Tracker::new(options.node.clone(), options.state.join("pods.json"), agent.sink())?;
    Ok(KubeWatch::start(KubeOptions { socket, ..KubeOptions::default() }, Arc::new(tracker))?)
}

/// The answer of `GET /v1/status`.
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
