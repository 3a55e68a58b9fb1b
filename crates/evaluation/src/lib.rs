//! Trials: jobs and demand whose truth is known, rivals as published, and the protocols that score
//! both. What measures insight shares no constant with it. [`trace`] reads public traces for the
//! simulator, in which policies are compared.
#![warn(missing_docs)]

mod columns;
pub mod forecast;
pub mod sizing;
pub mod straggler;
pub mod trace;

pub use columns::ReadError;
