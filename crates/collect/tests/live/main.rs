//! Collectors against their real surroundings: nvml-wrapper on a stand-in driver library, servers
//! and clients on this machine, killed processes, and logs that go away and come back.
//!
//! Tests that need Kafka are skipped where it is unavailable; with `CI=true` they fail instead.

#![allow(clippy::unwrap_used)]

mod agent;
/// Kafka brokers shared with the log's tests; not everything is used here.
#[allow(dead_code)]
#[path = "../../../log/tests/kafka/broker.rs"]
mod broker;
mod conflicts;
mod dcgm;
mod demo;
mod footprint;
mod full_disk;
mod kills;
mod kit;
mod kube;
mod nvml;
mod receiver;
mod sink;
mod support;

/// Counts allocations, for the cost tests.
#[global_allocator]
static ALLOCATIONS: stats_alloc::StatsAlloc<std::alloc::System> = stats_alloc::StatsAlloc::system();
