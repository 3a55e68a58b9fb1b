//! Pipelines: how files are parsed and checked, and in which order they run.
//!
//! [`Plan::compile`] turns [`Pipeline`]s into an executable [`Plan`].

mod catalog_file;
mod check;
mod coalesce;
mod compile;
pub(crate) mod definition;
mod findings;
mod folder;
pub mod gpu_peaks;
pub mod graph;
mod parse;
pub(crate) mod partials;
mod pass_through;
pub(crate) mod plan;
pub(crate) mod plan_cache;
pub(crate) mod rollup;
mod shipped;

pub use definition::{Extent, Pipeline, Shape};
pub use folder::load_folder;
pub use parse::parse_duration_ms;
pub use plan::{AS_OF, Group, Plan, Planned};
pub use rollup::Rollup;
pub use shipped::{SUBJECTS, shipped};
