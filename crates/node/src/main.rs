//! `tidegate-node`: the commands that run on nodes and beside schedulers, as a small program of
//! their own.

use std::process::ExitCode;

use clap::Parser;
use tidegate_node::{Command, LevelFilter};

/// What Tidegate runs on nodes and beside schedulers
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
