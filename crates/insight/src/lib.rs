//! Insight: who is slow and why, what demand will be, how much to reserve. Pure: time and
//! randomness are arguments, the same input gives the same bytes, and nothing here reads a file, a
//! clock or the network.
#![warn(missing_docs)]

pub mod advice;
pub mod forecast;
pub mod health;
pub mod sizing;
pub mod straggler;
