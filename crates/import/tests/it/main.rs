//! Imports end to end: files in, events and dead letters out.

#![allow(clippy::unwrap_used)]

mod damaged;
mod files;
mod fleet;
mod mappings;
mod rejects;
mod repeats;
mod sacct;
mod support;
mod traces;
