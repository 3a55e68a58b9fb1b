//! `tidegate pipeline graph`: draws which table is computed from which.

mod layout;
mod svg;

use std::process::ExitCode;

use clap::{Args, ValueEnum};
use tidegate_lake::pipeline::graph::Graph;

use crate::commands::{CommandResult, DataArgs};

#[derive(Debug, Args)]
#[command(after_help = "Arrows lead from a table to the tables that are computed from it.

Examples:
  tidegate pipeline graph --of ledger_1h
  tidegate pipeline graph --subject jobs --format svg > jobs.svg
  tidegate pipeline graph --pipelines my_pipelines --format dot | dot -Tpdf -o pipelines.pdf")]
pub struct GraphArgs {
    /// How to draw it
    #[arg(long, value_enum, default_value_t)]
    format: GraphFormat,
    /// Only the pipelines of this folder, and the tables that they read
    #[arg(long, value_name = "NAME", conflicts_with = "of")]
    subject: Option<String>,
    /// Only this table, everything it is computed from, and everything computed from it
    #[arg(long, value_name = "TABLE")]
    of: Option<String>,
    #[command(flatten)]
    data: DataArgs,
}

#[derive(Debug, Clone, Copy, Default, ValueEnum)]
enum GraphFormat {
    /// Text that Markdown pages show as a diagram
    #[default]
    Mermaid,
    /// A picture
    Svg,
    /// Text for Graphviz
    Dot,
}

pub fn run(args: &GraphArgs) -> CommandResult {
    let whole = Graph::new(&args.data.load_pipelines()?)?;
    let graph = match (&args.subject, &args.of) {
        (Some(subject), _) => whole.of_subject(subject)?,
        (None, Some(table)) => whole.of_table(table)?,
        (None, None) => whole,
    };
    let text = match args.format {
        GraphFormat::Mermaid => graph.mermaid(),
        GraphFormat::Svg => svg::draw(&graph),
        GraphFormat::Dot => graph.dot(),
    };
    say!("{}", text.trim_end());
    Ok(ExitCode::SUCCESS)
}
