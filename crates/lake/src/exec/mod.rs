//! Runs the SQL of pipelines.

mod dictionary;
pub(crate) mod merge;
pub(crate) mod run;
