//! What runs in an agent beside its core: the sources, and the local way in.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tidegate_collect::agent::{Agent, AgentStats};
use tidegate_collect::dcgm::{Dcgm, DcgmOptions};
use tidegate_collect::inlet::{Inlet, InletOptions, InletParts};
use tidegate_collect::kube::KubeWatch;
use tidegate_collect::nvml::{self, NvmlOptions, NvmlSource};

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
}

#[derive(Debug)]
enum Values {
    Nvml(NvmlSource),
    Dcgm(Dcgm),
}

impl Sources {
    pub fn start(options: &SourceOptions, agent: &Arc<Agent>) -> Result<Self, CommandError> {
        let sink = agent.sink();
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
            Source::Demo { .. } => return Err("the source demo is not built yet".into()),
        };
        let parts = Arc::new(Parts { values, kube: None });
        let inlet = Self::inlet(options, agent, &parts)?;
        Ok(Self { parts, _inlet: inlet })
    }

    fn inlet(
        options: &SourceOptions,
        agent: &Arc<Agent>,
        parts: &Arc<Parts>,
    ) -> Result<Option<Inlet>, CommandError> {
        if options.socket.is_none() && options.listen.is_none() {
            return Ok(None);
        }
        let (for_store, for_status, of) = (Arc::clone(agent), Arc::clone(agent), Arc::clone(parts));
        let told = InletParts {
            sink: agent.sink(),
            store: Arc::new(move || for_store.store()),
            holds: None,
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
            Values::Dcgm(_) => None,
        }
    }
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
