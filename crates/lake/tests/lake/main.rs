//! The lake as a whole, against real Delta tables in a temporary folder.

#![allow(clippy::unwrap_used)]

mod catalogs;
mod counting_store;
mod dead_files;
mod equivalence;
mod fit;
mod flat_cost;
mod flood;
mod growth;
mod histories;
mod ledger;
mod long_log;
mod long_run;
mod pending;
mod retention;
mod revisions;
mod samples;
mod saved_keys;
mod several_writers;
