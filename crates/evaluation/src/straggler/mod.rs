//! Evaluation of straggler detectors: generated jobs with known faults, a detector and its rivals
//! on the same messages, one score.
//!
//! The jobs are generated from published figures; each constant names its source. The generator
//! shares nothing with the detector but its input and output types. A seed and a regime make one
//! job; half of the jobs are clean.

mod method;
mod options;
mod random;
pub mod real;
mod report;
pub mod rivals;
mod run;
pub mod scene;
mod score;
mod statistics;
mod tidegate;

pub use method::{Alarm, Level, Method, Target};
pub use options::Options;
pub use report::{Group, Interval, Measures, Report};
pub use run::{run, run_job, run_with};
pub use score::{AlarmOutcome, Hit, JobScore, alarm_outcome, score};
pub use tidegate::Tidegate;
