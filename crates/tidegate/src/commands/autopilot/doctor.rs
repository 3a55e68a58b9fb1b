//! `tidegate autopilot doctor`: checks a whole site for the autopilot before it plans.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use clap::Args;
use tidegate_control::service::{Check, Verdict, examine};
use tidegate_log::{DataDir, EmbeddedLog, EmbeddedOptions, EventLog};

use super::{CommandResult, DataArgs, chain};
use crate::commands::PlaceArgs;

/// Check what the autopilot needs on a site: scheduler, rights, jobs, log, policy
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  tidegate autopilot doctor --config deploy/autopilot/slurm.toml
  tidegate autopilot doctor --config slurm.toml --log kafka://localhost:9092 --json

It asks the scheduler and the log, and changes nothing there. Run it as the autopilot's user. Status
0: nothing is missing; 1: something that the site asks for cannot work. A warning says what would
let the autopilot do more. The log in a data folder can be read while no other process has it open;
otherwise the newest plan in the folder says what the log told.")]
pub(super) struct DoctorArgs {
    /// TOML file with the cluster, the policy and the [slurm] section
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    data: DataArgs,
    #[command(flatten)]
    log: PlaceArgs,
}

/// Runs all checks and prints their results.
pub(super) fn run(args: &DoctorArgs) -> CommandResult {
    let opened = open(&args.data.data, &args.log);
    let log = opened.as_ref().map(|(log, _)| log).map_err(String::as_str);
    let checks = examine(&args.config, &args.data.data, log);
    let is_ok = checks.iter().all(|check| check.verdict < Verdict::Missing);
    if args.json {
        say!("{}", serde_json::to_string_pretty(&serde_json::json!({"ok": is_ok, "checks": checks}))?);
    } else {
        checks.iter().for_each(show);
    }
    Ok(if is_ok { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The log, with the folder that is locked for it; or why it is not at hand.
fn open(data: &Path, place: &PlaceArgs) -> Result<(Arc<dyn EventLog>, Option<DataDir>), String> {
    if let Some(url) = place.kafka() {
        let log = place.open_kafka(url).map_err(|error| chain(error.as_ref()))?;
        return Ok((Arc::new(log), None));
    }
    if !data.join("log").is_dir() {
        return Err(format!("there is no log in {} yet", data.display()));
    }
    let folder = DataDir::open(data).map_err(|error| chain(&error))?;
    let log = EmbeddedLog::open(folder.log(), EmbeddedOptions::default()).map_err(|error| chain(&error))?;
    Ok((Arc::new(log), Some(folder)))
}

fn show(check: &Check) {
    let mark = match check.verdict {
        Verdict::Ok => "ok     ",
        Verdict::Warning => "warning",
        Verdict::Missing => "MISSING",
    };
    say!("{mark} {:<11} {}", check.check, check.found);
    if let Some(fix) = &check.fix {
        say!("{:20}→ {fix}", "");
    }
}
