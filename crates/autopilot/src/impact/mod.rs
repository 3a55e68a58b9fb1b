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

mod amounts;
mod basis;
mod loans;
mod measured;
mod meter;
mod nodes;
mod owners;
mod room;
mod suspects;

pub use basis::{Basis, Gang, Stop};
pub use measured::{Companions, Measured, View};
pub use meter::{LONGEST_US, Meter};
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

impl Measurements {
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.meters.is_empty() && self.suspects.is_none()
    }
}

#[cfg(test)]
mod tests;
