//! `tidegate-node`: the commands that run on nodes and beside schedulers, as a small program of their own.

use std::process::ExitCode;

use clap::Parser;
use tidegate_node::Command;

/// What Tidegate runs on nodes and beside schedulers
#[derive(Debug, Parser)]
#[command(name = "tidegate-node", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

fn main() -> ExitCode {
    tidegate_node::init_logging();
    Cli::parse().command.run()
}
