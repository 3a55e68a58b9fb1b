//! Runs the SQL of pipelines over record batches and tables.

mod aggregate;
mod dictionary;
mod grouping;
pub(crate) mod merge;
mod partial;
pub(crate) mod run;
mod summed;
mod tuples;
mod window_sums;
