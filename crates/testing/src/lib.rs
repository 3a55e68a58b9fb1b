//! Shared test support: the conformance suite of event logs, a log in memory, a Slurm cluster on
//! this machine, and skips for missing services.
//!
//! This is a crate and not a feature of `tidegate-log`, because a feature for tests would make
//! `cargo test` and `cargo run` build that crate, and all above it, twice.
//!
//! ```no_run
//! use std::process::Command;
//! use std::sync::Arc;
//! use tidegate_log::{EmbeddedLog, EventLog};
//! use tidegate_testing::conformance::{self, Harness};
//! use tidegate_testing::needs;
//!
//! struct Embedded(EmbeddedLog);
//!
//! impl Harness for Embedded {
//!     fn handle(&self) -> Arc<dyn EventLog> {
//!         Arc::new(self.0.clone())
//!     }
//!
//!     fn reopen(&mut self) {}
//! }
//!
//! if needs::can("a scratch folder", Command::new("mkdir").arg("scratch")) {
//!     let log = EmbeddedLog::open("scratch", Default::default())?;
//!     conformance::offsets_are_found_by_time(&mut Embedded(log));
//! }
//! # Ok::<(), tidegate_log::LogError>(())
//! ```
#![warn(missing_docs)]
#![allow(clippy::unwrap_used)]

pub mod conformance;
mod memory_log;
pub mod needs;
pub mod slurm;

pub use memory_log::MemoryLog;
