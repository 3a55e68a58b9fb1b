//! What runs on nodes: real processes that are killed, real logs that go away and come back.
//!
//! Tests that need Kafka are left out where it cannot be had; with `CI=true` or `TIDEGATE_KAFKA=1` they fail instead.

#![allow(clippy::unwrap_used)]

mod agent;
/// The brokers that the tests of the log bring, of which not everything is used here.
#[allow(dead_code)]
#[path = "../../../log/tests/kafka/broker.rs"]
mod broker;
mod conflicts;
mod full_disk;
mod kills;
mod kit;
