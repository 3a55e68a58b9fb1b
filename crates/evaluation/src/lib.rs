//! Evaluation of the models: generated jobs and public traces with known truth, published rivals,
//! and protocols that score both.
//!
//! The generators share no constant with `tidegate-insight`, which they evaluate. [`trace`] reads
//! public traces for the simulator, in which schedulers are compared.
//!
//! ```no_run
//! use tidegate_evaluation::straggler::{Options, run};
//!
//! // One job of a quarter of an hour, without rivals.
//! let options = Options { seeds: (0, 1), hours: Some(0.25), rivals: false, ..Options::default() };
//! let report = run(options);
//! println!("{}", report.table());
//! ```
#![warn(missing_docs)]

mod columns;
pub mod forecast;
#[cfg(test)]
mod run_times;
pub mod sizing;
pub mod straggler;
pub mod trace;

pub use columns::ReadError;
