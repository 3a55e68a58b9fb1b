//! Insight: models for stragglers, node health, demand forecasts, sizing and advice.
//!
//! All of it is pure: time and randomness are arguments, equal input gives equal bytes, and nothing
//! reads a file, a clock or the network.
//!
//! ```
//! use tidegate_insight::sizing::{Prices, Sample, Term, reserve_by_sample};
//!
//! // Demand of 12 GPUs for half of the hours, else 4; a reserved GPU-hour costs 2, on demand 5.
//! let demand = Sample::new([12.0, 4.0].repeat(84))?;
//! let prices = Prices::new(2.0, 5.0, 0.0)?;
//! let term = Term { hours: 168, node_gpus: 4, limit_gpus: None };
//! let reservation = reserve_by_sample(&demand, &prices, term)?;
//! assert_eq!(reservation.gpus, 12);
//! # Ok::<(), tidegate_insight::sizing::SizingError>(())
//! ```
#![warn(missing_docs)]

pub mod advice;
pub mod forecast;
pub mod health;
pub mod sizing;
pub mod straggler;
