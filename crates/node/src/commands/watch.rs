//! `tidegate watch`: follows a scheduler's jobs and nodes, and delivers their events to the log.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};
use tidegate_collect::agent::AgentOptions;
use tidegate_collect::slurm::{self, SlurmOptions};

use super::collector::CollectorArgs;
use crate::error::CommandResult;
use crate::units::duration;

/// Watch a scheduler
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  tidegate watch slurm --cluster east --log kafka://kafka-0:9092")]
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
  tidegate watch slurm --cluster trial --log http://127.0.0.1:8433 --spool ./spool

Run one watcher per slurmctld, on any machine, as a user for whom squeue and scontrol show all jobs.
After downtime the watcher recovers what happened and records it once: everything with slurmdbd,
otherwise as much as slurmctld remembers (MinJobAge).")]
struct SlurmArgs {
    #[command(flatten)]
    collector: CollectorArgs,
    /// How often to query slurmctld for jobs
    #[arg(long, value_name = "TIME", env = "TIDEGATE_INTERVAL", default_value = "5s", value_parser = duration)]
    interval: Duration,
    /// How often to query nodes, partitions and reservations
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = duration)]
    inventory: Duration,
    /// Folder for records that wait for the log, and for the watcher's own state
    #[arg(long, value_name = "DIR", env = "TIDEGATE_SPOOL", default_value = "/var/lib/tidegate-watch")]
    spool: PathBuf,
    /// Folder of squeue, scontrol, sacct and sacctmgr, if they are not on the PATH
    #[arg(long, value_name = "DIR")]
    programs: Option<PathBuf>,
    /// slurm.conf, if the programs do not find it
    #[arg(long, value_name = "FILE", env = "SLURM_CONF")]
    slurm_conf: Option<PathBuf>,
}

/// Runs the watcher until it is asked to end or refused.
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
    let options = AgentOptions::for_node(cluster, "", args.collector.spool(args.spool.clone()));
    let options = AgentOptions { source: format!("watch/slurm/{cluster}"), ..options };
    args.collector.run(options, |agent| Ok(slurm::start(watched, agent.sink())?))
}
