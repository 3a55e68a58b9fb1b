//! What commands share: a data folder opened with its event log, arguments, queries and the
//! process.
//!
//! [`Workspace`] opens a data folder for writing together with its log, embedded or on Kafka, and
//! refuses tables that were computed from another log. [`LogArgs`] and [`DataArgs`] are the clap
//! arguments that choose them. The rest is what every command does alike: run async code, bind an
//! address, stop on signals, print to a pipe that may be closed, and report a failure.
//!
//! The program `tidegate` and the benches of `tidegate-lab` are built on it, so neither needs the
//! other for it.
//!
//! ```no_run
//! use tidegate_lake::runner::Pace;
//! use tidegate_workspace::{LogArgs, Workspace, block_on_one_thread};
//!
//! let workspace = Workspace::open("tidegate-data".as_ref(), &LogArgs::default())?;
//! workspace.create_topics()?;
//! block_on_one_thread(async {
//!     let mut runner = workspace.runner(tidegate_lake::pipeline::shipped(),
//! Pace::default()).await?;     runner.catch_up(&mut |_| {}).await?;     Ok::<_,
//! tidegate_workspace::CommandError>(()) })??;
//! # Ok::<(), tidegate_workspace::CommandError>(())
//! ```

#![warn(missing_docs)]

/// Prints a line to stdout, as `println!` does, but ignores a closed pipe: a reader that stops
/// early (`| head`) is no failure of the command. Control characters but line breaks are escaped:
/// names from outside are in most lines.
#[macro_export]
macro_rules! say {
    ($($text:tt)*) => {{
        use std::io::Write;
        writeln!(std::io::stdout(), "{}", $crate::shown_lines(&format!($($text)*))).ok();
    }};
}

mod args;
mod door_args;
mod folder;
mod log_args;
mod origin;
mod process;
mod query;
mod workspace;

pub use tidegate_node::{CommandError, CommandResult, OtlpArgs, chain};
pub use tidegate_text::shown_lines;

pub use args::{CommitArgs, DataArgs, KeepArgs, PaceArgs, query_memory, seeds, time_ms};
pub use door_args::DoorArgs;
pub use folder::{folder_bytes, folder_url, lake_url};
pub use log_args::{LogArgs, PlaceArgs, Retention};
pub use origin::{consumer_group, reader_group};
pub use process::{
    LOG_UNAVAILABLE, bind, block_on, block_on_one_thread, exit_code, init_logging, name_full_disk,
    stop_on_signals, user_name,
};
pub use query::{Committed, TableCount, ask, committed, quoted, table_counts};
pub use workspace::{DEATHS, SNAPSHOTS, Workspace};
