//! `tidegate agent`: collects from this node's GPUs and delivers to the log.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use tidegate_collect::agent::AgentOptions;
use tidegate_collect::dcgm::DEFAULT_URL;
use tidegate_collect::receiver::StepReports;

use super::collector::{CollectorArgs, filled};
use crate::error::CommandResult;
use crate::sources::{Source, SourceOptions, Sources};
use crate::units::duration;

/// Collect metrics and events of this node's GPUs
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  tidegate agent --source nvml --cluster east --log kafka://kafka-0:9092
  tidegate agent --source demo --log http://127.0.0.1:8433 --spool ./spool

The second example sends made-up values to a `tidegate up --ingest` on the same machine.
Records wait in the spool until the log has them, across restarts of both. On SIGTERM the agent
delivers for up to 5 s and exits with status 0; status 4 means that another collector reports under
this name.")]
pub struct AgentArgs {
    /// Source of GPU metrics
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
    /// Time that one record of readings spans
    #[arg(long, value_name = "TIME", env = "TIDEGATE_FLUSH", default_value = "10s", value_parser = duration)]
    flush: Duration,
    /// How often to compare this node's clock with the log's
    #[arg(long, value_name = "TIME", default_value = "10m", value_parser = duration, hide_short_help = true)]
    compare_clocks: Duration,
    /// Unix socket for step reports of jobs, and for prologs to report holds
    #[arg(long, value_name = "PATH", env = "TIDEGATE_SOCKET")]
    socket: Option<PathBuf>,
    /// Group of the socket; by default every user of the node may connect
    #[arg(long, value_name = "GROUP", env = "TIDEGATE_SOCKET_GROUP", requires = "socket")]
    socket_group: Option<String>,
    /// Loopback address for step reports over HTTP
    #[arg(long, value_name = "HOST:PORT", env = "TIDEGATE_LISTEN")]
    listen: Option<SocketAddr>,
    /// User beside root that may report which job holds which GPU; may be given several times
    #[arg(long = "event-uid", value_name = "UID", env = "TIDEGATE_EVENT_UIDS", value_delimiter = ',')]
    event_uids: Vec<u32>,
    /// Whose step reports to take
    #[arg(long, value_enum, env = "TIDEGATE_STEP_REPORTS", default_value = "owned")]
    step_reports: StepReportsArg,
    /// The kubelet's pod-resources socket, on a Kubernetes node
    #[arg(long, value_name = "PATH", env = "TIDEGATE_KUBELET")]
    kubelet: Option<PathBuf>,
}

/// Addresses of the sources.
#[derive(Debug, Args)]
pub(super) struct SourcePlaces {
    /// The driver's library, if the loader does not find it
    #[arg(long, value_name = "PATH", env = "TIDEGATE_NVML_LIB")]
    pub nvml_lib: Option<PathBuf>,
    /// The kernel log, for an exact count of XIDs
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

/// Source of GPU metrics
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum SourceKind {
    /// NVIDIA's driver, through NVML
    Nvml,
    /// A dcgm-exporter on this node
    Dcgm,
    /// Simulated values of eight GPUs
    Demo,
}

/// Whose step reports to take
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum StepReportsArg {
    /// Of a job's own processes, its owner, and root: over the socket only
    Owned,
    /// Of every job on this node, whoever reports
    Known,
    /// All of them, where nothing tells which jobs run here
    Any,
}

impl From<StepReportsArg> for StepReports {
    fn from(arg: StepReportsArg) -> Self {
        match arg {
            StepReportsArg::Owned => Self::Owned,
            StepReportsArg::Known => Self::Known,
            StepReportsArg::Any => Self::Any,
        }
    }
}

/// Runs the agent until it is asked to end or refused.
pub fn run(args: AgentArgs) -> CommandResult {
    let node = match &args.node {
        Some(node) => node.clone(),
        None => filled(&rustix::system::uname().nodename().to_string_lossy())
            .map_err(|_| "this host has no name; set --node")?,
    };
    let options =
        AgentOptions::for_node(&args.collector.cluster, &node, args.collector.spool(args.spool.clone()));
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
        step_reports: args.step_reports.into(),
        kubelet: args.kubelet.clone(),
        state: args.spool.clone(),
    }
}
