//! Which approvals count: where the site asks for signatures, those with a valid one. A rejection
//! takes none: whoever can write the folder may stop the autopilot anyway.

use tidegate_autopilot::executor::{JournalEvent, StepReport};
use tidegate_autopilot::intent::{IntentEvent, PersonApproval, SignedApproval, Transition};

use super::Service;
use crate::authority::Signers;
use crate::control_folder::{Approval, Rejection};

impl Service {
    /// Approvals that count, with the approver. Where signatures are required, refused approvals
    /// are journaled with the reason.
    ///
    /// `leads`: whether this process held the lease at its last step. Before that it does not know
    /// what was decided and cannot check a signature.
    pub(super) fn counted_approvals(&mut self, given: &[Approval], leads: bool) -> Vec<PersonApproval> {
        let Some(signers) = &self.signers else {
            let unsigned = |approval: &Approval| PersonApproval::unsigned(&*approval.action, &*approval.by);
            return given.iter().map(unsigned).collect();
        };
        let mut counted = Vec::new();
        for approval in given.iter().filter(|_| leads) {
            let action = &approval.action;
            let state = self.executor.state();
            let plan = state.intents.get(action).map(|intent| intent.plan.clone());
            // A canary that ended is restarted by an approval too.
            let canary_start = state.canaries.get(action).map(|standing| standing.beginning());
            let Some(about) = plan.clone().or(canary_start) else {
                tracing::warn!("{action} was approved by {}, but no plan decided on it", approval.by);
                continue;
            };
            match signed(signers, approval, &self.config.cluster, &about) {
                Ok(approval) => counted.push(approval),
                Err(why) => {
                    tracing::warn!("the approval of {action} by {} does not count: {why}", approval.by);
                    if plan.is_none() {
                        continue;
                    }
                    let transition = Transition::ApprovalRefused { by: approval.by.clone(), why };
                    // Time and generation are filled in when the entry is written.
                    let event = IntentEvent { action: action.clone(), at_us: 0, generation: 0, transition };
                    self.executor.record_when_leading(JournalEvent::Step(Box::new(event)));
                }
            }
        }
        counted
    }
}

/// Logs rejections that a step as leader did not take up.
pub(super) fn warn_of_late(rejected: &[Rejection], step: &StepReport) {
    for Rejection { action, by, .. } in rejected {
        if !step.steps.iter().any(|(id, transition)| id == action && *transition == "rejected") {
            tracing::warn!("{by} rejected {action}, which had begun or ended already, or was never decided");
        }
    }
}

/// An approval with its signature, as the journal keeps it.
///
/// # Errors
/// It is not signed, or its signature does not count.
fn signed(
    signers: &Signers,
    approval: &Approval,
    cluster: &str,
    plan: &str,
) -> Result<PersonApproval, String> {
    let text = approval.signed.as_ref().ok_or("it is not signed; approve with --key KEY")?;
    let (signer, statement) =
        signers.approval(text, (cluster, &approval.action, plan), chrono::Utc::now())?;
    let signed = SignedApproval {
        plan: statement.plan,
        given_us: statement.given_us,
        expires_us: statement.expires_us,
        signature: text.signature.clone(),
    };
    Ok(PersonApproval { action: approval.action.clone(), by: signer.to_string(), signed: Some(signed) })
}
