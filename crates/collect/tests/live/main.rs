//! Live sources against what they read from: real drivers, servers and clients on this machine.

#![allow(clippy::unwrap_used)]

mod dcgm;
mod inlet;
mod kube;
mod support;
//! Live sources, each against a real counterpart: the real NVML wrapper on a stand-in for the driver's library.
mod nvml;
mod sink;
