//! Tests of the public contract: what is written today reads back, and what was ever written still
//! does.

#![allow(clippy::unwrap_used)]

mod any_event;
mod evolution;
mod fixtures;
mod identity;
mod round_trip;
mod samples;
mod schemas;
