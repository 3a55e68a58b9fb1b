//! Data that nodes report: GPU readings with units, DCGM's metric names, and training steps.
//!
//! Collectors and imports share it, so a value means the same whichever way it came. It does no
//! I/O. A [`Reading`] has the values of one device at one tick; [`columns::batch`] encodes the
//! readings of a node; [`dcgm`] knows a dcgm-exporter's fields and pages; [`step`] parses the step
//! reports of training jobs.

#![warn(missing_docs)]

pub mod columns;
pub mod counters;
pub mod dcgm;
mod gpu_name;
pub mod json_fields;
mod reading;
pub mod step;

pub use gpu_name::GpuName;
pub use reading::{Device, Metric, MissingReason, Reading, RunningProcess, Value};
