//! Runs the SQL of pipelines over record batches and tables.

mod aggregate;
mod dictionary;
pub(crate) mod merge;
mod partial;
pub(crate) mod run;
