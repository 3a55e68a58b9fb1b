//! Live sources against what they read from: real drivers, servers and clients on this machine, and the real NVML wrapper on
//! a stand-in for the driver's library.

#![allow(clippy::unwrap_used)]

mod dcgm;
mod demo;
mod footprint;
mod inlet;
mod kube;
mod nvml;
mod sink;
mod support;

/// Counts allocations, for the tests of what collecting costs.
#[global_allocator]
static ALLOCATIONS: stats_alloc::StatsAlloc<std::alloc::System> = stats_alloc::StatsAlloc::system();
