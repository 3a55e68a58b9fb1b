//! `tidegate policy`: checks and prints policy files of the autopilot.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, Subcommand};
use tidegate_autopilot::policy::{NAMED, Policy, PolicyChange, changes};
use tidegate_autopilot::rollout::Canary;
use tidegate_control::authority::{PolicyFile, Signers};
use tidegate_control::policy_file::take_rollout;
pub use tidegate_control::policy_file::{find_policy as named, read_policy as read};

use super::{CommandError, CommandResult};

/// Check and print policies of the autopilot
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  tidegate policy show > site.toml
  tidegate policy check site.toml")]
pub struct PolicyArgs {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Check a policy file; errors name the key
    #[command(after_help = "Examples:
  tidegate policy check site.toml
  tidegate policy check site.toml --against today.toml
  tidegate policy check site.toml --against today.toml --signers allowed_signers

If the site requires signatures, a change that lets the autopilot do more needs two signers, any
other change one. They sign a statement about the file, which `tidegate autopilot run --once` prints
if it is missing:
  ssh-keygen -Y sign -n tidegate-policy -f ~/.ssh/id_ed25519 site.toml.statement
  mv site.toml.statement.sig site.toml.statement.anna.sig")]
    Check {
        /// TOML file, laid over the shipped policy
        file: PathBuf,
        /// Previous policy: show changes, and which keys let the autopilot do more
        #[arg(long, value_name = "FILE|NAME")]
        against: Option<String>,
        /// File in OpenSSH's allowed_signers format: check the statement and the signatures beside
        /// the policy, as a change from --against or from the shipped policy
        #[arg(long, value_name = "FILE")]
        signers: Option<PathBuf>,
    },
    /// Print a shipped policy
    #[command(after_help = "Examples:
  tidegate policy show > site.toml
  tidegate policy show auto

`default` has every key with its meaning, and never acts. `auto` lets every reversible kind act.")]
    Show {
        #[arg(default_value = "default", value_parser = NAMED.map(|(name, _)| name))]
        name: String,
    },
}

pub fn run(args: PolicyArgs) -> CommandResult {
    match args.command {
        Command::Check { file, against, signers } => check(&file, against.as_deref(), signers.as_deref())?,
        Command::Show { name } => {
            let texts = NAMED.iter().filter(|(known, _)| *known == name);
            texts.for_each(|(_, text)| say!("{}", text.trim_end()));
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn check(file: &Path, against: Option<&str>, signers: Option<&Path>) -> Result<(), CommandError> {
    let policy = read(file)?;
    let tried = take_rollout(&mut policy.clone(), file)?;
    say!("{}: {} can be used", file.display(), policy.name);
    if let Some(shadow) = &tried.shadow {
        say!("shadow  {}, which only thinks", shadow.name);
    }
    if let Some(Canary { policy, owners, .. }) = &tried.canary {
        let owners: Vec<&str> = owners.iter().map(String::as_str).collect();
        say!("canary  {} for {}: the cluster says whether it knows them", policy.name, owners.join(", "));
    }
    if let Some(name) = against {
        let changes = changes(&named(name)?, &policy);
        for PolicyChange { key, before, after, widens } in &changes {
            let value = |value: &Option<String>| value.clone().unwrap_or_else(|| "nothing".to_owned());
            let wider = if *widens { "  lets the autopilot do more" } else { "" };
            say!("  {key}: {} to {}{wider}", value(before), value(after));
        }
        let two = changes.iter().any(|changed| changed.widens);
        say!(
            "signatures needed where the site asks for them: {}",
            if two { "two people's" } else { "one person's" }
        );
    }
    if let Some(signers) = signers {
        let before = against.map_or_else(|| Ok(Policy::shipped()), named)?;
        let text = std::fs::read_to_string(file)?;
        let candidate = PolicyFile { file, text: &text, policy: &policy };
        let (statement, signed) = Signers::read(signers)?.check(&candidate, &before, chrono::Utc::now())?;
        let after = statement.after.as_deref().unwrap_or("none");
        say!("statement  number {} of cluster {}, after {after}", statement.sequence, statement.cluster);
        signed.by.iter().for_each(|signer| say!("signed by {signer}"));
    }
    Ok(())
}
