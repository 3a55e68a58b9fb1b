//! Query engine: DataFusion sessions, their memory limit, and the cache of materialized views.

mod known_empty;
pub mod memory;
mod session;
pub mod view_cache;

pub use session::{DIALECT, Limits, measured_runtime, query_session, runtime, session};
