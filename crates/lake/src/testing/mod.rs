//! Support for tests of pipelines and of the lake, also used by `tidegate pipeline test` and
//! `tidegate chaos log`.

pub mod equivalence;
pub mod histories;
