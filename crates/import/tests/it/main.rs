//! Imports end to end: files in, events and dead letters out.

#![allow(clippy::unwrap_used)]

mod damaged;
mod faults;
mod files;
mod fleet;
mod mappings;
mod prometheus;
mod rejects;
mod remote_read;
mod repeats;
mod sacct;
mod samples;
mod steps;
mod support;
mod traces;
