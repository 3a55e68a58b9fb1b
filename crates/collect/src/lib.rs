//! From the world to events: what collectors see on nodes and beside schedulers, and imports of
//! history.
//!
//! Live sources (`nvml`, `dcgm`, `slurm`, …) tell a [`Sink`] what they see, see [`reading`].
//!
//! This crate has no command line and draws no progress bar.

pub mod agent;
mod checkpoint;
pub mod dcgm;
pub mod demo;
pub mod holds;
pub mod inlet;
pub mod kube;
pub mod nvml;
pub mod outlet;
pub mod reading;
pub mod slurm;
mod ticker;
pub mod xid;

pub use reading::{Device, Metric, Reading, Sink, Value};
