//! What runs on nodes. Live sources, each against a real counterpart: the real NVML wrapper on a stand-in for the driver's
//! library. The agent behind them: real processes that are killed, real logs that go away and come back.
//!
//! Tests that need Kafka are left out where it cannot be had; with `CI=true` or `TIDEGATE_KAFKA=1` they fail instead.

#![allow(clippy::unwrap_used)]

mod agent;
/// The brokers that the tests of the log bring, of which not everything is used here.
#[allow(dead_code)]
#[path = "../../../log/tests/kafka/broker.rs"]
mod broker;
mod conflicts;
mod demo;
mod full_disk;
mod kills;
mod kit;
mod nvml;
mod sink;

/// Counts allocations, for the tests of what collecting costs.
#[global_allocator]
static ALLOCATIONS: stats_alloc::StatsAlloc<std::alloc::System> = stats_alloc::StatsAlloc::system();
