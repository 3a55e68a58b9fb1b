//! Runs the SQL of pipelines over record batches and tables.

mod dictionary;
pub(crate) mod merge;
pub(crate) mod run;
