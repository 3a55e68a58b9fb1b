//! Scenes: generated jobs with faults, confounders, messages and the truth.

mod arrivals;
mod confounders;
mod devices;
mod faults;
mod message;
mod plan;
mod steps;
mod stream;
mod truth;

pub use faults::{Injected, Noise, Place};
pub use message::{Message, MessageBody};
pub use plan::{Plan, Regime};
pub use stream::Stream;
pub use truth::{Event, Relevance, Truth};
