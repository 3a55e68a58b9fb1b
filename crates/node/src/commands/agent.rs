//! `tidegate agent`: what this node's GPUs do, to the log.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use tidegate_collect::agent::AgentOptions;
use tidegate_collect::dcgm::DEFAULT_URL;

use super::collector::{CollectorArgs, filled};
use crate::CommandResult;
use crate::sources::{Source, SourceOptions, Sources};
use crate::units::duration;

/// Collect what this node's GPUs do
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  tidegate agent --source nvml --cluster east --log kafka://kafka-0:9092
  tidegate agent --source demo --log http://127.0.0.1:8428        (beside: tidegate up --ingest)

Records wait in the spool until the log has them, over restarts of both. SIGTERM delivers what can be delivered within 5 s
and ends with status 0; status 4 says that another collector reports under this name.")]
pub struct AgentArgs {
    /// Where values come from
    #[arg(long, value_enum, env = "TIDEGATE_SOURCE", default_value = "nvml")]
    source: SourceKind,
    #[command(flatten)]
    places: SourcePlaces,
    /// Name of this node, as the scheduler has it [default: the host's name]
    #[arg(long, value_name = "NAME", env = "TIDEGATE_NODE", value_parser = filled)]
    node: Option<String>,
    #[command(flatten)]
    collector: CollectorArgs,
    /// Folder where records wait until the log has them
    #[arg(long, value_name = "DIR", env = "TIDEGATE_SPOOL", default_value = "/var/lib/tidegate-agent")]
    spool: PathBuf,
    /// Time between two readings of a device
    #[arg(long, value_name = "TIME", env = "TIDEGATE_INTERVAL", default_value = "1s", value_parser = duration)]
    interval: Duration,
    /// Readings of so long make one record
    #[arg(long, value_name = "TIME", env = "TIDEGATE_FLUSH", default_value = "10s", value_parser = duration)]
    flush: Duration,
    /// How often this node's clock is compared with the log's
    #[arg(long, value_name = "TIME", default_value = "10m", value_parser = duration, hide_short_help = true)]
    compare_clocks: Duration,
    /// Unix socket where jobs report their steps, and prologs who holds which GPU
    #[arg(long, value_name = "PATH", env = "TIDEGATE_SOCKET")]
    socket: Option<PathBuf>,
    /// Group of the socket; by default every user of the node may report
    #[arg(long, value_name = "GROUP", env = "TIDEGATE_SOCKET_GROUP", requires = "socket")]
    socket_group: Option<String>,
    /// Loopback address where jobs report their steps over HTTP
    #[arg(long, value_name = "HOST:PORT", env = "TIDEGATE_LISTEN")]
    listen: Option<SocketAddr>,
    /// User beside root who may tell which job holds which GPU; may be given several times
    #[arg(long = "event-uid", value_name = "UID", env = "TIDEGATE_EVENT_UIDS", value_delimiter = ',')]
    event_uids: Vec<u32>,
    /// The kubelet's pod-resources socket, on a node of Kubernetes
    #[arg(long, value_name = "PATH", env = "TIDEGATE_KUBELET")]
    kubelet: Option<PathBuf>,
}

/// Where the sources are.
#[derive(Debug, Args)]
pub(super) struct SourcePlaces {
    /// The driver's library, where the loader does not find it
    #[arg(long, value_name = "PATH", env = "TIDEGATE_NVML_LIB")]
    pub nvml_lib: Option<PathBuf>,
    /// The kernel's log, where XIDs are counted exactly
    #[arg(
        long,
        value_name = "PATH",
        env = "TIDEGATE_KERNEL_LOG",
        default_value = "/dev/kmsg",
        hide_short_help = true
    )]
    pub kernel_log: PathBuf,
    /// Page of a dcgm-exporter
    #[arg(long, value_name = "URL", env = "TIDEGATE_DCGM_URL", default_value = DEFAULT_URL)]
    pub dcgm_url: String,
}

/// Where values come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum SourceKind {
    /// NVIDIA's driver, by its library
    Nvml,
    /// A dcgm-exporter that runs on this node
    Dcgm,
    /// Made-up values of eight GPUs
    Demo,
}

pub fn run(args: AgentArgs) -> CommandResult {
    let node = match &args.node {
        Some(node) => node.clone(),
        None => filled(&rustix::system::uname().nodename().to_string_lossy())
            .map_err(|_| "this host has no name; set --node")?,
    };
    let options =
        AgentOptions::of_node(&args.collector.cluster, &node, args.collector.spool(args.spool.clone()));
    let options = AgentOptions { flush: args.flush, compare_clocks: args.compare_clocks, ..options };
    args.collector.run(options, |agent| {
        let sources = Sources::start(&source_options(&args, node), agent)?;
        agent.started(sources.driver_version());
        Ok(sources)
    })
}

fn source_options(args: &AgentArgs, node: String) -> SourceOptions {
    let source = match args.source {
        SourceKind::Nvml => Source::Nvml {
            lib_path: args.places.nvml_lib.clone(),
            kernel_log: Some(args.places.kernel_log.clone()),
            interval: args.interval,
        },
        SourceKind::Dcgm => Source::Dcgm { url: args.places.dcgm_url.clone() },
        SourceKind::Demo => Source::Demo { interval: args.interval },
    };
    SourceOptions {
        node,
        source,
        socket: args.socket.clone(),
        socket_group: args.socket_group.clone(),
        listen: args.listen,
        event_uids: args.event_uids.clone(),
        kubelet: args.kubelet.clone(),
        state: args.spool.clone(),
    }
}
