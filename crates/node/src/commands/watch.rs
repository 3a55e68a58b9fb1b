//! `tidegate watch`: what happens to a scheduler's jobs and nodes, to the log.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};
use tidegate_collect::agent::AgentOptions;
use tidegate_collect::slurm::{self, SlurmOptions};

use super::collector::CollectorArgs;
use crate::CommandResult;
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
    #[command(flatten)]
    collector: CollectorArgs,
    /// How often slurmctld is asked for its jobs
    #[arg(long, value_name = "TIME", env = "TIDEGATE_INTERVAL", default_value = "5s", value_parser = duration)]
    interval: Duration,
    /// How often it is asked for nodes, partitions and reservations
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = duration)]
    inventory: Duration,
    /// Folder where records wait until the log has them, and where it is remembered what was told
    #[arg(long, value_name = "DIR", env = "TIDEGATE_SPOOL", default_value = "/var/lib/tidegate-watch")]
    spool: PathBuf,
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

fn slurm(args: SlurmArgs) -> CommandResult {
    let cluster = &args.collector.cluster;
    let watched = SlurmOptions {
        interval: args.interval,
        inventory_interval: args.inventory,
        state: Some(args.spool.join("slurm")),
        programs: args.programs.clone(),
        conf: args.slurm_conf.clone(),
        ..SlurmOptions::new(cluster.clone())
    };
    // Node events name their nodes.
    let options = AgentOptions::of_node(cluster, "", args.collector.spool(args.spool.clone()));
    let options = AgentOptions { source: format!("watch/slurm/{cluster}"), ..options };
    args.collector.run(options, |agent| Ok(slurm::start(watched, agent.sink())?))
}
