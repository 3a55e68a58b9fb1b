//! What Slurm, Kubernetes and the simulator do for the autopilot: tell how things stand, carry out
//! an action once, tell what became of it.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::action::{Action, ActionId, Kind, UnmetPrecondition};
use crate::state::ClusterState;

/// What a target can do, probed when it is opened.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Capabilities {
    /// Name and version, for people.
    pub name: String,
    /// Kinds of action it carries out.
    pub kinds: BTreeSet<Kind>,
    /// A running job can get more GPUs without being stopped.
    pub grow_in_place: bool,
    /// A running job can be made larger by jobs that join it.
    pub grow_by_satellites: bool,
    /// A running job can give up nodes that we name.
    pub shrink_by_nodes: bool,
    /// Part of a node's GPUs can be taken from a running job.
    pub shrink_within_node: bool,
    /// Reservations and loans end by the target's own means, with us dead.
    pub native_expiry: bool,
    /// Loans name nodes (else a number of GPUs).
    pub lend_nodes: bool,
    /// It waits this long at least before a job that was stopped starts again.
    pub requeue_delay_ms: i64,
    /// What it lacks of what the autopilot would use, and why, for people.
    pub lacking: Vec<String>,
}

/// That an action was handed to the target.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Receipt {
    /// The action.
    pub action: ActionId,
    /// When the target took it.
    pub at_us: i64,
    /// It had been applied before: nothing was done now.
    pub already: bool,
    /// What was done, in the target's own words.
    pub done: String,
}

/// What became of a notice to a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Notice {
    /// The job was told; it has not said anything yet.
    Waiting {
        /// Since when.
        since_us: i64,
    },
    /// The job wrote a checkpoint and said so.
    Acknowledged {
        /// When.
        at_us: i64,
    },
    /// The job takes no notices.
    Unsupported,
}

/// What an action came to, read from the target itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "effect", rename_all = "snake_case")]
pub enum Effect {
    /// Nothing of it is there.
    Absent,
    /// It is under way, e.g. GPUs are not free yet.
    Partial {
        /// What is missing.
        missing: String,
    },
    /// It is there as asked.
    Done {
        /// Since when.
        at_us: i64,
    },
    /// It was there, and somebody else changed it since: theirs now.
    Overridden {
        /// What is there.
        found: String,
    },
}

/// Why a target did not do or did not tell.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[serde(tag = "error", rename_all = "snake_case")]
pub enum TargetError {
    /// It looked at the action and said no; asking again will not help. Nothing was done.
    #[error("{target} refuses {action}: {why}")]
    Refused {
        /// The target.
        target: String,
        /// The action.
        action: ActionId,
        /// Its own words.
        why: String,
    },
    /// It has seen a newer generation: whoever asks has lost the lease. Nothing was done.
    #[error(
        "generation {generation} is stale: the target has seen {seen}; stop acting and take the lease anew"
    )]
    StaleGeneration {
        /// Generation of the action.
        generation: u64,
        /// Greatest generation seen.
        seen: u64,
    },
    /// What had to be true before is not. Nothing was done.
    #[error("precondition no longer true: {0}")]
    Precondition(UnmetPrecondition),
    /// It does not know this kind of action. Nothing was done.
    #[error("{target} cannot {kind}: {why}")]
    Unsupported {
        /// The target.
        target: String,
        /// The kind.
        kind: Kind,
        /// What is missing.
        why: String,
    },
    /// It could not be asked. Nothing was done.
    #[error("{target} cannot be reached: {why}")]
    Unreachable {
        /// The target.
        target: String,
        /// What happened.
        why: String,
    },
    /// It was asked and the answer is missing or makes no sense: it may or may not have been done.
    /// Read back before anything else; never taken for success, for an empty cluster, or for a
    /// drained node.
    #[error("{target} may or may not have done it: {why}")]
    Unknown {
        /// The target.
        target: String,
        /// What happened.
        why: String,
    },
}

/// A cluster that can be looked at and changed.
///
/// Whoever implements it keeps to four things. An action id that was applied is not applied again,
/// also by another process after a crash: the id is written into the target with the effect. The
/// greatest generation seen is kept in the target, and older ones are refused. Preconditions are
/// checked against the target itself immediately before the effect. An answer that cannot be
/// understood is [`TargetError::Unknown`].
pub trait Target {
    /// What it can do.
    fn capabilities(&self) -> Capabilities;

    /// How things stand now.
    ///
    /// # Errors
    /// [`TargetError::Unreachable`] or [`TargetError::Unknown`]; never part of a state.
    fn observe(&mut self) -> Result<ClusterState, TargetError>;

    /// Tells the jobs that `action` disturbs, or asks what they said. The same action again tells
    /// nobody twice.
    ///
    /// # Errors
    /// As for [`Self::apply`].
    fn notify(&mut self, action: &Action) -> Result<Notice, TargetError>;

    /// Carries out `action` unless it has been: returns when the target took it, not when it is
    /// done.
    ///
    /// # Errors
    /// Why nothing was done, or [`TargetError::Unknown`].
    fn apply(&mut self, action: &Action) -> Result<Receipt, TargetError>;

    /// What `action` came to.
    ///
    /// # Errors
    /// [`TargetError::Unreachable`] or [`TargetError::Unknown`].
    fn read_back(&mut self, action: &Action) -> Result<Effect, TargetError>;
}
