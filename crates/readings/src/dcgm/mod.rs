//! What DCGM and its exporter call their values, and how pages of the exporter are read.

pub mod devices;
pub mod fields;
pub mod page;
