//! Intents: the life of a decision as a state machine.
//!
//! proposed → approved → leased → (noticed →) applying → verified, or failed → compensated. Each
//! transition is recorded before the next step, so a successor folds the events after a crash and
//! continues.
//!
//! [`Intent::next`] chooses the next step, [`Intent::on_apply`] and [`Intent::on_read_back`]
//! interpret the target's answers, and [`Intent::fold`] applies an event. The executor only asks,
//! records and calls.

mod approval;
mod fold;
mod lease;
mod ledger;
mod step;

use serde::{Deserialize, Serialize};
use tidegate_units::Millis;

pub use approval::{PersonApproval, PersonRejection, SignedApproval};
pub use fold::FoldError;
pub use lease::{Lease, LeaseHeld};
pub use ledger::IntentLedger;
pub use step::{Limits, NextStep, Outcome};

use crate::action::{Action, ActionId};
use crate::guard::{PastAction, Refusal};
use crate::impact::{Basis, Measured};
use crate::planner::Decision;
use crate::target::Receipt;

/// Approver of actions whose mode is `act`.
pub const POLICY_APPROVER: &str = "policy";

impl Transition {
    /// An approval by the policy itself.
    pub fn approved_by_policy() -> Self {
        Self::Approved { by: POLICY_APPROVER.to_owned(), signed: None }
    }
}

/// An event in the life of an intent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct IntentEvent {
    /// The action.
    pub action: ActionId,
    /// When.
    pub at_us: i64,
    /// Generation of the lease it was recorded under.
    pub generation: u64,
    /// The transition.
    #[serde(rename = "what")]
    pub transition: Transition,
}

/// A transition of an intent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "what", rename_all = "snake_case")]
pub enum Transition {
    /// A plan decided on it.
    Proposed {
        /// The decision.
        decision: Box<Decision>,
        /// The plan.
        plan: String,
        /// Record for the guard's history once it begins.
        past: Box<PastAction>,
        /// What its effect is measured against. `None`: nothing is known, or it needs nothing.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        basis: Option<Box<Basis>>,
    },
    /// It may begin.
    Approved {
        /// Approver: a login, the signing principals with key fingerprints where approvals are
        /// signed, or `policy` if its mode is `act`.
        by: String,
        /// The approver's signature, where approvals are signed.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        signed: Option<SignedApproval>,
    },
    /// An invalid approval, e.g. without a signature. Changes nothing.
    ApprovalRefused {
        /// Claimed approver.
        by: String,
        /// Why it is invalid.
        why: String,
    },
    /// A person rejected it before it began: nothing was done.
    Rejected {
        /// Who: a login, or a principal of the HTTP door. It is a claim, as rejecting takes no
        /// signature.
        by: String,
        /// The person's reason.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        why: Option<String>,
    },
    /// A leaseholder is about to act. Also takes over from an earlier one.
    Leased {
        /// Leaseholder.
        holder: String,
    },
    /// The disturbed jobs were notified.
    Noticed,
    /// The jobs wrote a checkpoint and acknowledged.
    Acknowledged {
        /// Training step that the checkpoint holds, as the job claims. Nothing is decided by it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        saved_step: Option<u64>,
    },
    /// The notice ran out without an acknowledgement; the jobs are about to be disturbed all the
    /// same.
    NoticeIgnored,
    /// The target is about to be asked; from here on it may have been applied.
    Applying,
    /// The target accepted it.
    Applied {
        /// Its receipt.
        receipt: Receipt,
    },
    /// Read back as done.
    Verified,
    /// Refused by the guard or too late: nothing was done.
    Dropped {
        /// The guard's refusal. `None`: too late.
        refusal: Option<Refusal>,
    },
    /// It failed.
    Failed {
        /// Reason, in the same words for the same failure.
        why: String,
        /// Whether part of it may be in effect.
        applied: bool,
    },
    /// Somebody else changed its effect. It is theirs now, and nothing is undone.
    Yielded {
        /// What was found.
        found: String,
    },
    /// Its possible effects are about to be undone.
    Compensating,
    /// Its effects are undone.
    Compensated,
}

/// Stage of an intent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "stage", rename_all = "snake_case")]
pub enum Stage {
    /// Decided.
    Proposed,
    /// May begin.
    Approved,
    /// A leaseholder is about to act.
    Leased {
        /// When its jobs were notified. `None`: not yet.
        noticed_us: Option<i64>,
        /// Whether the jobs acknowledged.
        acknowledged: bool,
    },
    /// The target was asked, or is about to be.
    Applying {
        /// Since when.
        since_us: i64,
        /// When the target accepted it. `None`: unknown whether it did.
        applied_us: Option<i64>,
    },
    /// Read back as done.
    Verified {
        /// When.
        at_us: i64,
    },
    /// Never begun, and never will be.
    Dropped,
    /// It failed.
    Failed {
        /// Reason.
        why: String,
        /// Whether part of it may be in effect.
        applied: bool,
    },
    /// Somebody else owns the effect now.
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

/// A decision and its progress.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Intent {
    /// The decision.
    pub decision: Decision,
    /// The plan.
    pub plan: String,
    /// Its stage.
    pub stage: Stage,
    /// Approver.
    pub approved_by: Option<String>,
    /// Newest generation that wrote to it.
    pub generation: u64,
    /// What its effect is measured against.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub basis: Option<Box<Basis>>,
    /// When its job acknowledged that it had saved.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub saved_us: Option<i64>,
    past: PastAction,
}

impl Intent {
    /// The action under the newest generation.
    pub fn action(&self) -> Action {
        Action { generation: self.generation, ..self.decision.action.clone() }
    }

    /// When it was decided; once begun, when it began.
    pub fn at_us(&self) -> i64 {
        self.past.at_us
    }

    /// It as something to measure. `None`: it is not verified.
    pub fn measured(&self) -> Option<Measured<'_>> {
        let Stage::Verified { at_us } = self.stage else { return None };
        Some(Measured {
            change: &self.decision.action.change,
            basis: self.basis.as_deref(),
            begun_us: self.at_us(),
            verified_us: at_us,
            saved_us: self.saved_us,
            predicted: &self.decision.predicted,
        })
    }

    /// Whether it is finished.
    pub fn is_over(&self) -> bool {
        match &self.stage {
            Stage::Verified { .. } | Stage::Dropped | Stage::Yielded | Stage::Compensated { .. } => true,
            Stage::Failed { applied, .. } => !applied || self.decision.action.inverse.is_none(),
            _ => false,
        }
    }

    /// Whether the target was never asked, and may still be.
    pub fn is_unbegun(&self) -> bool {
        matches!(self.stage, Stage::Proposed | Stage::Approved | Stage::Leased { .. })
    }

    /// Action that undoes this one's possible effects. `None`: it cannot be undone.
    ///
    /// It has the same id each time, so undoing twice is undoing once. It needs only the kill
    /// switch and the generation, not the guard's rates and rests.
    pub fn undoing(&self, now_us: i64, limits: &Limits) -> Option<Action> {
        let action = &self.decision.action;
        Some(Action {
            id: format!("{}-undo", action.id),
            generation: self.generation,
            change: action.inverse.clone()?,
            preconditions: Vec::new(),
            inverse: None,
            expires_us: now_us + Millis(limits.verify_within_ms).to_micros().0,
            effect_ends_us: None,
            notice_ms: 0,
            after: Vec::new(),
        })
    }
}

#[cfg(test)]
mod tests;
