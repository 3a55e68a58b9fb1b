//! Shared by the collector commands: spool options, signals and exit status.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use clap::Args;
use nix::sys::signal::{SigSet, Signal};
use tidegate_collect::agent::spool::SpoolOptions;
use tidegate_collect::agent::{Agent, AgentOptions, AgentStats, End};
use tidegate_telemetry::Telemetry;

use crate::destination::DestinationArgs;
use crate::error::{CommandError, CommandResult};
use crate::otlp_args::OtlpArgs;
use crate::units::size;

/// Exit status: another collector reports under this name.
pub const EXIT_CONFLICT: u8 = 4;
/// How long to keep delivering after a request to end; the rest waits in the spool.
const PATIENCE: Duration = Duration::from_secs(5);
/// Smallest spool: room for a batch of a large node and the records in flight.
const SPOOL_MIN: u64 = 16 << 20;

#[derive(Debug, Args)]
pub(super) struct CollectorArgs {
    /// Name of the cluster, the same for all its collectors
    #[arg(long, value_name = "NAME", env = "TIDEGATE_CLUSTER", default_value = "default", value_parser = filled)]
    pub cluster: String,
    #[command(flatten)]
    destination: DestinationArgs,
    /// Bytes that may wait for the log; beyond, the oldest records are dropped and counted
    #[arg(long, value_name = "SIZE", env = "TIDEGATE_SPOOL_LIMIT", default_value = "1GiB", value_parser = spool_size)]
    spool_limit: u64,
    /// Report under this name even if another collector did so last; the log then refuses that one
    #[arg(long)]
    take_over: bool,
    #[command(flatten)]
    otlp: OtlpArgs,
}

/// A name that is not empty.
pub(super) fn filled(text: &str) -> Result<String, String> {
    if text.is_empty() { Err("it must not be empty".into()) } else { Ok(text.into()) }
}

fn spool_size(text: &str) -> Result<u64, String> {
    match size(text)? {
        bytes if bytes < SPOOL_MIN => Err("a spool needs 16MiB at least".into()),
        bytes => Ok(bytes),
    }
}

impl CollectorArgs {
    pub fn spool(&self, dir: PathBuf) -> SpoolOptions {
        SpoolOptions { dir, limit_bytes: self.spool_limit, take_over: self.take_over }
    }

    /// Collects until there is a reason to end. `start` starts the sources, which emit into the
    /// agent.
    pub fn run<S>(
        &self,
        options: AgentOptions,
        start: impl FnOnce(&Arc<Agent>) -> Result<S, CommandError>,
    ) -> CommandResult {
        let otlp = self.otlp.settings()?;
        let signals = block_signals()?;
        let spool = options.spool.dir.clone();
        let agent = Arc::new(Agent::start(options, self.destination.connect()?)?);
        wait_for_signals(signals, Arc::clone(&agent))?;
        let watched = Arc::clone(&agent);
        let export = otlp.map(|otlp| Telemetry::start(otlp, move || page(&watched.stats()))).transpose()?;
        export.iter().for_each(|export| tracing::info!("exports {}", export.describe()));
        let running = start(&agent)?;
        let end = agent.wait();
        drop(running);
        let reason = match &end {
            End::Requested => "it was asked to end",
            End::Conflict(_) => "another collector reports under its name",
        };
        let delivered = agent.stop(PATIENCE, reason);
        if let Some(export) = export {
            export.end();
        }
        match end {
            // The agent has logged it, with advice.
            End::Conflict(_) => Ok(ExitCode::from(EXIT_CONFLICT)),
            End::Requested => {
                if !delivered {
                    tracing::info!(spool = %spool.display(), "not everything was delivered; the rest waits in the spool");
                }
                Ok(ExitCode::SUCCESS)
            }
        }
    }
}

/// What the agent counts, as a page in OpenMetrics' text format.
fn page(stats: &AgentStats) -> String {
    let mut page = String::new();
    for (name, help, count) in [
        ("records", "Records written to the spool", stats.records),
        ("delivered", "Records that the log has", stats.delivered),
        ("dropped", "Records dropped because the spool was full", stats.dropped),
        ("late_readings", "Readings that came after their batch", stats.late_readings),
        ("dead_letters", "Events that do not fit the contract", stats.dead_letters),
        ("overrun_events", "Events dropped because too many waited", stats.overrun_events),
        ("failed_attempts", "Deliveries that failed and are tried again", stats.failed_attempts),
    ] {
        let family = format!("tidegate_agent_{name}");
        page.push_str(&format!("# HELP {family} {help}.\n# TYPE {family} counter\n{family}_total {count}\n"));
    }
    page
}

/// Blocks SIGTERM and SIGINT in this thread and in all that it starts, to be waited for.
fn block_signals() -> Result<SigSet, CommandError> {
    let signals = SigSet::from_iter([Signal::SIGTERM, Signal::SIGINT]);
    signals.thread_block()?;
    Ok(signals)
}

/// The first signal asks the agent to end; the second one ends the process.
fn wait_for_signals(signals: SigSet, agent: Arc<Agent>) -> Result<(), CommandError> {
    thread::Builder::new().name("signals".into()).spawn(move || {
        if signals.wait().is_ok() {
            agent.request_end();
            drop(agent);
            if signals.wait().is_ok() {
                std::process::exit(130);
            }
        }
    })?;
    Ok(())
}
