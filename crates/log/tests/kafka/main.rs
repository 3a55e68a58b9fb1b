//! The log on Kafka: the conformance suite on a real broker, and everything that may befall brokers and producers.
//!
//! `tests/kafka/broker.sh` brings the broker. Where there is neither java nor a way to Maven Central, these tests say so and
//! are left out; with `CI=true` or `TIDEGATE_KAFKA=1` they fail instead.

#![allow(clippy::unwrap_used)]

mod broker;
mod conformance;
mod copies;
mod crash;
mod evolution;
mod families;
mod members;
mod readers;
mod refusals;
mod throughput;
#[cfg(feature = "kafka-tls")]
mod tls;
mod trouble;
mod wire;
