//! `tidegate watch`: what happens to a scheduler's jobs and nodes, to the log.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;
use std::{fs, io};

use clap::{Args, Subcommand};
use tidegate_collect::agent::spool::SpoolOptions;
use tidegate_collect::agent::{Agent, AgentOptions, End};
use tidegate_collect::slurm::{self, Deliver, SlurmOptions};
use tidegate_events::Event;

use super::agent::{EXIT_CONFLICT, PATIENCE, block_signals, spool_size, wait_for_signals};
use crate::CommandResult;
use crate::destination::DestinationArgs;
use crate::units::duration;

/// Watch a scheduler
#[derive(Debug, Args)]
pub struct WatchArgs {
    #[command(subcommand)]
    scheduler: Scheduler,
}

#[derive(Debug, Subcommand)]
enum Scheduler {
    Slurm(SlurmArgs),
}

/// Watch a Slurm cluster
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  tidegate watch slurm --cluster east --log kafka://kafka-0:9092
  tidegate watch slurm --cluster trial --log http://127.0.0.1:8428 --spool ./spool

Runs beside one slurmctld, on any machine and as any user for whom squeue and scontrol work and show all jobs. What happened
while it was down is found again and told once: with slurmdbd all of it, without as much as slurmctld remembers (MinJobAge).")]
struct SlurmArgs {
    /// Name of the cluster, as its agents have it
    #[arg(long, value_name = "NAME", env = "TIDEGATE_CLUSTER", default_value = "default")]
    cluster: String,
    #[command(flatten)]
    destination: DestinationArgs,
    /// How often slurmctld is asked for its jobs
    #[arg(long, value_name = "TIME", env = "TIDEGATE_INTERVAL", default_value = "5s", value_parser = duration)]
    interval: Duration,
    /// How often it is asked for nodes, partitions and reservations
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = duration)]
    inventory: Duration,
    /// Folder where records wait until the log has them, and where it is remembered what was told
    #[arg(long, value_name = "DIR", env = "TIDEGATE_SPOOL", default_value = "/var/lib/tidegate-watch")]
    spool: PathBuf,
    /// Bytes that may wait; beyond, the oldest records are dropped, and counted
    #[arg(long, value_name = "SIZE", env = "TIDEGATE_SPOOL_LIMIT", default_value = "1GiB", value_parser = spool_size)]
    spool_limit: u64,
    /// Report under this name although another watcher did so last; that one is refused from now on
    #[arg(long)]
    take_over: bool,
    /// Folder of squeue, scontrol, sacct and sacctmgr, if they are not on the PATH
    #[arg(long, value_name = "DIR")]
    programs: Option<PathBuf>,
    /// slurm.conf, if it is not where the programs look
    #[arg(long, value_name = "FILE", env = "SLURM_CONF")]
    slurm_conf: Option<PathBuf>,
}

pub fn run(args: WatchArgs) -> CommandResult {
    match args.scheduler {
        Scheduler::Slurm(args) => slurm(args),
    }
}

/// Hands events to the spool, and waits until they are on the disk.
struct Spooled(Arc<Agent>);

impl Deliver for Spooled {
    fn deliver(&mut self, events: Vec<Event>) -> io::Result<()> {
        let sink = self.0.sink();
        events.into_iter().for_each(|event| sink.event(event));
        self.0.store().map_err(io::Error::other)
    }
}

fn slurm(args: SlurmArgs) -> CommandResult {
    let signals = block_signals()?;
    let connect = args.destination.connect()?;
    let agent = Arc::new(Agent::start(options(&args), connect)?);
    wait_for_signals(signals, Arc::clone(&agent))?;
    let state = args.spool.join("slurm");
    fs::create_dir_all(&state).map_err(|e| format!("create {}: {e}", state.display()))?;
    let watched = SlurmOptions {
        interval: args.interval,
        inventory_interval: args.inventory,
        state: Some(state),
        programs: args.programs.clone(),
        conf: args.slurm_conf.clone(),
        ..SlurmOptions::new(args.cluster.clone())
    };
    let watcher = slurm::start(watched, Box::new(Spooled(Arc::clone(&agent))))?;
    let end = agent.wait();
    watcher.stop();
    let delivered = agent.stop(PATIENCE, "it was asked to end");
    match end {
        // It has been said, with what to do.
        End::Conflict(_) => Ok(ExitCode::from(EXIT_CONFLICT)),
        End::Asked => {
            if !delivered {
                tracing::info!(spool = %args.spool.display(), "not all could be delivered; the rest waits in the spool");
            }
            Ok(ExitCode::SUCCESS)
        }
    }
}

fn options(args: &SlurmArgs) -> AgentOptions {
    let spool =
        SpoolOptions { dir: args.spool.clone(), limit_bytes: args.spool_limit, take_over: args.take_over };
    let source = format!("watch/slurm/{}", args.cluster);
    // Node events name their nodes.
    AgentOptions { source, ..AgentOptions::of_node(&args.cluster, "", spool) }
}
