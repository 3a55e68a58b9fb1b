//! What the autopilot may do to a cluster: one change each, with what must be true before it, how
//! it is undone and when it ends.

mod precondition;

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::state::{JobId, LoanId, NodeName, Object, OwnerName, PoolName, ReservationName};
pub use precondition::{Precondition, UnmetPrecondition};

/// Id of an action: the same decision has the same id, and a target carries out an id once.
pub type ActionId = String;

/// A kind of decision, as policies spell it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// Makes an elastic job larger or smaller.
    ResizeJob,
    /// Lends idle capacity of an owner.
    Lend,
    /// Takes lent capacity back.
    Reclaim,
    /// Changes a quota or a reservation, or proposes to buy.
    AdjustReservation,
    /// Takes a node out of service.
    DrainNode,
    /// Puts a node that we drained back.
    ReturnNode,
    /// Stops a job for others; it starts again later.
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

    /// Its spelling in policies, tables and events.
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
}

impl std::fmt::Display for Kind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// What is changed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Change {
    /// An elastic job gets another size.
    ResizeJob {
        /// The job.
        job: JobId,
        /// GPUs it holds.
        from_gpus: u32,
        /// GPUs it shall hold.
        to_gpus: u32,
        /// Nodes it keeps. Of a shrink these and no others; the anchor node is among them.
        keep_nodes: BTreeSet<NodeName>,
        /// Nodes it gets where it grows; empty: the scheduler chooses.
        add_nodes: BTreeSet<NodeName>,
    },
    /// An owner's GPUs may be used by another until the loan ends. Its id is the action's.
    Lend {
        /// Whose they are.
        from: OwnerName,
        /// Who may use them.
        to: OwnerName,
        /// Pool they are of.
        pool: PoolName,
        /// How many.
        gpus: u32,
        /// Nodes lent whole; empty: a number of GPUs and no certain ones.
        nodes: BTreeSet<NodeName>,
        /// The loan that goes on with this end, and these GPUs and nodes, instead of a new one;
        /// `None`: a new loan.
        extends: Option<LoanId>,
        /// When the loan ends by itself, by the target's own means: nothing more starts on it, and
        /// what still runs is stopped.
        expires_us: i64,
        /// Promise to the owner: from the decision to take back until the GPUs are free.
        reclaim_within_ms: i64,
    },
    /// The borrower may start nothing more on what is taken back; [`Change::ResizeJob`] and
    /// [`Change::Preempt`] with `after` this one free what is in use. Read back as done when the
    /// GPUs are free.
    Reclaim {
        /// The loan.
        loan: LoanId,
        /// GPUs of the loan now.
        from_gpus: u32,
        /// GPUs that stay lent.
        to_gpus: u32,
        /// Nodes taken back; empty where no certain ones were lent.
        nodes: BTreeSet<NodeName>,
    },
    /// A quota, a reservation or a commitment changes.
    AdjustReservation(Adjustment),
    /// A node gets no new jobs; running ones go on.
    DrainNode {
        /// The node.
        node: NodeName,
        /// Why, for people who look at the node.
        reason: String,
    },
    /// A node that we drained gets jobs again.
    ReturnNode {
        /// The node.
        node: NodeName,
        /// The action that drained it.
        drained_by: ActionId,
    },
    /// A job is stopped and waits to start again from its last checkpoint.
    Preempt {
        /// The job.
        job: JobId,
        /// GPUs this frees.
        frees_gpus: u32,
    },
}

/// A change of what somebody is entitled to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "what", rename_all = "snake_case")]
pub enum Adjustment {
    /// What an owner may use of a pool. Ends nobody's job.
    Quota {
        /// Whose.
        owner: OwnerName,
        /// Of what.
        pool: PoolName,
        /// GPUs now.
        from_gpus: u32,
        /// GPUs then.
        to_gpus: u32,
    },
    /// A reservation of the scheduler begins, changes its size or ends.
    Reservation {
        /// Its name.
        name: ReservationName,
        /// Who may use it.
        owner: OwnerName,
        /// Pool it is of.
        pool: PoolName,
        /// GPUs now; 0: there is none.
        from_gpus: u32,
        /// GPUs then; 0: it is given up.
        to_gpus: u32,
        /// When it begins.
        start_us: i64,
        /// When it ends by itself.
        end_us: i64,
    },
    /// What is bought for a term. Spends money: only ever a proposal.
    Commitment {
        /// For which pool.
        pool: PoolName,
        /// GPUs committed now.
        from_gpus: u32,
        /// GPUs proposed.
        to_gpus: u32,
        /// For how long.
        term_days: u32,
    },
}

/// An action: one change that a target carries out once.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Action {
    /// Its id.
    pub id: ActionId,
    /// Generation of the lease it is carried out under; a target refuses less than it has seen.
    pub generation: u64,
    /// What is changed.
    pub change: Change,
    /// What must be true immediately before.
    pub preconditions: Vec<Precondition>,
    /// What undoes it, leaving aside the work that was lost; `None`: nothing does.
    pub inverse: Option<Change>,
    /// It must have been applied by then or not at all.
    pub expires_us: i64,
    /// When its effect ends by the target's own means; `None`: it stays until something else
    /// changes it.
    pub effect_ends_us: Option<i64>,
    /// Jobs it disturbs get this long to write a checkpoint and say so before it is applied; 0: no
    /// notice.
    pub notice_ms: i64,
    /// Actions that must have been applied before (not necessarily be done).
    pub after: Vec<ActionId>,
}

impl Change {
    /// Its kind.
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

    /// What it changes: cooldown, dwell and oscillation are kept by this.
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

    /// The job it disturbs, if it disturbs one.
    pub fn job(&self) -> Option<&JobId> {
        match self {
            Self::ResizeJob { job, .. } | Self::Preempt { job, .. } => Some(job),
            _ => None,
        }
    }

    /// Whether money is spent or something may not come back: never done without a person.
    pub fn needs_person(&self) -> bool {
        matches!(self, Self::AdjustReservation(Adjustment::Commitment { .. }))
    }
}
