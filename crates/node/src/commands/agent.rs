//! `tidegate agent`: what this node's GPUs do, to the log.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use clap::{Args, ValueEnum};
use nix::sys::signal::{SigSet, Signal};
use tidegate_collect::agent::spool::SpoolOptions;
use tidegate_collect::agent::{Agent, AgentOptions, End};
use tidegate_collect::dcgm::DEFAULT_URL;

use crate::destination::DestinationArgs;
use crate::sources::{Source, SourceOptions, Sources};
use crate::units::{duration, size};
use crate::{CommandError, CommandResult};

/// Another collector reports under this name.
pub const EXIT_CONFLICT: u8 = 4;
/// How long the agent delivers on after it was asked to end; what is left waits in the spool.
pub(super) const PATIENCE: Duration = Duration::from_secs(5);
/// A spool that holds less could not hold a batch of a large node and what is on its way.
const SPOOL_MIN: u64 = 16 << 20;

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
    /// The driver's library, where the loader does not find it
    #[arg(long, value_name = "PATH", env = "TIDEGATE_NVML_LIB")]
    nvml_lib: Option<PathBuf>,
    /// The kernel's log, where XIDs are counted exactly
    #[arg(
        long,
        value_name = "PATH",
        env = "TIDEGATE_KERNEL_LOG",
        default_value = "/dev/kmsg",
        hide_short_help = true
    )]
    kernel_log: PathBuf,
    /// Page of a dcgm-exporter
    #[arg(long, value_name = "URL", env = "TIDEGATE_DCGM_URL", default_value = DEFAULT_URL)]
    dcgm_url: String,
    /// Name of this node, as the scheduler has it [default: the host's name]
    #[arg(long, value_name = "NAME", env = "TIDEGATE_NODE")]
    node: Option<String>,
    /// Name of the cluster
    #[arg(long, value_name = "NAME", env = "TIDEGATE_CLUSTER", default_value = "default")]
    cluster: String,
    #[command(flatten)]
    destination: DestinationArgs,
    /// Folder where records wait until the log has them
    #[arg(long, value_name = "DIR", env = "TIDEGATE_SPOOL", default_value = "/var/lib/tidegate-agent")]
    spool: PathBuf,
    /// Bytes that may wait; beyond, the oldest records are dropped, and counted
    #[arg(long, value_name = "SIZE", env = "TIDEGATE_SPOOL_LIMIT", default_value = "1GiB", value_parser = spool_size)]
    spool_limit: u64,
    /// Time between two readings of a device
    #[arg(long, value_name = "TIME", env = "TIDEGATE_INTERVAL", default_value = "1s", value_parser = duration)]
    interval: Duration,
    /// Readings of so long make one record
    #[arg(long, value_name = "TIME", env = "TIDEGATE_FLUSH", default_value = "10s", value_parser = duration)]
    flush: Duration,
    /// How often this node's clock is compared with the log's
    #[arg(long, value_name = "TIME", default_value = "10m", value_parser = duration, hide_short_help = true)]
    compare_clocks: Duration,
    /// Report under this name although another collector did so last; that one is refused from now on
    #[arg(long)]
    take_over: bool,
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

pub(super) fn spool_size(text: &str) -> Result<u64, String> {
    match size(text)? {
        bytes if bytes < SPOOL_MIN => Err("a spool needs 16MiB at least".into()),
        bytes => Ok(bytes),
    }
}

pub fn run(args: AgentArgs) -> CommandResult {
    let signals = block_signals()?;
    let node = node(&args)?;
    let connect = args.destination.connect()?;
    let agent = Arc::new(Agent::start(options(&args, &node), connect)?);
    wait_for_signals(signals, Arc::clone(&agent))?;
    let sources = Sources::start(&source_options(&args, node), &agent)?;
    agent.started(sources.driver_version());
    let end = agent.wait();
    drop(sources);
    let reason = match &end {
        End::Asked => "it was asked to end",
        End::Conflict(_) => "another collector reports under its name",
    };
    let delivered = agent.stop(PATIENCE, reason);
    match end {
        // The agent has said it, with what to do.
        End::Conflict(_) => Ok(ExitCode::from(EXIT_CONFLICT)),
        End::Asked => {
            if !delivered {
                tracing::info!(spool = %args.spool.display(), "not all could be delivered; the rest waits in the spool");
            }
            Ok(ExitCode::SUCCESS)
        }
    }
}

/// The name of this node.
fn node(args: &AgentArgs) -> Result<String, CommandError> {
    let node = match &args.node {
        Some(node) => node.clone(),
        None => rustix::system::uname().nodename().to_string_lossy().into_owned(),
    };
    if node.is_empty() || args.cluster.is_empty() {
        return Err(
            "the names of the node and of the cluster must not be empty; set --node and --cluster".into()
        );
    }
    Ok(node)
}

fn options(args: &AgentArgs, node: &str) -> AgentOptions {
    let spool =
        SpoolOptions { dir: args.spool.clone(), limit_bytes: args.spool_limit, take_over: args.take_over };
    let options = AgentOptions::of_node(&args.cluster, node, spool);
    AgentOptions { flush: args.flush, compare_clocks: args.compare_clocks, ..options }
}

fn source_options(args: &AgentArgs, node: String) -> SourceOptions {
    let source = match args.source {
        SourceKind::Nvml => Source::Nvml {
            lib_path: args.nvml_lib.clone(),
            kernel_log: Some(args.kernel_log.clone()),
            interval: args.interval,
        },
        SourceKind::Dcgm => Source::Dcgm { url: args.dcgm_url.clone() },
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

/// From now on SIGTERM and SIGINT wait to be asked for, in this thread and in all that it starts.
pub(super) fn block_signals() -> Result<SigSet, CommandError> {
    let signals = SigSet::from_iter([Signal::SIGTERM, Signal::SIGINT]);
    signals.thread_block()?;
    Ok(signals)
}

/// The first signal asks the agent to end; the second one ends the process.
pub(super) fn wait_for_signals(signals: SigSet, agent: Arc<Agent>) -> Result<(), CommandError> {
    thread::Builder::new().name("signals".into()).spawn(move || {
        if signals.wait().is_ok() {
            agent.ask_to_end();
            drop(agent);
            if signals.wait().is_ok() {
                std::process::exit(130);
            }
        }
    })?;
    Ok(())
}
