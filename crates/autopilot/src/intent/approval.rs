//! Approvals and rejections by people.

use serde::{Deserialize, Serialize};

use crate::action::ActionId;

/// A person's approval of an action, or of the restart of a canary.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PersonApproval {
    /// The action, or the canary.
    pub action: ActionId,
    /// The approver: a login, or the signing principals with the key's fingerprint.
    pub by: String,
    /// The signature, where approvals are signed.
    pub signed: Option<SignedApproval>,
}

impl PersonApproval {
    /// An approval that nobody signed.
    pub fn unsigned(action: impl Into<ActionId>, by: impl Into<String>) -> Self {
        Self { action: action.into(), by: by.into(), signed: None }
    }
}

/// A person's rejection of an action that has not begun.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PersonRejection {
    /// The action.
    pub action: ActionId,
    /// Who rejects it.
    pub by: String,
    /// The person's reason.
    pub why: Option<String>,
}

/// What an approver signed beside the cluster and the action, and the signature. Whoever verifies
/// signatures can make the signed text from it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SignedApproval {
    /// The plan that decided the action; of a canary, its beginning.
    pub plan: String,
    /// When it was given, µs since 1970.
    pub given_us: i64,
    /// When it ends, µs since 1970.
    pub expires_us: i64,
    /// The signature, armoured.
    pub signature: String,
}
