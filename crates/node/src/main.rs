//! `tidegate-node`: the commands for nodes and schedulers as a small program.

use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches, Parser};
use tidegate_node::{Command, LevelFilter};

/// Collectors for GPU nodes and schedulers
#[derive(Debug, Parser)]
#[command(name = "tidegate-node", version, arg_required_else_help = true)]
#[command(after_help = "Examples:
  tidegate-node doctor
  tidegate-node agent --source nvml --cluster east --log kafka://kafka-0:9092
  tidegate-node watch slurm --cluster east --log kafka://kafka-0:9092")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

/// The command line, with the examples of `tidegate` under the name of this program.
fn command_line() -> clap::Command {
    Cli::command().mut_subcommands(under_our_name)
}

fn under_our_name(command: clap::Command) -> clap::Command {
    let help =
        command.get_after_help().map(|help| help.to_string().replace("  tidegate ", "  tidegate-node "));
    let command = match help {
        Some(help) => command.after_help(help),
        None => command,
    };
    command.mut_subcommands(under_our_name)
}

fn main() -> ExitCode {
    tidegate_node::keep_files_private();
    let parsed = Cli::from_arg_matches(&command_line().get_matches());
    let command = parsed.unwrap_or_else(|error| error.exit()).command;
    tidegate_node::init_logging(if command.reports() { LevelFilter::ERROR } else { LevelFilter::INFO });
    command.run()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn examples_of(command: &clap::Command) -> Vec<String> {
        let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
        let mut found: Vec<String> =
            help.lines().filter(|line| line.starts_with("  tidegate")).map(str::to_owned).collect();
        found.extend(command.get_subcommands().flat_map(examples_of));
        found
    }

    #[test]
    fn examples_call_this_program() {
        let found = examples_of(&command_line());
        assert!(found.len() >= 8, "{found:?}");
        for line in found {
            let words = line.split_whitespace();
            assert!(line.starts_with("  tidegate-node "), "{line:?}");
            command_line().try_get_matches_from(words).unwrap_or_else(|error| panic!("{line:?}: {error}"));
        }
    }
}
