//! The log on Kafka: the conformance suite on a real broker, and everything that may befall brokers
//! and producers.
//!
//! `tests/kafka/broker.sh` brings the broker. Where it cannot (no java, no way to Maven's
//! repository), these tests are skipped; with `CI=true` they fail instead.

#![allow(clippy::unwrap_used)]

mod broker;
mod conformance;
mod copies;
mod crash;
mod evolution;
mod families;
mod members;
mod missing;
mod readers;
mod refusals;
mod throughput;
#[cfg(feature = "kafka-tls")]
mod tls;
mod trouble;
mod wire;
