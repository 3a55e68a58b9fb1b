//! The autopilot as commands run it: the service on a real cluster, a demonstration on a simulated
//! one, and its journal in the tables.

pub mod demo;
pub mod record;
pub mod service;
