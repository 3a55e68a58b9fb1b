//! The query engine: sessions, the memory that queries share, and rows of views kept between them.

pub mod memory;
mod session;
pub mod view_cache;

pub use session::{DIALECT, Limits, measured_runtime, runtime, session};
