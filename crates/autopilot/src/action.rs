//! Actions: one change to a cluster each, with its preconditions, its inverse and its end.

mod precondition;

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::state::{JobId, LoanId, NodeName, Object, OwnerName, PoolName, ReservationName};
pub use precondition::{Precondition, UnmetPrecondition};

/// Id of an action. The same decision always has the same id, and a target applies an id once.
pub type ActionId = String;

/// Kind of decision, spelled as in policies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// Grows or shrinks an elastic job.
    ResizeJob,
    /// Lends an owner's idle capacity.
    Lend,
    /// Takes lent capacity back.
    Reclaim,
    /// Changes a quota or a reservation, or proposes a purchase.
    AdjustReservation,
    /// Takes a node out of service.
    DrainNode,
    /// Returns a node that the autopilot drained.
    ReturnNode,
    /// Stops a job to make room for others; it restarts later.
    Preempt,
}

impl Kind {
    /// All kinds.
    pub const ALL: [Self; 7] = [
        Self::ResizeJob,
        Self::Lend,
        Self::Reclaim,
        Self::AdjustReservation,
        Self::DrainNode,
        Self::ReturnNode,
        Self::Preempt,
    ];

    /// Spelling in policies, tables and events.
    pub fn name(self) -> &'static str {
        match self {
            Self::ResizeJob => "resize_job",
            Self::Lend => "lend",
            Self::Reclaim => "reclaim",
            Self::AdjustReservation => "adjust_reservation",
            Self::DrainNode => "drain_node",
            Self::ReturnNode => "return_node",
            Self::Preempt => "preempt",
        }
    }

    /// Whether this kind gives back capacity that the autopilot took. Such actions are owed, so a
    /// bad record does not hold them back.
    pub fn restores(self) -> bool {
        matches!(self, Self::Reclaim | Self::ReturnNode)
    }
}

impl std::fmt::Display for Kind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// The change an action makes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Change {
    /// Changes the size of an elastic job.
    ResizeJob {
        /// The job.
        job: JobId,
        /// GPUs it holds now.
        from_gpus: u32,
        /// GPUs it should hold.
        to_gpus: u32,
        /// Nodes it keeps. A shrink keeps exactly these, the anchor node among them.
        keep_nodes: BTreeSet<NodeName>,
        /// Nodes to grow onto. Empty: the scheduler chooses.
        add_nodes: BTreeSet<NodeName>,
    },
    /// Lets another owner use GPUs until the loan ends. The loan's id is the action's id.
    Lend {
        /// Lender.
        from: OwnerName,
        /// Borrower.
        to: OwnerName,
        /// Pool of the GPUs.
        pool: PoolName,
        /// Number of GPUs.
        gpus: u32,
        /// Nodes lent whole. Empty: a number of GPUs on no particular nodes.
        nodes: BTreeSet<NodeName>,
        /// Loan to extend to this end with the same GPUs and nodes. `None`: opens a new loan.
        extends: Option<LoanId>,
        /// When the target ends the loan by itself: nothing more starts on it and running jobs
        /// stop.
        expires_us: i64,
        /// Promise to the lender: time from the decision to reclaim until the GPUs are free.
        reclaim_within_ms: i64,
    },
    /// Closes part of a loan: the borrower starts nothing more on it.
    ///
    /// [`Change::ResizeJob`] and [`Change::Preempt`] actions with `after` set to this one free what
    /// is in use. Reads back as done once the GPUs are free.
    Reclaim {
        /// The loan.
        loan: LoanId,
        /// GPUs of the loan now.
        from_gpus: u32,
        /// GPUs that stay lent.
        to_gpus: u32,
        /// Nodes to take back. Empty if the loan names no nodes.
        nodes: BTreeSet<NodeName>,
    },
    /// Changes a quota, a reservation or a commitment.
    AdjustReservation(Adjustment),
    /// Stops new jobs on a node; running jobs continue.
    DrainNode {
        /// The node.
        node: NodeName,
        /// Reason, shown to people who inspect the node.
        reason: String,
    },
    /// Lets a node that the autopilot drained take jobs again.
    ReturnNode {
        /// The node.
        node: NodeName,
        /// Action that drained it.
        drained_by: ActionId,
    },
    /// Stops a job, which waits to restart from its last checkpoint.
    Preempt {
        /// The job.
        job: JobId,
        /// GPUs this frees.
        frees_gpus: u32,
    },
}

/// A change of entitlement.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "what", rename_all = "snake_case")]
pub enum Adjustment {
    /// What an owner may use of a pool. Ends no running job.
    Quota {
        /// Owner.
        owner: OwnerName,
        /// Pool.
        pool: PoolName,
        /// GPUs now.
        from_gpus: u32,
        /// GPUs afterwards.
        to_gpus: u32,
    },
    /// Begins, resizes or ends a scheduler reservation.
    Reservation {
        /// Name of the reservation.
        name: ReservationName,
        /// Owner who may use it.
        owner: OwnerName,
        /// Pool it belongs to.
        pool: PoolName,
        /// GPUs now; 0 if it does not exist.
        from_gpus: u32,
        /// GPUs afterwards; 0 gives it up.
        to_gpus: u32,
        /// When it begins.
        start_us: i64,
        /// When it ends by itself.
        end_us: i64,
    },
    /// A purchase for a term. It spends money, so it is only ever proposed.
    Commitment {
        /// Pool to buy for.
        pool: PoolName,
        /// GPUs committed now.
        from_gpus: u32,
        /// GPUs proposed.
        to_gpus: u32,
        /// Term in days.
        term_days: u32,
    },
}

/// One change that a target carries out once.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Action {
    /// Id of the action.
    pub id: ActionId,
    /// Generation of the lease it runs under. Targets refuse generations older than they have seen.
    pub generation: u64,
    /// The change.
    pub change: Change,
    /// Conditions that must hold immediately before.
    pub preconditions: Vec<Precondition>,
    /// Change that undoes it, apart from lost work. `None`: it cannot be undone.
    pub inverse: Option<Change>,
    /// Deadline for applying it; later it is dropped.
    pub expires_us: i64,
    /// When the target ends the effect by itself. `None`: it stays until changed.
    pub effect_ends_us: Option<i64>,
    /// Notice for the disturbed jobs, in which they checkpoint and acknowledge, ms. 0: no notice.
    pub notice_ms: i64,
    /// Actions that must be applied before this one. They need not be verified.
    pub after: Vec<ActionId>,
}

impl Change {
    /// Kind of this change.
    pub fn kind(&self) -> Kind {
        match self {
            Self::ResizeJob { .. } => Kind::ResizeJob,
            Self::Lend { .. } => Kind::Lend,
            Self::Reclaim { .. } => Kind::Reclaim,
            Self::AdjustReservation(_) => Kind::AdjustReservation,
            Self::DrainNode { .. } => Kind::DrainNode,
            Self::ReturnNode { .. } => Kind::ReturnNode,
            Self::Preempt { .. } => Kind::Preempt,
        }
    }

    /// Object it changes. Cooldown, dwell and oscillation are tracked per object.
    pub fn object(&self) -> Object {
        match self {
            Self::ResizeJob { job, .. } | Self::Preempt { job, .. } => Object::Job(job.clone()),
            Self::Lend { from, .. } => Object::Owner(from.clone()),
            Self::Reclaim { loan, .. } => Object::Loan(loan.clone()),
            Self::AdjustReservation(Adjustment::Quota { owner, .. }) => Object::Owner(owner.clone()),
            Self::AdjustReservation(Adjustment::Reservation { name, .. }) => {
                Object::Reservation(name.clone())
            }
            Self::AdjustReservation(Adjustment::Commitment { pool, .. }) => Object::Pool(pool.clone()),
            Self::DrainNode { node, .. } | Self::ReturnNode { node, .. } => Object::Node(node.clone()),
        }
    }

    /// Job it disturbs, if any.
    pub fn job(&self) -> Option<&JobId> {
        match self {
            Self::ResizeJob { job, .. } | Self::Preempt { job, .. } => Some(job),
            _ => None,
        }
    }

    /// Whether it spends money or may be irreversible, and so always needs a person.
    pub fn needs_person(&self) -> bool {
        matches!(self, Self::AdjustReservation(Adjustment::Commitment { .. }))
    }
}
