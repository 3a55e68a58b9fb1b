//! The commands that run on nodes and beside schedulers: `agent`, `watch`, `event`, `doctor`.
//!
//! `tidegate-node` is a small program of these commands alone; `tidegate` includes them too. They
//! link neither Arrow nor the query engine.
//!
//! ```no_run
//! use clap::Parser;
//! use tidegate_node::{Command, LevelFilter, init_logging};
//!
//! #[derive(Parser)]
//! struct Cli {
//!     #[command(subcommand)]
//!     command: Command,
//! }
//!
//! init_logging(LevelFilter::INFO);
//! let status: std::process::ExitCode = Cli::parse().command.run();
//! ```

#![warn(missing_docs)]

use std::process::ExitCode;

use clap::Subcommand;
use tidegate_telemetry::SpanLayer;
use tidegate_text::{LinesOf, shown_lines};
pub use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::{Layer, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;

mod commands;
mod destination;
mod error;
mod otlp_args;
mod private_files;
mod sources;
mod units;

pub use commands::{agent, doctor, event, watch};
pub use destination::{Destination, DestinationArgs};
pub use error::{CommandError, CommandResult, chain};
pub use otlp_args::OtlpArgs;
pub use private_files::keep_files_private;

/// The commands. A variant's text is its `--help`.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Collect metrics and events of this node's GPUs
    Agent(Box<agent::AgentArgs>),
    /// Watch a scheduler
    Watch(watch::WatchArgs),
    /// Report to the agent of this node, as a prolog does
    Event(event::EventArgs),
    /// Check what works on this node and what does not
    Doctor(doctor::DoctorArgs),
}

impl Command {
    /// Runs the command. A failure is printed and gives status 1.
    pub fn run(self) -> ExitCode {
        let result = match self {
            Self::Agent(args) => agent::run(*args),
            Self::Watch(args) => watch::run(args),
            Self::Event(args) => event::run(args),
            Self::Doctor(args) => doctor::run(args),
        };
        result.unwrap_or_else(|error| {
            eprintln!("tidegate: {}", shown_lines(&chain(error.as_ref())));
            ExitCode::FAILURE
        })
    }

    /// Whether its output covers everything, so that log lines would repeat it.
    pub fn reports(&self) -> bool {
        matches!(self, Self::Doctor(_))
    }
}

/// Sends log lines to stderr, filtered by RUST_LOG as in `warn,tidegate=info`. Patterns in names
/// and fields, which other programs accept, are not supported: their engine would be a third of a
/// small program. Lines are plain, with control characters escaped: what they quote comes from
/// outside.
pub fn init_logging(least: LevelFilter) {
    let asked = std::env::var("RUST_LOG").ok().and_then(|asked| asked.parse::<Targets>().ok());
    let usual = || Targets::new().with_default(least.min(LevelFilter::WARN)).with_target("tidegate", least);
    let lines = tracing_subscriber::fmt::layer().with_target(false).with_ansi(false);
    let lines = lines.with_writer(|| LinesOf(std::io::stderr()));
    let lines = lines.with_filter(asked.unwrap_or_else(usual));
    tracing_subscriber::registry().with(lines).with(SpanLayer::filtered()).init();
}
