//! Live sources, each against a real counterpart: the real NVML wrapper on a stand-in for the driver's library.

#![allow(clippy::unwrap_used)]

mod demo;
mod nvml;
mod sink;

/// Counts allocations, for the tests of what collecting costs.
#[global_allocator]
static ALLOCATIONS: stats_alloc::StatsAlloc<std::alloc::System> = stats_alloc::StatsAlloc::system();
