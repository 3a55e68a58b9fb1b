//! What people say about actions: approvals and rejections.

use super::{Executor, Journal, OnlineForecast, StepError};
use crate::intent::{Intent, POLICY_APPROVER, PersonApproval, PersonRejection, Stage, Transition};

impl<J: Journal, F: OnlineForecast> Executor<J, F> {
    /// Rejects actions in the next step, before anything is approved or begins there. If that step
    /// does not lead they are forgotten, and the caller says them again.
    pub fn reject(&mut self, rejected: Vec<PersonRejection>) {
        self.rejected = rejected;
    }

    /// Records rejections of what has not begun. The rest have come too late and change nothing.
    pub(super) fn record_rejected(
        &mut self,
        rejected: &[PersonRejection],
        now_us: i64,
    ) -> Result<(), StepError> {
        for PersonRejection { action, by, why } in rejected {
            if self.journaled.intents.get(action).is_some_and(Intent::is_unbegun) {
                let transition = Transition::Rejected { by: by.clone(), why: why.clone() };
                self.record_step(action, transition, now_us)?;
            }
        }
        Ok(())
    }

    /// Records approvals of what waits for one.
    pub(super) fn approve(&mut self, approved: &[PersonApproval], now_us: i64) -> Result<(), StepError> {
        for PersonApproval { action, by, signed } in approved {
            let intent = self.journaled.intents.get(action);
            let waits = intent.is_some_and(|intent| intent.stage == Stage::Proposed);
            // Only the policy itself may approve as "policy".
            if waits && by != POLICY_APPROVER {
                let transition = Transition::Approved { by: by.clone(), signed: signed.clone() };
                self.record_step(action, transition, now_us)?;
            }
        }
        Ok(())
    }
}
