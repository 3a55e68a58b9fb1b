//! `tidegate import steps`: step reports of training jobs from a file.

use std::path::PathBuf;
use std::time::Instant;

use clap::Args;
use tidegate_import::{Source, StepOptions, import_steps};
use tidegate_lake::pipeline::Plan;

use super::super::{CommandResult, Workspace, block_on};
use super::write::WriteArgs;
use super::{ReadBar, report};

/// Import step reports of training jobs: lines of JSON, as jobs send them to the agent
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  tidegate import steps steps.jsonl.gz --cluster prod
  tidegate import steps rank0.jsonl --cluster prod --node gpu01

  {\"job\":\"4711\",\"rank\":0,\"step\":12,\"start\":1763712000.5,\"duration_s\":0.5,\"tokens\":8192}

A line has the fields of deploy/clients/README.md. Importing a file again changes nothing. Lines
that are no reports go to the table dead_letters with line and reason, and the exit status is 3.")]
pub(super) struct StepsArgs {
    /// File to read (plain or gzip); `-` is standard input
    file: PathBuf,
    /// Cluster of all reports
    #[arg(long)]
    cluster: String,
    /// Node of reports that name none
    #[arg(long)]
    node: Option<String>,
    #[command(flatten)]
    write: WriteArgs,
}

pub(super) fn run(args: StepsArgs) -> CommandResult {
    let options = StepOptions { cluster: args.cluster, node: args.node, topics: args.write.log.topics() };
    // Check pipelines before anything is written.
    let plan = block_on(Plan::compile(args.write.data.load_pipelines()?))??;
    let source = Source::from_argument(args.file);
    source.check()?;
    let workspace = Workspace::open(&args.write.data.data, &args.write.log)?;
    let started = Instant::now();
    let bar = ReadBar::new();
    let (summary, ignored) = import_steps(source, &options, workspace.log.as_ref(), &mut |p| bar.show(&p))?;
    bar.finish();
    let tables = args.write.update_tables(&workspace, plan)?;
    if !ignored.is_empty() {
        let names = ignored.into_iter().collect::<Vec<_>>().join(", ");
        say!("fields not used  {}", tidegate_text::shown(&names));
    }
    report(&summary, tables, started.elapsed());
    Ok(args.write.exit_code(summary.rejected()))
}
