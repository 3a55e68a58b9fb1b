//! The autopilot as commands run it: the service on a real cluster, and its journal in the tables.

pub mod record;
pub mod service;
pub mod steering;
