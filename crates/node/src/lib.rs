//! The commands of nodes: `agent`, `watch`, `event`, `doctor`. `tidegate-node` is a program of them alone; `tidegate` has
//! them too.

use std::error::Error;
use std::process::ExitCode;

use clap::Subcommand;

mod commands;

pub use commands::{agent, doctor, event, watch};

/// Any failure of a command; printed with its causes, once.
pub type CommandError = Box<dyn Error + Send + Sync>;
pub type CommandResult = Result<ExitCode, CommandError>;

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    Agent(agent::AgentArgs),
    Watch(watch::WatchArgs),
    Event(event::EventArgs),
    Doctor(doctor::DoctorArgs),
}

impl Command {
    /// Runs the command and prints its failure: status 1 then.
    pub fn run(self) -> ExitCode {
        let result = match self {
            Self::Agent(args) => agent::run(args),
            Self::Watch(args) => watch::run(args),
            Self::Event(args) => event::run(args),
            Self::Doctor(args) => doctor::run(args),
        };
        result.unwrap_or_else(|error| {
            eprintln!("tidegate: {error}");
            ExitCode::FAILURE
        })
    }
}

/// Log lines go to stderr; RUST_LOG chooses which.
pub fn init_logging() {
    let filter = tracing_subscriber::EnvFilter::try_from_default_env()
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("warn,tidegate=info"));
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_target(false).init();
}
