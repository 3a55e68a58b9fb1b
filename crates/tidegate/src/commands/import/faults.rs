//! `tidegate import faults`: faults of nodes and GPUs from a file.

use std::path::PathBuf;

use clap::Args;
use tidegate_import::{ImportOptions, Kind, Mapping};

use super::super::CommandResult;
use super::write::WriteArgs;
use super::{import_file, zone};

/// Import faults of nodes and GPUs: XIDs, lost GPUs, faults with start and end
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  tidegate import faults faults.csv --cluster prod
  tidegate import faults trace.parquet --map stepfun_node_faults

  time,node,gpu_uuid,xid,message
  2026-10-01T12:00:00Z,gpu01,GPU-5d6f...,79,GPU has fallen off the bus

The columns are time, node, gpu_uuid, gpu_index, xid, kind, end_time, level, class and message; all
but the first two may be absent, and --map takes other ones. Faults count for the health of nodes as
those of agents do. Rows that cannot be used go to the table dead_letters, and the exit status is 3.")]
pub(super) struct FaultsArgs {
    /// File to read (CSV, CSV.gz or Parquet); `-` is standard input
    file: PathBuf,
    /// Mapping: name of a shipped one, or path of your own (schemas/imports/README.md)
    #[arg(long, value_name = "NAME|PATH.toml", default_value = "faults_csv")]
    map: String,
    /// Cluster of all rows; overrides the file
    #[arg(long)]
    cluster: Option<String>,
    /// Time zone of times without one [default: the mapping's, else UTC]
    #[arg(long, value_name = "ZONE")]
    timezone: Option<String>,
    #[command(flatten)]
    write: WriteArgs,
}

pub(super) fn run(args: FaultsArgs) -> CommandResult {
    let mapping = Mapping::load(&args.map)?;
    if mapping.kind != Kind::NodeFaults {
        return Err(format!("mapping {} is not of faults; `tidegate import jobs` takes it", args.map).into());
    }
    let options = ImportOptions {
        cluster: args.cluster,
        timezone: args.timezone.as_deref().map(zone).transpose()?,
        topics: args.write.log.topics(),
        ..ImportOptions::default()
    };
    import_file(args.file, &mapping, &options, &args.write)
}
