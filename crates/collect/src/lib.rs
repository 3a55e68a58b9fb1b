//! Collectors: live sources on nodes and beside schedulers, and the agent that delivers what they
//! see.
//!
//! A source ([`nvml`], [`dcgm`], [`kube`], [`holds`], [`slurm`], [`demo`]) runs on threads of its
//! own and emits readings and events into a [`Sink`]. The [`receiver`] takes step reports and holds
//! from jobs and prologs on the same node. The usual sink is an [`agent`](agent::Agent): it
//! batches, spools to disk, and delivers to a [`LogSink`](log_sink::LogSink), which is a log in
//! this process, on Kafka, or behind HTTP.
//!
//! The crate has no command line; `tidegate-node` has. Design: `docs/design/collection.md`.
//!
//! ```no_run
//! use std::sync::Arc;
//! use tidegate_collect::agent::{Agent, AgentOptions, spool::SpoolOptions};
//! use tidegate_collect::demo::{self, DemoOptions};
//! use tidegate_collect::log_sink::{HttpLogSink, LogSink};
//!
//! let spool = SpoolOptions { dir: "spool".into(), limit_bytes: 1 << 30, take_over: false };
//! let server = "http://localhost:8080";
//! let connect = move || Ok(Box::new(HttpLogSink::new(server, None)) as Box<dyn LogSink>);
//! let agent = Agent::start(AgentOptions::for_node("c1", "n1", spool), Box::new(connect))?;
//! let source = demo::start(DemoOptions::for_node("n1"), agent.sink())?;
//! agent.wait();
//! source.stop();
//! agent.stop(std::time::Duration::from_secs(5), "stopped");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![warn(missing_docs)]

pub mod agent;
mod checkpoint;
pub mod dcgm;
pub mod demo;
pub mod holds;
pub mod kube;
pub mod log_sink;
pub mod nvml;
mod process;
pub mod reading;
pub mod receiver;
pub mod reporters;
pub mod slurm;
mod ticker;
pub mod xid;

pub use reading::{Device, Metric, Reading, Sink, Value};
