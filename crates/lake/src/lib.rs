//! The lake: turns the events of a log into tables that SQL queries read.
//!
//! A [`runner::Runner`] reads the log and feeds a [`lake::Lake`]. The lake runs the pipelines of a
//! [`pipeline::Plan`] and commits their tables to Delta Lake. Data and progress are in the same
//! commit, so every event counts exactly once. Queries see a [`catalog::Catalog`]: committed files,
//! overlaid with rows that are not committed yet.
//!
//! The lake keeps no state besides its tables. SQL front ends are in `tidegate-server`.
//!
//! # Example
//!
//! ```no_run
//! use std::sync::Arc;
//!
//! use tidegate_lake::engine::Limits;
//! use tidegate_lake::lake::{Lake, Sharing};
//! use tidegate_lake::pipeline::{Plan, shipped};
//! use tidegate_lake::runner::{Pace, Runner};
//! use tidegate_log::EventLog;
//!
//! async fn catch_up(log: Arc<dyn EventLog>) -> Result<(), Box<dyn std::error::Error>> {
//!     let plan = Plan::compile(shipped()).await?;
//!     let root = url::Url::parse("file:///var/lib/tidegate/lake")?;
//!     let lake = Lake::open(&root, plan, Limits::default(), Sharing::Exclusive).await?;
//!     let mut runner = Runner::start_exclusive(log, lake, Pace::default()).await?;
//!     let progress = runner.catch_up(&mut |_| {}).await?;
//!     println!("{} records, {} commits", progress.records, progress.commits);
//!     Ok(())
//! }
//! ```

#![warn(missing_docs)]

mod batch;
pub mod catalog;
pub mod clock;
pub mod delta;
pub mod engine;
pub mod error;
mod exec;
pub mod functions;
pub mod lake;
pub mod maintenance;
pub mod pipeline;
pub mod raw;
pub mod runner;
mod spans;
pub mod state;
pub mod table;
pub mod testing;
mod views;
pub mod window;
