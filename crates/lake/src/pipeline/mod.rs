//! Pipelines: what a file may say, what is refused, and in which order they are computed.

mod check;
pub(crate) mod definition;
pub mod gpu_peaks;
mod parse;
pub(crate) mod partials;
mod pass_through;
pub(crate) mod plan;
pub(crate) mod plan_cache;
pub(crate) mod rollup;
mod shipped;

pub use definition::{Extent, Pipeline, Shape};
pub use parse::parse_duration_ms;
pub use plan::{AS_OF, Group, Plan, Planned};
pub use rollup::Rollup;
pub use shipped::shipped;
