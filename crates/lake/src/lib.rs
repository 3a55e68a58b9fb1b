//! From events to tables: pipelines, windows, Delta commits and the catalog that queries see.
//!
//! Start with [`lake::Lake`] (state and commits), [`plan::Plan`] (which pipeline is computed from
//! what) and [`runner::Runner`] (reads the log). What a pipeline file may say is in [`pipeline`]
//! and [`check`].
//!
//! This crate does not speak to users: SQL front doors are in `tidegate-server`. It keeps no state
//! besides its tables.

mod batch;
pub mod catalog;
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
pub mod state;
pub mod table;
pub mod testing;
mod views;
pub mod window;
