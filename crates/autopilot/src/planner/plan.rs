//! A plan and the report that says why it is so.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::action::{Action, Adjustment, Change, Kind};
use crate::forecast::ForecastAnswer;
use crate::policy::{Footprint, Mode};
use crate::state::Object;

/// What a decision is expected to come to, against doing nothing. Useful GPU time: GPUs ×
/// milliseconds of work that counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Predicted {
    /// Useful GPU time gained, expected.
    pub benefit_gpu_ms: i64,
    /// Its cautious, lower end.
    pub benefit_low_gpu_ms: i64,
    /// Useful GPU time lost, expected.
    pub cost_gpu_ms: i64,
    /// Its cautious, upper end.
    pub cost_high_gpu_ms: i64,
    /// Benefit less cost in money, millionths of the currency's unit.
    pub net_micros: i64,
    /// Probability that it takes effect and is worth it, millionths.
    pub confidence_ppm: u32,
    /// Time over which this is reckoned, milliseconds.
    pub over_ms: i64,
}

impl Predicted {
    /// Benefit less cost, GPU time.
    pub fn net_gpu_ms(&self) -> i64 {
        self.benefit_gpu_ms - self.cost_gpu_ms
    }

    /// Benefit less cost at their cautious ends.
    pub fn net_low_gpu_ms(&self) -> i64 {
        self.benefit_low_gpu_ms - self.cost_high_gpu_ms
    }
}

/// A decision: an action, what it is expected to come to, and why.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Decision {
    /// What to do. Its generation is 0: whoever holds the lease writes his own.
    pub action: Action,
    /// Its kind.
    pub kind: Kind,
    /// Mode of the policy for it.
    pub mode: Mode,
    /// Name of the candidate that decided it for its owners; `None`: the policy that acts for the
    /// rest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub canary: Option<String>,
    /// What it touches.
    pub reach: Footprint,
    /// GPUs it touches.
    pub gpus: u32,
    /// What it is expected to come to.
    pub predicted: Predicted,
    /// Why, and why now.
    pub reason: String,
}

impl Decision {
    /// Whether another decision changes the same in the same way, leaving aside when it begins and
    /// ends.
    pub fn is_same(&self, other: &Self) -> bool {
        same_change(&self.action.change, &other.action.change)
    }
}

/// What to do with a cluster.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// Its id: a hash of everything it was made from.
    pub id: String,
    /// The cluster.
    pub cluster: String,
    /// When it was made.
    pub made_us: i64,
    /// When the state it was made from was observed.
    pub observed_us: i64,
    /// The policy's name.
    pub policy: String,
    /// Hash of the policy.
    pub policy_hash: String,
    /// Hash of the candidate that decided for some owners; `None`: none did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub canary_hash: Option<String>,
    /// Hash of the state.
    pub state_hash: String,
    /// The plan before, if there was one.
    pub parent: Option<String>,
    /// Seed of what is chosen by chance.
    pub seed: u64,
    /// Decisions, in the order in which they should be carried out.
    pub decisions: Vec<Decision>,
}

/// Another course that was looked at.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Alternative {
    /// What it would have been; `noop`: doing nothing.
    pub what: String,
    /// Useful GPU time it would have gained net, expected.
    pub net_gpu_ms: i64,
    /// Why it was not taken.
    pub why_not: String,
}

/// What was thought about an object.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Considered {
    /// The kind of decision.
    pub kind: Kind,
    /// The object; `None`: all there are.
    pub object: Option<Object>,
    /// The action, where one was decided on; `None`: nothing is done.
    pub action: Option<String>,
    /// Why.
    pub reason: String,
    /// What it would have come to, where that was reckoned.
    pub predicted: Option<Predicted>,
    /// What else was looked at.
    pub alternatives: Vec<Alternative>,
}

/// What is advised.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Advised {
    /// Ask for fewer GPUs: most of them do little. Numbers are GPUs.
    RightSize,
    /// Ask for nodes that are closer together. Numbers are racks.
    Placement,
}

/// Something that a person may do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Advice {
    /// What.
    pub what: Advised,
    /// With which object.
    pub object: Object,
    /// What it has now.
    pub now: u32,
    /// What would be better.
    pub better: u32,
    /// Why.
    pub reason: String,
}

/// Why a plan is what it is: every decision and every one that was not taken.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// The plan's id.
    pub plan: String,
    /// What was thought, in the order in which it was.
    pub considered: Vec<Considered>,
    /// What the forecast answered: with it the plan can be made again without the forecast.
    pub answers: Vec<ForecastAnswer>,
    /// Objects looked at, by kind.
    pub looked_at: BTreeMap<Kind, u32>,
    /// What people may do; nothing of it is ever done unasked.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub advice: Vec<Advice>,
}

/// Whether two changes are the same decision: times at which they begin and end aside.
pub(super) fn same_change(a: &Change, b: &Change) -> bool {
    let timeless = |change: &Change| {
        let mut change = change.clone();
        if let Change::Lend { expires_us, .. } = &mut change {
            *expires_us = 0;
        }
        if let Change::AdjustReservation(Adjustment::Reservation { start_us, end_us, .. }) = &mut change {
            (*start_us, *end_us) = (0, 0);
        }
        if let Change::DrainNode { reason, .. } = &mut change {
            reason.clear();
        }
        change
    };
    timeless(a) == timeless(b)
}
