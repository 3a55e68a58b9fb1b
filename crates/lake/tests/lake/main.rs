//! The lake as a whole, against real Delta tables in a temporary folder.

#![allow(clippy::unwrap_used)]

mod catalogs;
mod counting;
mod histories;
mod ledger;
mod long_log;
mod retention;
mod revisions;
mod same_bytes;
mod samples;
mod sharing;
