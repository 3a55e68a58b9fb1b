//! Live sources, each against a real counterpart: the real NVML wrapper on a stand-in for the driver's library.

#![allow(clippy::unwrap_used)]

mod nvml;
mod sink;
