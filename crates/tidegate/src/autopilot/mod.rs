//! The autopilot as commands run it: its loop on a real cluster, a demonstration on a simulated
//! one, and its record in the tables.

pub mod demo;
pub mod live;
pub mod record;
