//! `tidegate completions`: what a shell needs to complete commands and options.

use std::io::Write;
use std::process::ExitCode;

use clap::Args;
use clap_complete::Shell;

use super::CommandResult;

/// Print a script that lets a shell complete commands and options
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  tidegate completions bash > ~/.local/share/bash-completion/completions/tidegate
  tidegate completions zsh > ~/.zfunc/_tidegate
  tidegate completions fish > ~/.config/fish/completions/tidegate.fish")]
pub struct CompletionsArgs {
    /// The shell
    shell: Shell,
}

pub fn run(args: CompletionsArgs, mut program: clap::Command) -> CommandResult {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut program, "tidegate", &mut script);
    // A closed pipe is no failure.
    std::io::stdout().write_all(&script).ok();
    Ok(ExitCode::SUCCESS)
}
