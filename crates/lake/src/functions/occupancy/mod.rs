//! Occupancy: which job holds which GPU of a cluster, and why the others are idle. Implements the
//! rules of docs/ledger.md.
//!
//! A query collects *facts* (a node exists, a job holds GPUs, a job waits), each with the time in
//! which it holds. Nothing changes between two changes of facts, so every sum is exact. [`minute`]
//! sums up one minute of a cluster watched by agents, device by device. [`stretches`] gives
//! intervals of idle GPUs, with the reason, where no agent watches. Both use the same [`cluster`]
//! and [`claims`].
//!
//! GPUs are counted in *units*, sevenths of a thousandth of a GPU, so that shares and MIG slices
//! are integers.

mod claims;
mod class;
mod cluster;
mod fact;
pub mod function;
mod job_minute;
mod minute;
mod node;
mod stretches;
#[cfg(test)]
mod tests;

/// Units per thousandth of a GPU: a MIG slice is some sevenths of a GPU.
const SEVENTHS: i64 = 7;
/// Units of a whole GPU.
const GPU: i64 = 1_000 * SEVENTHS;

/// Converts units × ms to GPU × ms, rounded toward zero.
fn gpu_ms(units_ms: i64) -> i64 {
    units_ms / GPU
}
