//! What tests of several crates share: the suite that every log must pass, and what becomes of a
//! test where a server that it needs is missing.
//!
//! A crate of its own and no feature of `tidegate-log`: with it, `cargo test` and `cargo run` would
//! each build that crate, and all above it, in their own way.
#![warn(missing_docs)]

#![allow(clippy::unwrap_used)]

pub mod conformance;
pub mod needs;
