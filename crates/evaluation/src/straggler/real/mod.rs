//! Checks on real traces, read from a folder of the public files as published.
//!
//! `bytedance_straggler_ops.parquet`: operations of three training jobs
//! (ByteDance-Seed/StragglerAnalysis, Apache-2.0). `alibaba_pai_minibatch_time.parquet`: mini-batch
//! times of two jobs (cluster-trace-gpu-v2020).

mod bytedance;
mod pai;

pub use bytedance::{TracedJob, bytedance};
pub use pai::{WatchedJob, pai};

#[cfg(test)]
mod tests;
