//! Stragglers: which rank, node or group makes a job slow, since when, why, and what it costs.
//!
//! A [`Detector`] watches one job. Each step, every rank's computing time, freed of what its tokens
//! explain, is held against its peers' median and against its own past; a CUSUM raises a suspicion,
//! persistence confirms it, evidence names the class. See `Settings` for the thresholds and their
//! sources.
//!
//! The files, in the order the data goes: `step_buffer` (open steps) → `job` (closes a step) →
//! `workload`, `bank` (series) → `episode` (tests) → `cause`, `fusion` (class) → `signal`; `late`
//! for reports after the fact, `throttle` for devices without steps, `structure`, `whatif` and
//! `replay` for what nobody is to blame for, `rental` for when to act.

mod cause;
mod cusum;
mod detector;
mod device;
mod episode;
mod fusion;
mod history;
mod input;
mod job;
mod late_reports;
mod layout;
mod order_statistics;
mod rental;
mod replay;
mod settings;
mod signal;
mod step_buffer;
mod structure;
#[cfg(test)]
mod tests;
mod throttle;
mod whatif;
mod workload;

pub use detector::{Counts, Detector};
pub use input::{DeviceWindow, Fault, JobShape, StepReport};
pub use rental::{Remedy, due, hours_until_due};
pub use replay::Operations;
pub use settings::Settings;
pub use signal::{Blame, Class, Evidence, Signal, Stage};
pub use whatif::{StepTable, Verdict, WhatIf, correlation, what_if};
