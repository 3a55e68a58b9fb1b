//! Live sources against what they read from: real drivers, servers and clients on this machine, and the real NVML wrapper on
//! a stand-in for the driver's library.

#![allow(clippy::unwrap_used)]

mod dcgm;
mod footprint;
mod inlet;
mod kube;
mod nvml;
mod sink;
mod support;
