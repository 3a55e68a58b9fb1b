//! The lake as a whole, against real Delta tables in a temporary folder.

#![allow(clippy::unwrap_used)]

mod histories;
mod ledger;
mod retention;
mod revisions;
mod same_bytes;
mod samples;
mod sharing;
