//! Data of a plan, and of the report that explains it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::action::{Action, Adjustment, Change, Kind};
use crate::forecast::ForecastAnswer;
use crate::policy::{Footprint, Mode};
use crate::state::Object;

/// Predicted effect of a decision compared with doing nothing, in useful GPU time: GPUs × ms of
/// work that counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Predicted {
    /// Expected useful GPU time gained.
    pub benefit_gpu_ms: i64,
    /// The same before it was corrected by the kind's record. `None`: it was not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub raw_benefit_gpu_ms: Option<i64>,
    /// Its cautious, lower end.
    pub benefit_low_gpu_ms: i64,
    /// Expected useful GPU time lost.
    pub cost_gpu_ms: i64,
    /// Its cautious, upper end.
    pub cost_high_gpu_ms: i64,
    /// Net benefit in money, millionths of the currency unit.
    pub net_micros: i64,
    /// Probability that it takes effect and pays, millionths.
    pub confidence_ppm: u32,
    /// Period of the prediction, ms.
    pub over_ms: i64,
}

impl Predicted {
    /// Benefit minus cost.
    pub fn net_gpu_ms(&self) -> i64 {
        self.benefit_gpu_ms - self.cost_gpu_ms
    }

    /// Benefit minus cost at their cautious ends.
    pub fn net_low_gpu_ms(&self) -> i64 {
        self.benefit_low_gpu_ms - self.cost_high_gpu_ms
    }
}

/// A decision: an action, its predicted effect and its reason.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Decision {
    /// The action. Its generation is 0; the leaseholder writes its own.
    pub action: Action,
    /// Its kind.
    pub kind: Kind,
    /// Mode of the policy for it.
    pub mode: Mode,
    /// Name of the canary policy that decided it for its owners. `None`: the base policy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub canary: Option<String>,
    /// What it makes room for: a waiting job, a loan that is being taken back, or a slow node that
    /// its job leaves. `None`: it stands for itself, or [`Action::after`] names what it is part of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub serves: Option<Object>,
    /// The job that it makes room for is owed its GPUs, so they count as missing.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_owed: bool,
    /// Objects it touches.
    #[serde(rename = "reach")]
    pub footprint: Footprint,
    /// GPUs it touches.
    pub gpus: u32,
    /// Predicted effect.
    pub predicted: Predicted,
    /// Why, and why now.
    pub reason: String,
}

impl Decision {
    /// Whether another decision makes the same change, apart from begin and end times.
    pub fn is_same(&self, other: &Self) -> bool {
        same_change(&self.action.change, &other.action.change)
    }
}

/// What to do with a cluster.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// Hash of all inputs.
    pub id: String,
    /// The cluster.
    pub cluster: String,
    /// When it was made.
    pub made_us: i64,
    /// When its state was observed.
    pub observed_us: i64,
    /// Name of the policy.
    pub policy: String,
    /// Hash of the policy.
    pub policy_hash: String,
    /// Hash of the canary that decided for some owners. `None`: there was none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub canary_hash: Option<String>,
    /// Hash of the state.
    pub state_hash: String,
    /// Id of the previous plan, if any.
    pub parent: Option<String>,
    /// Seed of random choices.
    pub seed: u64,
    /// Decisions in execution order.
    pub decisions: Vec<Decision>,
}

/// An alternative that was considered.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Alternative {
    /// The alternative; `noop` means doing nothing.
    pub what: String,
    /// Expected net useful GPU time.
    pub net_gpu_ms: i64,
    /// Why it was not chosen.
    pub why_not: String,
}

/// Considerations about an object.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Considered {
    /// Kind of decision.
    pub kind: Kind,
    /// The object. `None`: all objects.
    pub object: Option<Object>,
    /// Id of the action decided on. `None`: nothing is done.
    pub action: Option<String>,
    /// Reason.
    pub reason: String,
    /// Predicted effect, if computed.
    pub predicted: Option<Predicted>,
    /// Alternatives considered.
    pub alternatives: Vec<Alternative>,
}

/// Kind of advice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Advised {
    /// Request fewer GPUs, because most of them contribute little. Numbers are GPUs.
    RightSize,
    /// Request nodes closer together. Numbers are racks.
    Placement,
}

/// Advice for a person.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Advice {
    /// Kind of advice.
    pub what: Advised,
    /// Object it concerns.
    pub object: Object,
    /// Current number.
    pub now: u32,
    /// Better number.
    pub better: u32,
    /// Reason.
    pub reason: String,
}

/// Explains a plan: every decision, including those not taken.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// Id of the plan.
    pub plan: String,
    /// Considerations in order.
    pub considered: Vec<Considered>,
    /// Answers of the forecast. They allow the plan to be made again without the forecast.
    pub answers: Vec<ForecastAnswer>,
    /// Number of objects considered, by kind.
    pub looked_at: BTreeMap<Kind, u32>,
    /// Advice for people; never carried out unasked.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub advice: Vec<Advice>,
}

/// Whether two changes are the same apart from begin and end times.
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
