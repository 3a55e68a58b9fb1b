//! One module per command.

pub mod autopilot;
pub mod backtest;
pub mod completions;
pub mod explain;
pub mod import;
pub mod insight;
pub mod log;
pub mod man;
pub mod mcp;
pub mod pipeline;
pub mod plan;
pub mod policy;
pub mod price;
pub mod query_worker;
mod rollout;
pub mod schema;
mod signals_note;
pub mod sim;
pub mod sql;
pub mod status;
pub mod token;
pub mod top;
pub mod topology;
pub mod up;

pub use tidegate_workspace::*;

/// Some rows were refused; everything else was done.
pub const EXIT_REJECTS: u8 = 3;
