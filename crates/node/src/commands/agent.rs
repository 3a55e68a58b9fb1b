//! `tidegate agent`: what this node's GPUs do, to the log.

use std::any::Any;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use clap::{Args, ValueEnum};
use nix::sys::signal::{SigSet, Signal};
use tidegate_collect::Sink;
use tidegate_collect::agent::spool::SpoolOptions;
use tidegate_collect::agent::{Agent, AgentOptions, End};
use tidegate_collect::demo::{self, DemoOptions};
use tidegate_collect::nvml::{self, NvmlOptions};

use crate::destination::DestinationArgs;
use crate::units::{duration, size};
use crate::{CommandError, CommandResult};

/// Another collector reports under this name.
pub const EXIT_CONFLICT: u8 = 4;
/// How long the agent delivers on after it was asked to end; what is left waits in the spool.
const PATIENCE: Duration = Duration::from_secs(5);
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
    #[arg(long, value_enum, default_value = "nvml")]
    source: Source,
    /// The driver's library, where the loader does not find it
    #[arg(long, value_name = "PATH")]
    nvml_lib: Option<PathBuf>,
    /// Name of this node, as the scheduler has it [default: the host's name]
    #[arg(long, value_name = "NAME", env = "TIDEGATE_NODE")]
    node: Option<String>,
    /// Name of the cluster
    #[arg(long, value_name = "NAME", env = "TIDEGATE_CLUSTER", default_value = "default")]
    cluster: String,
    #[command(flatten)]
    destination: DestinationArgs,
    /// Folder where records wait until the log has them
    #[arg(long, value_name = "DIR", env = "TIDEGATE_SPOOL", default_value = "/var/lib/tidegate/agent")]
    spool: PathBuf,
    /// Bytes that may wait; beyond, the oldest records are dropped, and counted
    #[arg(long, value_name = "SIZE", default_value = "1GiB", value_parser = spool_size)]
    spool_limit: u64,
    /// Time between two readings of a device
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = duration)]
    interval: Duration,
    /// Readings of so long make one record
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = duration)]
    flush: Duration,
    /// How often this node's clock is compared with the log's
    #[arg(long, value_name = "TIME", default_value = "10m", value_parser = duration, hide_short_help = true)]
    compare_clocks: Duration,
    /// Report under this name although another collector did so last; that one is refused from now on. For once: two units that
    /// have it would take the name from each other with every start
    #[arg(long)]
    take_over: bool,
    /// Unix socket where jobs report their steps, and prologs who holds which GPU
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// Address where jobs report their steps over HTTP; may be given several times
    #[arg(long, value_name = "HOST:PORT")]
    listen: Vec<String>,
}

/// Where values come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Source {
    /// NVIDIA's driver, by its library
    Nvml,
    /// A dcgm-exporter that runs on this node
    Dcgm,
    /// Made-up values of eight GPUs
    Demo,
}

fn spool_size(text: &str) -> Result<u64, String> {
    match size(text)? {
        bytes if bytes < SPOOL_MIN => Err("a spool needs 16MiB at least".into()),
        bytes => Ok(bytes),
    }
}

pub fn run(args: AgentArgs) -> CommandResult {
    let signals = block_signals()?;
    let connect = args.destination.connect()?;
    let agent = Arc::new(Agent::start(options(&args)?, connect)?);
    wait_for_signals(signals, Arc::clone(&agent))?;
    let running = Running::start(&args, agent.sink())?;
    agent.started(running.driver_version.clone());
    let end = agent.wait();
    drop(running);
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

fn options(args: &AgentArgs) -> Result<AgentOptions, CommandError> {
    let node = match &args.node {
        Some(node) => node.clone(),
        None => rustix::system::uname().nodename().to_string_lossy().into_owned(),
    };
    if node.is_empty() || args.cluster.is_empty() {
        return Err(
            "the names of the node and of the cluster must not be empty; set --node and --cluster".into()
        );
    }
    let spool =
        SpoolOptions { dir: args.spool.clone(), limit_bytes: args.spool_limit, take_over: args.take_over };
    let options = AgentOptions::of_node(&args.cluster, &node, spool);
    Ok(AgentOptions { flush: args.flush, compare_clocks: args.compare_clocks, ..options })
}

/// The source that runs; dropping it ends it.
struct Running {
    driver_version: Option<String>,
    _source: Box<dyn Any>,
}

impl Running {
    // The step reports behind --socket and --listen, and the source dcgm, are yet to be wired in here.
    fn start(args: &AgentArgs, sink: Arc<dyn Sink>) -> Result<Self, CommandError> {
        if args.socket.is_some() || !args.listen.is_empty() {
            return Err("--socket and --listen are not built yet".into());
        }
        match args.source {
            Source::Nvml => {
                let lib_path = args.nvml_lib.clone();
                let options = NvmlOptions { lib_path, interval: args.interval, ..NvmlOptions::default() };
                let source = nvml::start(options, sink)?;
                Ok(Self { driver_version: source.status().driver_version, _source: Box::new(source) })
            }
            Source::Dcgm => Err("the source dcgm is not built yet".into()),
            Source::Demo => {
                let options = DemoOptions { interval: args.interval, ..DemoOptions::default() };
                Ok(Self { driver_version: None, _source: Box::new(demo::start(options, sink)?) })
            }
        }
    }
}

/// From now on SIGTERM and SIGINT wait to be asked for, in this thread and in all that it starts.
fn block_signals() -> Result<SigSet, CommandError> {
    let signals = SigSet::from_iter([Signal::SIGTERM, Signal::SIGINT]);
    signals.thread_block()?;
    Ok(signals)
}

/// The first signal asks the agent to end; the second one ends the process.
fn wait_for_signals(signals: SigSet, agent: Arc<Agent>) -> Result<(), CommandError> {
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
