//! Query engine: DataFusion sessions, their memory limit, and the cache of materialized views.

pub mod memory;
mod session;
pub mod view_cache;

pub use session::{DIALECT, Limits, measured_runtime, runtime, session};
