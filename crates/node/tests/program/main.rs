//! `tidegate-node` itself, from outside: killed, refused, ended.
//!
//! Tests that need Kafka are skipped where it cannot be had; with `CI=true` they fail instead.

#![allow(clippy::unwrap_used)]

mod agent;
/// The brokers that the tests of the log bring, of which not everything is used here.
#[allow(dead_code)]
#[path = "../../../log/tests/kafka/broker.rs"]
mod broker;
mod cost;
mod doctor;
/// What the tests of the agent's parts check of a log, of which not everything is used here.
#[allow(dead_code)]
#[path = "../../../collect/tests/live/kit.rs"]
mod kit;
