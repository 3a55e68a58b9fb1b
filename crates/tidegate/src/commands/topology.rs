//! `tidegate topology import`: imports the switch and rack of nodes.

use std::path::PathBuf;
use std::process::ExitCode;

use chrono::{DateTime, Utc};
use clap::{Args, Subcommand};
use tidegate_import::topology::{label, read};
use tidegate_lake::pipeline::Plan;

use super::{CommandResult, DataArgs, LogArgs, PaceArgs, Workspace, block_on, block_on_one_thread};

/// Import the switch and rack of each node
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  tidegate topology import topology.conf --cluster prod")]
pub struct TopologyArgs {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Import(Box<ImportArgs>),
}

/// Import a table with the columns node, switch and rack, or Slurm's topology.conf
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  tidegate topology import /etc/slurm/topology.conf --cluster prod
  tidegate topology import racks.csv --cluster prod --since 2025-06-01T00:00:00Z

The first known location of a node also applies to the time before it. Then query, for example:
  tidegate sql \"SELECT switches, sum(step_us) / sum(step_reports) AS mean_step_us FROM gang_spread GROUP BY switches\"")]
struct ImportArgs {
    /// File to read
    file: PathBuf,
    /// Cluster of the nodes
    #[arg(long)]
    cluster: String,
    /// Time from which these locations apply, RFC 3339 [default: now]
    #[arg(long, value_name = "TIME")]
    since: Option<DateTime<Utc>>,
    #[command(flatten)]
    data: DataArgs,
    #[command(flatten)]
    log: LogArgs,
    #[command(flatten)]
    pace: PaceArgs,
}

pub fn run(args: TopologyArgs) -> CommandResult {
    let Command::Import(args) = args.command;
    let file = args.file.display();
    let text = std::fs::read_to_string(&args.file).map_err(|e| format!("read {file}: {e}"))?;
    let places = read(&text).map_err(|e| format!("{file} cannot be used: {e}"))?;
    let plan = block_on(Plan::compile(args.data.load_pipelines()?))??;
    let workspace = Workspace::open(&args.data.data, &args.log)?;
    let since = args.since.unwrap_or_else(Utc::now);
    let report =
        label(&places, &args.cluster, since.timestamp_millis(), workspace.log.as_ref(), args.log.topics())?;
    block_on_one_thread(async {
        let mut runner = workspace.runner_of(plan, args.pace.pace()).await?;
        runner.catch_up(&mut |_| {}).await?;
        Ok::<_, super::CommandError>(())
    })??;
    say!("{} nodes at {} switches and in {} racks", report.nodes, report.switches, report.racks);
    say!("events written {}, already present {}", report.events_written, report.events_already_present);
    Ok(ExitCode::SUCCESS)
}
