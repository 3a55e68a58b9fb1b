//! Events onto an intent. What does not fit is rejected and changes nothing; what was told before
//! is taken again without effect.

use serde::{Deserialize, Serialize};

use super::{Intent, IntentEvent, Stage, What};

/// Why an event changes nothing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[serde(tag = "reject", rename_all = "snake_case")]
pub enum Reject {
    /// The event is about another action, or about one that was never proposed.
    #[error("action {action} is not known here: its proposal comes first")]
    Unknown {
        /// Its action.
        action: String,
    },
    /// It was recorded by somebody who has lost the lease.
    #[error("generation {generation} is older than {seen}: whoever wrote it has lost the lease")]
    Stale {
        /// Its generation.
        generation: u64,
        /// Greatest generation seen.
        seen: u64,
    },
    /// It does not follow from where the intent stands.
    #[error("{what} does not follow on {stage}")]
    Order {
        /// What was told.
        what: String,
        /// Where the intent stands.
        stage: String,
    },
}

impl Intent {
    /// The intent that a proposal begins.
    pub fn proposed(event: &IntentEvent) -> Result<Self, Reject> {
        let What::Proposed { decision, plan, past } = &event.what else {
            return Err(Reject::Unknown { action: event.action.clone() });
        };
        if decision.action.id != event.action {
            return Err(Reject::Unknown { action: event.action.clone() });
        }
        Ok(Self {
            decision: (**decision).clone(),
            plan: plan.clone(),
            stage: Stage::Proposed,
            approved_by: None,
            generation: event.generation,
            past: (**past).clone(),
        })
    }

    pub(super) fn past(&self) -> &super::Past {
        &self.past
    }

    /// Takes an event.
    ///
    /// # Errors
    /// Why it changes nothing. An older generation never does, whatever it tells.
    pub fn fold(&mut self, event: &IntentEvent) -> Result<(), Reject> {
        if event.action != self.decision.action.id {
            return Err(Reject::Unknown { action: event.action.clone() });
        }
        // A person's approval holds under any lease.
        let by_a_person = matches!(&event.what, What::Approved { .. });
        if event.generation < self.generation && !by_a_person {
            return Err(Reject::Stale { generation: event.generation, seen: self.generation });
        }
        let stage = self.after(event)?;
        match &event.what {
            What::Approved { by } if self.approved_by.is_none() => self.approved_by = Some(by.clone()),
            What::Applying if self.past.at_us < event.at_us => self.past.at_us = event.at_us,
            _ => {}
        }
        self.generation = self.generation.max(event.generation);
        self.stage = stage;
        Ok(())
    }

    /// The stage after `event`.
    fn after(&self, event: &IntentEvent) -> Result<Stage, Reject> {
        let stage = match (&self.stage, &event.what) {
            (Stage::Proposed, What::Approved { .. }) => Stage::Approved,
            (Stage::Approved, What::Leased { .. }) => Stage::Leased { noticed_us: None, acknowledged: false },
            // What another left behind is taken over as it stands.
            (
                Stage::Leased { .. }
                | Stage::Applying { .. }
                | Stage::Failed { .. }
                | Stage::Compensating { .. },
                What::Leased { .. },
            ) => self.stage.clone(),
            (Stage::Leased { noticed_us, acknowledged }, What::Noticed) => Stage::Leased {
                noticed_us: Some(noticed_us.unwrap_or(event.at_us)),
                acknowledged: *acknowledged,
            },
            (Stage::Leased { noticed_us: Some(noticed), .. }, What::Acknowledged) => {
                Stage::Leased { noticed_us: Some(*noticed), acknowledged: true }
            }
            (Stage::Leased { .. }, What::Applying) => {
                Stage::Applying { since_us: event.at_us, applied_us: None }
            }
            (Stage::Applying { .. }, What::Applying) => self.stage.clone(),
            (Stage::Applying { since_us, applied_us }, What::Applied { .. }) => {
                Stage::Applying { since_us: *since_us, applied_us: Some(applied_us.unwrap_or(event.at_us)) }
            }
            (Stage::Applying { .. }, What::Verified) => Stage::Verified { at_us: event.at_us },
            (Stage::Applying { .. }, What::Failed { why, applied }) => {
                Stage::Failed { why: why.clone(), applied: *applied }
            }
            (Stage::Applying { .. } | Stage::Verified { .. }, What::Yielded { .. }) => Stage::Yielded,
            (Stage::Proposed | Stage::Approved | Stage::Leased { .. }, What::Dropped { .. }) => {
                Stage::Dropped
            }
            (Stage::Failed { why, applied: true }, What::Compensating) => {
                Stage::Compensating { why: why.clone() }
            }
            (Stage::Compensating { why }, What::Compensated) => Stage::Compensated { why: why.clone() },
            (_, What::ApprovalRefused { .. }) => self.stage.clone(),
            _ if self.tells_again(&event.what) => self.stage.clone(),
            _ => {
                let what = event.what.name().to_owned();
                return Err(Reject::Order { what, stage: format!("{:?}", self.stage) });
            }
        };
        Ok(stage)
    }

    /// Whether an event tells what is known already.
    fn tells_again(&self, what: &What) -> bool {
        match what {
            What::Proposed { decision, .. } => decision.action.id == self.decision.action.id,
            What::Approved { .. } => self.approved_by.is_some(),
            What::Verified => matches!(self.stage, Stage::Verified { .. }),
            What::Dropped { .. } => self.stage == Stage::Dropped,
            What::Failed { .. } => matches!(self.stage, Stage::Failed { .. }),
            What::Yielded { .. } => self.stage == Stage::Yielded,
            What::Compensating => matches!(self.stage, Stage::Compensating { .. }),
            What::Compensated => matches!(self.stage, Stage::Compensated { .. }),
            What::ApprovalRefused { .. }
            | What::Leased { .. }
            | What::Noticed
            | What::Acknowledged
            | What::Applying
            | What::Applied { .. } => false,
        }
    }
}

impl What {
    /// Its spelling.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Proposed { .. } => "proposed",
            Self::Approved { .. } => "approved",
            Self::ApprovalRefused { .. } => "approval_refused",
            Self::Leased { .. } => "leased",
            Self::Noticed => "noticed",
            Self::Acknowledged => "acknowledged",
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
