//! What becomes of a decision: proposed → approved → leased → (noticed →) applying → verified, or
//! failed → compensated. Each step is an event that is recorded before the next is taken, so
//! whoever comes after a crash folds the events and goes on.
//!
//! [`Intent::next`] says what to do, [`Intent::judge_apply`] and [`Intent::judge_read_back`] what
//! an answer of the target means, [`Intent::fold`] takes an event. The executor does nothing but
//! ask, record and call.

mod fold;
mod lease;
mod ledger;
mod step;

use serde::{Deserialize, Serialize};

pub use fold::FoldError;
pub use lease::{Lease, LeaseHeld};
pub use ledger::IntentLedger;
pub use step::{Limits, NextStep, Outcome};

use crate::action::{Action, ActionId};
use crate::guard::{PastAction, Refusal};
use crate::planner::Decision;
use crate::target::Receipt;

/// Something that happened to an intent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct IntentEvent {
    /// The action.
    pub action: ActionId,
    /// When.
    pub at_us: i64,
    /// Generation of the lease it was recorded under.
    pub generation: u64,
    /// What.
    #[serde(rename = "what")]
    pub transition: Transition,
}

/// What happened.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "what", rename_all = "snake_case")]
pub enum Transition {
    /// A plan decided on it.
    Proposed {
        /// The decision.
        decision: Box<Decision>,
        /// The plan.
        plan: String,
        /// What the guard is to remember of it once it is begun.
        past: Box<PastAction>,
    },
    /// It may be done.
    Approved {
        /// Who said so: the login, or where approvals are signed the principals and the key's
        /// fingerprint; `policy` where its mode is act.
        by: String,
    },
    /// Somebody approved it in a way that does not count, e.g. without a signature: nothing is
    /// changed by it.
    ApprovalRefused {
        /// Who, as far as they said.
        by: String,
        /// Why it does not count.
        why: String,
    },
    /// Somebody is about to do it; also takes over what another left behind.
    Leased {
        /// Who.
        holder: String,
    },
    /// The jobs it disturbs were told.
    Noticed,
    /// They wrote their checkpoint.
    Acknowledged,
    /// The target is about to be asked: from here on it may have been done.
    Applying,
    /// The target took it.
    Applied {
        /// Its receipt.
        receipt: Receipt,
    },
    /// The target shows it done.
    Verified,
    /// The guard said no, or it was too late: nothing was done.
    Dropped {
        /// The guard's refusal; `None`: too late.
        refusal: Option<Refusal>,
    },
    /// It did not come to be.
    Failed {
        /// Why, in words that are the same for the same failure.
        why: String,
        /// Whether part of it may be there.
        applied: bool,
    },
    /// Somebody else changed what we did: it is theirs, and nothing is undone.
    Yielded {
        /// What is there.
        found: String,
    },
    /// What it may have done is about to be undone.
    Compensating,
    /// It is undone.
    Compensated,
}

/// Where an intent stands.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "stage", rename_all = "snake_case")]
pub enum Stage {
    /// Decided on.
    Proposed,
    /// May be done.
    Approved,
    /// Somebody is about to do it.
    Leased {
        /// When its jobs were told, if they were.
        noticed_us: Option<i64>,
        /// They wrote their checkpoint.
        acknowledged: bool,
    },
    /// The target was or is about to be asked.
    Applying {
        /// Since when.
        since_us: i64,
        /// When the target took it; `None`: nobody knows whether it did.
        applied_us: Option<i64>,
    },
    /// Done and seen.
    Verified {
        /// When.
        at_us: i64,
    },
    /// Not begun, and never will be.
    Dropped,
    /// It did not come to be.
    Failed {
        /// Why.
        why: String,
        /// Part of it may be there.
        applied: bool,
    },
    /// Somebody else's now.
    Yielded,
    /// Being undone.
    Compensating {
        /// Why it failed.
        why: String,
    },
    /// Undone.
    Compensated {
        /// Why it failed.
        why: String,
    },
}

/// An intent: a decision and how far it has come.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Intent {
    /// The decision. Its action carries the generation of the last lease.
    pub decision: Decision,
    /// The plan.
    pub plan: String,
    /// Where it stands.
    pub stage: Stage,
    /// Who approved it.
    pub approved_by: Option<String>,
    /// Greatest generation that has written to it.
    pub generation: u64,
    past: PastAction,
}

impl Intent {
    /// The action under the generation of the last lease.
    pub fn action(&self) -> Action {
        Action { generation: self.generation, ..self.decision.action.clone() }
    }

    /// When it was decided on, or, once it is begun, when that was.
    pub fn at_us(&self) -> i64 {
        self.past.at_us
    }

    /// Whether nothing more will happen to it.
    pub fn is_over(&self) -> bool {
        match &self.stage {
            Stage::Verified { .. } | Stage::Dropped | Stage::Yielded | Stage::Compensated { .. } => true,
            Stage::Failed { applied, .. } => !applied || self.decision.action.inverse.is_none(),
            _ => false,
        }
    }

    /// The action that undoes what this one may have done; `None`: nothing does. The same each
    /// time, so that undoing twice is undoing once. It is asked of the target without the guard's
    /// rates and rests, under switch and generation alone.
    pub fn undoing(&self, now_us: i64, limits: &Limits) -> Option<Action> {
        let action = &self.decision.action;
        Some(Action {
            id: format!("{}-undo", action.id),
            generation: self.generation,
            change: action.inverse.clone()?,
            preconditions: Vec::new(),
            inverse: None,
            expires_us: now_us + limits.verify_within_ms * 1000,
            effect_ends_us: None,
            notice_ms: 0,
            after: Vec::new(),
        })
    }
}

#[cfg(test)]
mod tests;
