//! Tests of the program and its HTTP service from outside.

#![allow(clippy::unwrap_used)]

mod access;
mod architecture;
mod audit;
mod autopilot;
mod autopilot_doctor;
mod autopilot_slurm;
mod backlog;
mod bad_input;
mod bounds;
/// The brokers that the tests of the log bring, of which not everything is used here.
#[allow(dead_code)]
#[path = "../../../log/tests/kafka/broker.rs"]
mod broker;
mod case_data;
mod certificates;
mod collectors;
mod crash;
mod demo;
mod doors;
mod escapes;
mod evaluation;
mod explain;
mod flight;
mod future;
mod history;
mod http;
mod imports;
mod ingest;
mod insight;
mod kafka;
mod kafka_acls;
mod kafka_moves;
mod ledger;
mod log;
mod mishaps;
mod page;
mod pending;
mod pipelines;
mod poison;
mod postgres;
mod postgres_client;
mod prices;
mod private_files;
mod program;
mod query_workers;
mod reference;
mod retention;
mod schema;
mod sim;
mod sql;
mod status;
mod steering;
mod steering_slurm;
mod support;
mod teams;
mod up;
mod year;
