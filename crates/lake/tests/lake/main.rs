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
mod merges;
mod pending;
mod restarts;
mod retention;
mod revisions;
mod rollups;
mod samples;
mod saved_keys;
mod several_writers;
mod starts;

/// As in the program. The system's took 29 % of the tests' CPU time.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;
