//! Live sources against what they read from: real drivers, servers and clients on this machine.

#![allow(clippy::unwrap_used)]

mod dcgm;
mod footprint;
mod inlet;
mod kube;
mod support;
