//! What runs on nodes, against what it has to do with: the real NVML wrapper on a stand-in for the
//! driver's library, servers and clients on this machine, real processes that are killed, real logs
//! that go away and come back.
//!
//! Tests that need Kafka are skipped where it cannot be had; with `CI=true` they fail instead.

#![allow(clippy::unwrap_used)]

mod agent;
/// The brokers that the tests of the log bring, of which not everything is used here.
#[allow(dead_code)]
#[path = "../../../log/tests/kafka/broker.rs"]
mod broker;
mod conflicts;
mod dcgm;
mod demo;
mod footprint;
mod full_disk;
mod inlet;
mod kills;
mod kit;
mod kube;
mod nvml;
mod sink;
mod support;

/// Counts allocations, for the tests of what collecting costs.
#[global_allocator]
static ALLOCATIONS: stats_alloc::StatsAlloc<std::alloc::System> = stats_alloc::StatsAlloc::system();
