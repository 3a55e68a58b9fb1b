//! Signals service: turns events of jobs, steps, devices and nodes into signals, forecasts and
//! advice, as events on the same log.
//!
//! | Stage | Files |
//! |---|---|
//! | Log in, log out; the only I/O | `service` |
//! | State saved with the offsets it stands at | `service/saved`, `stored` |
//! | What earlier lives died of | `watch`, `service/poison` |
//! | Event-time order and the clock | `reorder` |
//! | State of all detectors, and the memory it may take | `detectors`, `budget` |
//! | Stragglers, a job at a time | `job` (`roles`: which ranks are peers) |
//! | Device samples and node health | `device`, `node` |
//! | Allocations, causes of job ends, lemons | `fleet`: `allocations`, `end_causes`, `lemons` |
//! | Demand forecasts, and whether their bounds hold | `demand`, `coverage` |
//! | What capacity to commit to | `sizing` |
//! | How job families scale | `curves` |
//!
//! The models themselves are pure functions of `tidegate-insight`. This crate feeds them in
//! event-time order and publishes each result once, whatever is replayed.
//!
//! ```no_run
//! use std::sync::Arc;
//!
//! use tidegate_log::{EmbeddedLog, EmbeddedOptions};
//! use tidegate_signals::{RunMode, SignalService};
//!
//! let log = EmbeddedLog::open("tidegate-data/log", EmbeddedOptions::default())?;
//! let mut service = SignalService::new(Arc::new(log))?;
//! let stats = service.catch_up(RunMode::Replay, 1_767_225_600_000)?;
//! println!("{} signals written", stats.written);
//! # Ok::<(), tidegate_log::LogError>(())
//! ```
#![warn(missing_docs)]

mod allocations;
mod budget;
mod coverage;
mod curves;
mod demand;
mod detectors;
mod device;
mod end_causes;
mod facts;
mod fleet;
mod input;
mod job;
mod lemons;
mod node;
mod publication;
mod reorder;
mod roles;
mod service;
mod sizing;
mod stored;
mod time;
mod watch;

pub use budget::{DEFAULT_LIMIT_BYTES, MemoryUse};
pub use demand::Demand;
pub use reorder::Counts;
pub use service::{RunMode, ServiceStats, SignalService};
