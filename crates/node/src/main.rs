//! `tidegate-node`: the commands for nodes and schedulers as a small program.

use std::process::ExitCode;

use clap::Parser;
use tidegate_node::{Command, LevelFilter};

/// Collectors for GPU nodes and schedulers
#[derive(Debug, Parser)]
#[command(name = "tidegate-node", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

fn main() -> ExitCode {
    let command = Cli::parse().command;
    tidegate_node::init_logging(if command.reports() { LevelFilter::ERROR } else { LevelFilter::INFO });
    command.run()
}
