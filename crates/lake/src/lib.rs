//! From events to tables: pipelines, windows, Delta commits and the catalog that queries see.
//!
//! Start with [`lake::Lake`] (state and commits), [`plan::Plan`] (which pipeline is computed from
//! what) and [`runner::Runner`] (reads the log). What a pipeline file may say is in [`pipeline`]
//! and [`check`].
//!
//! This crate does not speak to users: SQL front doors are in `tidegate-server`. It keeps no state
//! besides its tables.

pub mod batch;
mod carried;
pub mod catalog;
pub mod check;
pub mod delta;
pub mod error;
pub mod exec;
pub mod functions;
mod gathered;
pub mod group;
pub mod histories;
pub mod intake;
pub mod kept;
pub mod lake;
mod latest;
mod lazy;
pub mod level;
pub mod maintain;
pub mod memory;
mod occupancy;
mod once;
mod parts;
pub mod peaks;
pub mod pipeline;
pub mod plan;
pub mod position;
mod prepared;
mod quantiles;
pub mod raw;
pub mod retention;
mod revision;
pub mod runner;
pub mod samples;
mod seen;
pub mod shipped;
mod sorted;
mod sweep;
pub mod table;
mod touched;
pub mod ways;
pub mod window;
