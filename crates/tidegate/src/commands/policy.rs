//! `tidegate policy`: what the autopilot may do, as a file.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Subcommand};
use tidegate_autopilot::candidate::{Canary, Candidates};
use tidegate_autopilot::policy::{NAMED, Policy};

use super::CommandResult;

/// Checks and shows policies of the autopilot
#[derive(Debug, Args)]
pub struct PolicyArgs {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Says whether a policy can be used, and if not what is wrong with which key
    #[command(after_help = "Example:
  tidegate policy check site.toml")]
    Check {
        /// TOML file, laid over the shipped policy
        file: PathBuf,
    },
    /// Prints a policy that comes with the program
    #[command(after_help = "Examples:
  tidegate policy show > site.toml
  tidegate policy show auto

`default` has every key with what it means, and acts nowhere. `auto` is what to write for all that can be undone to be done.")]
    Show {
        #[arg(default_value = "default", value_parser = NAMED.map(|(name, _)| name))]
        name: String,
    },
}

pub fn run(args: PolicyArgs) -> CommandResult {
    match args.command {
        Command::Check { file } => {
            let mut policy = read(&file)?;
            let tried = candidates(&mut policy, &file)?;
            say!("{}: {} can be used", file.display(), policy.name);
            if let Some(shadow) = &tried.shadow {
                say!("shadow  {}, which only thinks", shadow.name);
            }
            if let Some(Canary { policy, owners, .. }) = &tried.canary {
                let owners: Vec<&str> = owners.iter().map(String::as_str).collect();
                say!(
                    "canary  {} for {}: the cluster says whether it knows them",
                    policy.name,
                    owners.join(", ")
                );
            }
        }
        Command::Show { name } => {
            let texts = NAMED.iter().filter(|(known, _)| *known == name);
            texts.for_each(|(_, text)| say!("{}", text.trim_end()));
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// The policy of that name that comes with the program, or else of that file.
pub fn named(name: &str) -> Result<Policy, super::CommandError> {
    match Policy::named(name) {
        Some(policy) => Ok(policy),
        None => read(std::path::Path::new(name)),
    }
}

/// What a policy of `file` tries beside it, taken out of it: by the names of policies, or files beside it.
pub fn candidates(policy: &mut Policy, file: &std::path::Path) -> Result<Candidates, super::CommandError> {
    let folder = file.parent().unwrap_or(std::path::Path::new(""));
    let found = Candidates::of(policy, |named| match Policy::named(named) {
        Some(policy) => Ok(policy),
        None => read(&folder.join(named)).map_err(|e| super::chain(e.as_ref())),
    });
    found.map_err(|e| format!("{}: {e}", file.display()).into())
}

/// The policy of a file.
pub fn read(file: &std::path::Path) -> Result<Policy, super::CommandError> {
    let text = std::fs::read_to_string(file).map_err(|e| format!("read {}: {e}", file.display()))?;
    Policy::parse(&text).map_err(|e| format!("{}: {e}", file.display()).into())
}
