//! `tidegate doctor`: checks what works on this node, and how to fix what does not.

mod around;
mod gpus;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use serde::Serialize;
use tidegate_collect::{kube, receiver};

use super::agent::SourcePlaces;
use crate::destination::DestinationArgs;
use crate::error::CommandResult;

/// Check what works on this node and what does not
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  tidegate doctor
  tidegate doctor --log kafka://kafka-0:9092 --json

Reads the GPUs as the agent would, for two seconds. Status 0: no check failed; 1: a check failed. An
absent optional part, such as Slurm on a Kubernetes node, is no failure. Run it as the agent's user.")]
pub struct DoctorArgs {
    #[command(flatten)]
    places: SourcePlaces,
    #[command(flatten)]
    destination: DestinationArgs,
    /// Folder of the agent's spool
    #[arg(long, value_name = "DIR", env = "TIDEGATE_SPOOL", default_value = "/var/lib/tidegate-agent")]
    spool: PathBuf,
    /// The agent's socket
    #[arg(long, value_name = "PATH", env = "TIDEGATE_SOCKET", default_value = receiver::DEFAULT_SOCKET)]
    socket: PathBuf,
    /// The agent's loopback address, if it has one
    #[arg(long, value_name = "HOST:PORT", env = "TIDEGATE_LISTEN")]
    listen: Option<SocketAddr>,
    /// The kubelet's pod-resources socket
    #[arg(long, value_name = "PATH", env = "TIDEGATE_KUBELET", default_value = kube::DEFAULT_SOCKET)]
    kubelet: PathBuf,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Result of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Verdict {
    Ok,
    /// It works in part.
    Partly,
    Failed,
    /// It is absent and optional.
    Absent,
}

/// One check.
#[derive(Debug, Serialize)]
struct Finding {
    check: String,
    verdict: Verdict,
    found: String,
    /// How to fix it.
    #[serde(skip_serializing_if = "Option::is_none")]
    fix: Option<String>,
}

impl Finding {
    fn new(check: impl Into<String>, verdict: Verdict, found: impl Into<String>) -> Self {
        Self { check: check.into(), verdict, found: found.into(), fix: None }
    }

    fn fix(self, fix: impl Into<String>) -> Self {
        Self { fix: Some(fix.into()), ..self }
    }
}

/// Runs all checks and prints their results.
pub fn run(args: DoctorArgs) -> CommandResult {
    let mut findings = gpus::check(&args);
    findings.push(around::dcgm(&args));
    findings.push(around::socket(&args));
    findings.push(around::spool(&args));
    findings.push(around::slurm());
    findings.push(around::kubelet(&args));
    findings.extend(around::log(&args));
    let failed = findings.iter().any(|finding| finding.verdict == Verdict::Failed);
    if args.json {
        println!(
            "{}",
            serde_json::to_string_pretty(&serde_json::json!({"ok": !failed, "checks": findings}))?
        );
    } else {
        findings.iter().for_each(show);
    }
    Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn show(finding: &Finding) {
    let mark = match finding.verdict {
        Verdict::Ok => "ok     ",
        Verdict::Partly => "partly ",
        Verdict::Failed => "FAILED ",
        Verdict::Absent => "absent ",
    };
    println!("{mark} {:<10} {}", finding.check, finding.found);
    if let Some(fix) = &finding.fix {
        println!("{:19}→ {fix}", "");
    }
}
