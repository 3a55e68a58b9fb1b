//! Stragglers: which rank, node or group makes a job slow, since when, why, and what it costs.

mod input;
mod signal;

pub use input::{DeviceWindow, Fault, JobShape, StepReport};
pub use signal::{Blame, Class, Evidence, Signal, Stage};
