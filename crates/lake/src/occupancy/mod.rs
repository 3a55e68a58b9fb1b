//! Who holds the GPUs of a cluster, and what its idle ones are for: the rules of docs/ledger.md
//! from instant to instant.
//!
//! A query gathers *facts* (a node that is there, a job on it, a job that waits), each with the
//! time for which it holds. Between two changes nothing moves, so every sum is exact. [`minute`]
//! adds up one minute of a watched cluster, device by device; [`stretches`] tells how long so many
//! GPUs were idle, and why, where no agent watches. Both use the same [`site`] and the same
//! [`claims`].
//!
//! GPUs count in *units*, sevenths of a thousandth of a GPU, so that shares and MIG slices are
//! whole numbers.

mod claims;
mod fact;
pub mod function;
mod held;
mod minute;
mod node;
mod site;
mod stretches;
#[cfg(test)]
mod tests;

/// Units of a thousandth of a GPU: a MIG slice has some sevenths of it.
const SEVENTHS: i64 = 7;
/// Units of a whole GPU.
const GPU: i64 = 1_000 * SEVENTHS;

/// Units × ms as whole GPU × ms, rounded down; less than nothing is rounded towards nothing.
fn gpu_ms(units_ms: i64) -> i64 {
    units_ms / GPU
}
