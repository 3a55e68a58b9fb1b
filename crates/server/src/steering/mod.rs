//! What people decide about the autopilot of this process: approve, reject, pause and resume.
//!
//! The autopilot itself stands behind [`Steering`]; `routes` are the doors to it. Who may come
//! is in [`crate::access`], and each decision is in the audit table before it is passed on.

mod routes;

use std::fmt;
use std::io;

use serde::Serialize;

pub(crate) use routes::routes;

/// The autopilot of this process, as people steer it. Its methods read and write files, and are
/// called off the threads that answer requests.
pub trait Steering: fmt::Debug + Send + Sync {
    /// Name of its cluster.
    fn cluster(&self) -> &str;

    /// Whether the cluster is simulated: then everybody who reaches the server may steer it.
    fn is_simulated(&self) -> bool {
        false
    }

    /// What there is to decide about.
    ///
    /// # Errors
    /// The switch cannot be read.
    fn standing(&self) -> Result<Standing, SteeringError>;

    /// The text that a person signs to approve an action, or to resume.
    ///
    /// # Errors
    /// The action does not wait for an approval.
    fn statement(&self, of: &ToSign) -> Result<String, SteeringError>;

    /// Takes an instruction, durable on return; the answer says in words what follows.
    ///
    /// # Errors
    /// Why it was not taken.
    fn take(&self, instruction: &Instruction, by: &str) -> Result<String, SteeringError>;
}

/// What a person can sign.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ToSign {
    /// The approval of this action.
    Approval(String),
    /// The switch, to be on.
    Switch,
}

/// A statement and its signature, armoured as `ssh-keygen -Y sign` writes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SignedStatement {
    /// The statement, as [`Steering::statement`] gave it.
    pub statement: String,
    /// The signature.
    pub signature: String,
}

/// What a person tells the autopilot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Instruction {
    /// The action may begin.
    Approve {
        /// Its id.
        action: String,
        /// The person's signature.
        signed: Option<SignedStatement>,
    },
    /// The action must not begin, nor the like for a day.
    Reject {
        /// Its id.
        action: String,
        /// The person's reason.
        why: Option<String>,
    },
    /// Nothing may begin.
    Pause {
        /// The person's reason.
        why: Option<String>,
    },
    /// It may act again.
    Resume {
        /// The person's signature.
        signed: Option<SignedStatement>,
    },
}

/// How an autopilot stands, for people who steer it.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct Standing {
    /// Its cluster.
    pub cluster: String,
    /// Whether that is a simulated one.
    pub simulated: bool,
    /// Whether this process acts; `None` before its first step.
    pub leads: Option<bool>,
    /// The process that acts instead, as far as is known.
    pub leader: Option<String>,
    /// Its last step, seconds since 1970.
    pub stepped_s: Option<i64>,
    /// The kill switch.
    pub switch: SwitchStanding,
    /// Whether approvals and resuming need signatures.
    pub signatures_required: bool,
    /// Actions that have not begun.
    pub waiting: Vec<Waiting>,
    /// Approvals that it has not taken up.
    pub approvals: Vec<GivenApproval>,
    /// Rejections that it has not taken up.
    pub rejections: Vec<GivenRejection>,
}

/// The kill switch.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct SwitchStanding {
    /// Whether it lets the autopilot act.
    pub on: bool,
    /// Who switched, as far as its text tells.
    pub by: Option<String>,
    /// When, RFC 3339.
    pub at: Option<String>,
    /// Why it was paused.
    pub why: Option<String>,
    /// Why it is off although it says `on`.
    pub refused: Option<String>,
}

/// An action that has not begun.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Waiting {
    /// Its id.
    pub action: String,
    /// The plan that decided it.
    pub plan: String,
    /// Kind of decision.
    pub kind: String,
    /// What it changes.
    pub object: String,
    /// Mode of the decision.
    pub mode: String,
    /// `proposed`, `approved` or `leased`.
    pub stage: String,
    /// Whether it begins only once a person approves it.
    pub needs_approval: bool,
    /// Who approved it.
    pub approved_by: Option<String>,
    /// Until when it may begin, RFC 3339.
    pub expires: String,
    /// The planner's reason.
    pub why: String,
}

/// An approval that waits to be taken up.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct GivenApproval {
    /// The action.
    pub action: String,
    /// Who approved.
    pub by: String,
    /// Whether it is signed.
    pub signed: bool,
}

/// A rejection that waits to be taken up.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct GivenRejection {
    /// The action.
    pub action: String,
    /// Who rejected.
    pub by: String,
    /// Why.
    pub why: Option<String>,
}

/// Why an instruction was not taken.
#[derive(Debug, thiserror::Error)]
pub enum SteeringError {
    /// No action of that id waits.
    #[error("no action {0} waits here: it has begun or ended, or there is none of that name")]
    UnknownAction(String),
    /// The action does not wait for this; says why.
    #[error("{0}")]
    NotWaiting(String),
    /// Another process acts, and reads its own folder.
    #[error("another process acts on this cluster now{}", .leader.as_ref().map_or_else(String::new, |it| format!(": {it}")))]
    Standby {
        /// That process, as far as is known.
        leader: Option<String>,
    },
    /// The autopilot has not made its first step, or has stopped.
    #[error("the autopilot of this process has not begun yet, or has stopped")]
    NotReady,
    /// The site requires a signature, and there is none. Says what to ask for to get the text.
    #[error("this site requires a signature, and there is none")]
    Unsigned {
        /// Query of `GET /v1/autopilot/statement` that gives the text to sign.
        statement: String,
        /// Namespace of the signature.
        namespace: &'static str,
    },
    /// The signature does not count; says why.
    #[error("the signature does not count: {0}")]
    Signature(String),
    /// It could not be read or written.
    #[error("the folder of the autopilot cannot be used: {0}")]
    Folder(#[from] io::Error),
}

impl SteeringError {
    /// Stable name of the kind of error.
    pub fn code(&self) -> &'static str {
        match self {
            Self::UnknownAction(_) => "unknown_action",
            Self::NotWaiting(_) => "not_waiting",
            Self::Standby { .. } => "standby",
            Self::NotReady => "not_ready",
            Self::Unsigned { .. } => "signature_required",
            Self::Signature(_) => "signature",
            Self::Folder(_) => "folder",
        }
    }

    /// What to do.
    pub fn hint(&self) -> Option<String> {
        Some(match self {
            Self::UnknownAction(_) | Self::NotWaiting(_) => {
                "GET /v1/autopilot lists what waits; the table decisions has the rest".to_owned()
            }
            Self::Standby { .. } => "ask the process that acts; pause works here too".to_owned(),
            Self::NotReady => "ask again in a moment; the server's log says what it lacks".to_owned(),
            Self::Unsigned { statement, namespace } => format!(
                "GET /v1/autopilot/statement?{statement} > text; ssh-keygen -Y sign -n {namespace} -f KEY text; send both as \
                 \"statement\" and \"signature\""
            ),
            Self::Signature(_) => "sign a new statement, byte for byte as the server gives it".to_owned(),
            Self::Folder(_) => return None,
        })
    }
}
