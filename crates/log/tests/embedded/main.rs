//! The embedded log: the conformance suite, a model, and everything that may befall its process and
//! its files.

#![allow(clippy::unwrap_used)]

mod conformance;
mod corruption;
mod crash;
mod data_dir;
mod full_disk;
mod group_commit;
mod model;
mod support;
