//! Stragglers: which rank, node or group makes a job slow, since when, why, and at what cost.
//!
//! A [`Detector`] watches one job. At each step the computing time of every rank, less what its
//! tokens explain, is compared with the median of its peers and with its own past. A CUSUM raises a
//! suspicion, persistence confirms it, evidence names the class. [`Settings`] lists the thresholds
//! and their sources.
//!
//! Files in the order of the data: `step_buffer` (open steps) → `job` (closes a step) → `workload`,
//! `cusum` (series) → `episode` (tests) → `cause`, `fusion` (class) → `signal`. `late_reports`
//! inserts reports of closed steps, `throttle` judges devices without step reports, `structure`,
//! `whatif` and `replay` find causes that nobody is to blame for, `rental` decides when to act.

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
