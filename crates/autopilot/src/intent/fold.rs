//! Folds events into an intent. An event out of order is rejected and changes nothing; a repeated
//! event has no further effect.

use serde::{Deserialize, Serialize};

use super::{Intent, IntentEvent, Stage, Transition};

/// Why an event was rejected.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[serde(tag = "reject", rename_all = "snake_case")]
pub enum FoldError {
    /// The event is about another action, or about one that was never proposed.
    #[error("action {action} is not known here: its proposal comes first")]
    Unknown {
        /// Action of the event.
        action: String,
    },
    /// It was recorded by a writer that has lost the lease.
    #[error("generation {generation} is older than {seen}: its writer has lost the lease")]
    Stale {
        /// Generation of the event.
        generation: u64,
        /// Newest generation seen.
        seen: u64,
    },
    /// An approval of what another plan decided.
    #[error("the approval is of plan {signed}, and {plan} decided it")]
    OtherPlan {
        /// Plan that was signed.
        signed: String,
        /// Plan of the intent.
        plan: String,
    },
    /// It does not follow from the intent's stage.
    #[error("{what} does not follow on {stage}")]
    Order {
        /// The transition.
        what: String,
        /// The intent's stage.
        stage: String,
    },
}

impl Intent {
    /// The intent that a proposal opens.
    pub fn proposed(event: &IntentEvent) -> Result<Self, FoldError> {
        let Transition::Proposed { decision, plan, past, basis } = &event.transition else {
            return Err(FoldError::Unknown { action: event.action.clone() });
        };
        if decision.action.id != event.action {
            return Err(FoldError::Unknown { action: event.action.clone() });
        }
        Ok(Self {
            decision: (**decision).clone(),
            plan: plan.clone(),
            stage: Stage::Proposed,
            approved_by: None,
            generation: event.generation,
            basis: basis.clone(),
            saved_us: None,
            past: (**past).clone(),
        })
    }

    /// Record for the guard's history.
    pub(crate) fn past(&self) -> &super::PastAction {
        &self.past
    }

    /// Applies an event.
    ///
    /// # Errors
    /// Why it changes nothing. Events of an older generation never change anything.
    pub fn fold(&mut self, event: &IntentEvent) -> Result<(), FoldError> {
        if event.action != self.decision.action.id {
            return Err(FoldError::Unknown { action: event.action.clone() });
        }
        if event.generation < self.generation && !event.transition.is_by_a_person() {
            return Err(FoldError::Stale { generation: event.generation, seen: self.generation });
        }
        if let Transition::Approved { signed: Some(signed), .. } = &event.transition
            && signed.plan != self.plan
        {
            return Err(FoldError::OtherPlan { signed: signed.plan.clone(), plan: self.plan.clone() });
        }
        let stage = self.after(event)?;
        match &event.transition {
            Transition::Approved { by, .. } if self.approved_by.is_none() => {
                self.approved_by = Some(by.clone());
            }
            Transition::Acknowledged { .. } => self.saved_us = Some(event.at_us),
            Transition::Applying if self.past.at_us < event.at_us => self.past.at_us = event.at_us,
            _ => {}
        }
        self.generation = self.generation.max(event.generation);
        self.stage = stage;
        Ok(())
    }

    /// Stage after `event`.
    fn after(&self, event: &IntentEvent) -> Result<Stage, FoldError> {
        let stage = match (&self.stage, &event.transition) {
            (Stage::Proposed, Transition::Approved { .. }) => Stage::Approved,
            (Stage::Approved, Transition::Leased { .. }) => {
                Stage::Leased { noticed_us: None, acknowledged: false }
            }
            // A new leaseholder takes over the stage as it stands.
            (
                Stage::Leased { .. }
                | Stage::Applying { .. }
                | Stage::Failed { .. }
                | Stage::Compensating { .. },
                Transition::Leased { .. },
            ) => self.stage.clone(),
            (Stage::Leased { noticed_us, acknowledged }, Transition::Noticed) => Stage::Leased {
                noticed_us: Some(noticed_us.unwrap_or(event.at_us)),
                acknowledged: *acknowledged,
            },
            (Stage::Leased { noticed_us: Some(noticed), .. }, Transition::Acknowledged { .. }) => {
                Stage::Leased { noticed_us: Some(*noticed), acknowledged: true }
            }
            // The intent begins next, in whatever process.
            (Stage::Leased { noticed_us: Some(_), acknowledged: false }, Transition::NoticeIgnored) => {
                self.stage.clone()
            }
            (Stage::Leased { .. }, Transition::Applying) => {
                Stage::Applying { since_us: event.at_us, applied_us: None }
            }
            (Stage::Applying { .. }, Transition::Applying) => self.stage.clone(),
            (Stage::Applying { since_us, applied_us }, Transition::Applied { .. }) => {
                Stage::Applying { since_us: *since_us, applied_us: Some(applied_us.unwrap_or(event.at_us)) }
            }
            (Stage::Applying { .. }, Transition::Verified) => Stage::Verified { at_us: event.at_us },
            (Stage::Applying { .. }, Transition::Failed { why, applied }) => {
                Stage::Failed { why: why.clone(), applied: *applied }
            }
            (Stage::Applying { .. } | Stage::Verified { .. }, Transition::Yielded { .. }) => Stage::Yielded,
            (Stage::Proposed | Stage::Approved | Stage::Leased { .. }, Transition::Dropped { .. }) => {
                Stage::Dropped
            }
            (Stage::Proposed | Stage::Approved | Stage::Leased { .. }, Transition::Rejected { .. }) => {
                Stage::Dropped
            }
            (Stage::Failed { why, applied: true }, Transition::Compensating) => {
                Stage::Compensating { why: why.clone() }
            }
            (Stage::Compensating { why }, Transition::Compensated) => Stage::Compensated { why: why.clone() },
            (_, Transition::ApprovalRefused { .. }) => self.stage.clone(),
            _ if self.is_repeat(&event.transition) => self.stage.clone(),
            _ => {
                let what = event.transition.name().to_owned();
                return Err(FoldError::Order { what, stage: format!("{:?}", self.stage) });
            }
        };
        Ok(stage)
    }

    /// Whether an event repeats what is already known.
    fn is_repeat(&self, what: &Transition) -> bool {
        match what {
            Transition::Proposed { decision, .. } => decision.action.id == self.decision.action.id,
            Transition::Approved { .. } => self.approved_by.is_some(),
            Transition::Verified => matches!(self.stage, Stage::Verified { .. }),
            Transition::Dropped { .. } | Transition::Rejected { .. } => self.stage == Stage::Dropped,
            Transition::Failed { .. } => matches!(self.stage, Stage::Failed { .. }),
            Transition::Yielded { .. } => self.stage == Stage::Yielded,
            Transition::Compensating => matches!(self.stage, Stage::Compensating { .. }),
            Transition::Compensated => matches!(self.stage, Stage::Compensated { .. }),
            Transition::ApprovalRefused { .. }
            | Transition::Leased { .. }
            | Transition::Noticed
            | Transition::Acknowledged { .. }
            | Transition::NoticeIgnored
            | Transition::Applying
            | Transition::Applied { .. } => false,
        }
    }
}

impl Transition {
    /// Whether it is a person's word, which is valid under any lease.
    pub fn is_by_a_person(&self) -> bool {
        matches!(self, Self::Approved { .. } | Self::Rejected { .. })
    }

    /// Spelling in the journal.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Proposed { .. } => "proposed",
            Self::Approved { .. } => "approved",
            Self::ApprovalRefused { .. } => "approval_refused",
            Self::Rejected { .. } => "rejected",
            Self::Leased { .. } => "leased",
            Self::Noticed => "noticed",
            Self::Acknowledged { .. } => "acknowledged",
            Self::NoticeIgnored => "notice_ignored",
            Self::Applying => "applying",
            Self::Applied { .. } => "applied",
            Self::Verified => "verified",
            Self::Dropped { .. } => "dropped",
            Self::Failed { .. } => "failed",
            Self::Yielded { .. } => "yielded",
            Self::Compensating => "compensating",
            Self::Compensated => "compensated",
        }
    }
}
