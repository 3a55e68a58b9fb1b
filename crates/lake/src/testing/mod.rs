//! For tests of pipelines and of the lake.

pub mod equivalence;
pub mod histories;
