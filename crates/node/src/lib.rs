//! The commands of nodes: `agent`, `watch`, `event`, `doctor`. `tidegate-node` is a program of them
//! alone; `tidegate` has them too.

use std::error::Error;
use std::io::IsTerminal;
use std::process::ExitCode;

use clap::Subcommand;
pub use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::{Layer, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;

mod commands;
mod destination;
mod sources;
mod units;

pub use commands::{agent, doctor, event, watch};
pub use destination::{Destination, DestinationArgs};

/// Any failure of a command; printed with its causes, once.
pub type CommandError = Box<dyn Error + Send + Sync>;
pub type CommandResult = Result<ExitCode, CommandError>;

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    Agent(Box<agent::AgentArgs>),
    Watch(watch::WatchArgs),
    Event(event::EventArgs),
    Doctor(doctor::DoctorArgs),
}

impl Command {
    /// Runs the command and prints its failure: status 1 then.
    pub fn run(self) -> ExitCode {
        let result = match self {
            Self::Agent(args) => agent::run(*args),
            Self::Watch(args) => watch::run(args),
            Self::Event(args) => event::run(args),
            Self::Doctor(args) => doctor::run(args),
        };
        result.unwrap_or_else(|error| {
            eprintln!("tidegate: {}", chain(error.as_ref()));
            ExitCode::FAILURE
        })
    }

    /// Whether what it prints says everything, so that log lines about the same are left out.
    pub fn reports(&self) -> bool {
        matches!(self, Self::Doctor(_))
    }
}

/// Log lines go to stderr; RUST_LOG chooses which, as in `warn,tidegate=info`. Without the patterns
/// in names and fields that other programs take, whose engine is a third of a small program.
pub fn init_logging(least: LevelFilter) {
    let asked = std::env::var("RUST_LOG").ok().and_then(|asked| asked.parse::<Targets>().ok());
    let usual = || Targets::new().with_default(least.min(LevelFilter::WARN)).with_target("tidegate", least);
    let lines = tracing_subscriber::fmt::layer().with_writer(std::io::stderr).with_target(false);
    let lines = lines.with_ansi(std::io::stderr().is_terminal());
    tracing_subscriber::registry().with(lines.with_filter(asked.unwrap_or_else(usual))).init();
}

/// The error and its causes on one line, none said twice.
pub fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let next = error.to_string();
        if !text.contains(&next) {
            text = format!("{text}: {next}");
        }
        cause = error.source();
    }
    text
}
