//! Measured impact: what a verified action gained and cost during its prediction period, compared
//! with doing nothing.
//!
//! [`Basis`] is what an action is measured against; it is taken when the action is proposed and
//! recorded with it. A [`Meter`] follows the cluster from the verification on. Between two
//! observations the first is assumed to hold. Nothing here is known to the planner's predictions:
//! both sides are computed from different data.
//!
//! | file | kinds |
//! |---|---|
//! | `loans` | lend, resize |
//! | `owners` | reclaim, quotas, reservations |
//! | `room` | preempt, and shrinks that make room for a job |
//! | `nodes` | drain, return |
//! | `suspects` | what became of nodes with like evidence |

mod basis;
mod loans;
mod meter;
mod nodes;
mod owners;
mod room;
mod suspects;

pub use basis::{Basis, Gang, Stop};
pub use meter::{Companions, LONGEST_US, Measured, Meter, View};
pub use suspects::{Evidence, Suspects};

use serde::{Deserialize, Serialize};

use crate::action::ActionId;
use std::collections::BTreeMap;

/// Measurements that are under way, as the journal keeps them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Measurements {
    /// By action.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub meters: BTreeMap<ActionId, Meter>,
    /// What becomes of suspect nodes. `None` in an entry: as before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub suspects: Option<Suspects>,
}

/// Rates of an action at one observation, thousandths of a GPU; or their sums, GPU-µs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
struct Amounts {
    /// Useful GPU time gained.
    gained: i64,
    /// Useful GPU time that those went without who had to make room.
    forgone: i64,
    /// GPU time that stood idle although it was wanted.
    idle: i64,
}

impl Amounts {
    fn gained(milli: i64) -> Self {
        Self { gained: milli, ..Self::default() }
    }
}

/// Whole GPUs in thousandths.
fn milli(gpus: u32) -> i64 {
    i64::from(gpus) * 1_000
}

/// `amount` times a factor in millionths.
fn times_ppm(amount: i64, ppm: u64) -> i64 {
    let product = i128::from(amount) * i128::from(ppm) / 1_000_000;
    i64::try_from(product).unwrap_or(if amount < 0 { i64::MIN } else { i64::MAX })
}

/// GPUs × ms as GPU-hours in words.
fn hours(gpu_ms: i64) -> String {
    format!("{:.1}", gpu_ms as f64 / 3.6e6)
}

#[cfg(test)]
mod tests;
