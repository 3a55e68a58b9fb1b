//! Scheduler port: observe the cluster, apply an action once, read its effect back.
//!
//! Slurm and the simulator implement it.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::action::{Action, ActionId, Kind, UnmetPrecondition};
use crate::state::ClusterState;

/// Capabilities of a target, probed when it is opened.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Capabilities {
    /// Name and version, for people.
    pub name: String,
    /// Kinds of action it can carry out.
    pub kinds: BTreeSet<Kind>,
    /// A running job can gain GPUs without stopping.
    pub grow_in_place: bool,
    /// A running job can grow by jobs that join it.
    pub grow_by_satellites: bool,
    /// A running job can give up nodes that we name.
    pub shrink_by_nodes: bool,
    /// A running job can give up part of a node's GPUs.
    pub shrink_within_node: bool,
    /// Reservations and loans end by themselves even if the autopilot is dead.
    pub native_expiry: bool,
    /// Loans name nodes. Otherwise they are a number of GPUs.
    pub lend_nodes: bool,
    /// Shortest delay before a stopped job restarts, ms.
    pub requeue_delay_ms: i64,
    /// Missing capabilities and the reason for each, for people.
    pub lacking: Vec<String>,
}

/// Receipt: the target accepted an action.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Receipt {
    /// The action.
    pub action: ActionId,
    /// When the target accepted it.
    pub at_us: i64,
    /// It was applied before; nothing was done now.
    pub already: bool,
    /// What was done, in the target's own words.
    pub done: String,
}

/// State of a notice to the disturbed jobs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Notice {
    /// The jobs were notified and have not answered.
    Waiting {
        /// When they were notified.
        since_us: i64,
    },
    /// The jobs wrote a checkpoint and acknowledged.
    Acknowledged {
        /// When they acknowledged.
        at_us: i64,
        /// Training step that the checkpoint holds, as the job claims. `None`: it named none.
        saved_step: Option<u64>,
    },
    /// The job does not support notices.
    Unsupported,
}

/// Effect of an action, read from the target.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "effect", rename_all = "snake_case")]
pub enum Effect {
    /// No trace of it.
    Absent,
    /// In progress: for example, GPUs are not free yet.
    Partial {
        /// What is still missing.
        missing: String,
    },
    /// Fully in effect.
    Done {
        /// Since when.
        at_us: i64,
    },
    /// It was in effect, and somebody else changed it since. It is theirs now.
    Overridden {
        /// What is there now.
        found: String,
    },
}

/// Why a target could not act or answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[serde(tag = "error", rename_all = "snake_case")]
pub enum TargetError {
    /// It refused the action, and a retry will not help. Nothing was done.
    #[error("{target} refuses {action}: {why}")]
    Refused {
        /// The target.
        target: String,
        /// The action.
        action: ActionId,
        /// Reason in the target's own words.
        why: String,
    },
    /// It has seen a newer generation: the caller has lost the lease. Nothing was done.
    #[error(
        "generation {generation} is stale: the target has seen {seen}; stop acting and take the lease anew"
    )]
    StaleGeneration {
        /// Generation of the action.
        generation: u64,
        /// Newest generation the target has seen.
        seen: u64,
    },
    /// A precondition does not hold. Nothing was done.
    #[error("precondition no longer true: {0}")]
    Precondition(UnmetPrecondition),
    /// It does not support this kind of action. Nothing was done.
    #[error("{target} cannot {kind}: {why}")]
    Unsupported {
        /// The target.
        target: String,
        /// Kind of action.
        kind: Kind,
        /// What is missing.
        why: String,
    },
    /// It could not be reached. Nothing was done.
    #[error("{target} cannot be reached: {why}")]
    Unreachable {
        /// The target.
        target: String,
        /// What went wrong.
        why: String,
    },
    /// It was asked, but the answer is missing or makes no sense, so the action may have been
    /// applied.
    ///
    /// Read back before anything else. Never treat it as success, as an empty cluster, or as a
    /// drained node.
    #[error("{target} may or may not have done it: {why}")]
    Unknown {
        /// The target.
        target: String,
        /// What went wrong.
        why: String,
    },
}

/// A cluster that can be observed and changed.
///
/// Implementations guarantee four things:
/// - An id that was applied is not applied again, even by another process after a crash: the id is
///   written into the target together with the effect.
/// - The newest generation seen is kept in the target, and older ones are refused.
/// - Preconditions are checked against the target itself, immediately before the effect.
/// - An answer that cannot be understood is [`TargetError::Unknown`].
pub trait Target {
    /// What the target can do.
    fn capabilities(&self) -> Capabilities;

    /// Observes the cluster as it is now.
    ///
    /// # Errors
    /// [`TargetError::Unreachable`] or [`TargetError::Unknown`]; never a partial state.
    fn observe(&mut self) -> Result<ClusterState, TargetError>;

    /// Notifies the jobs that `action` disturbs, or polls their answer. Repeating it notifies
    /// nobody twice.
    ///
    /// # Errors
    /// As for [`Self::apply`].
    fn notify(&mut self, action: &Action) -> Result<Notice, TargetError>;

    /// Applies `action` unless it was applied before. Returns when the target accepts it, not when
    /// it is done.
    ///
    /// # Errors
    /// Why nothing was done, or [`TargetError::Unknown`].
    fn apply(&mut self, action: &Action) -> Result<Receipt, TargetError>;

    /// Reads the effect of `action`.
    ///
    /// # Errors
    /// [`TargetError::Unreachable`] or [`TargetError::Unknown`].
    fn read_back(&mut self, action: &Action) -> Result<Effect, TargetError>;
}
