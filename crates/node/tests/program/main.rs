//! `tidegate-node` from outside: killed, refused, ended.
//!
//! Tests that need Kafka are skipped where it is unavailable; with `CI=true` they fail instead.

#![allow(clippy::unwrap_used)]

mod agent;
/// Kafka brokers shared with the log's tests; not everything is used here.
#[allow(dead_code)]
#[path = "../../../log/tests/kafka/broker.rs"]
mod broker;
mod cost;
mod doctor;
/// Checks shared with the agent's tests; not everything is used here.
#[allow(dead_code)]
#[path = "../../../collect/tests/live/kit.rs"]
mod kit;
