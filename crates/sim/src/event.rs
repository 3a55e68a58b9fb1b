//! What happens, as an observer would see it.

use crate::{Held, Place};

/// Whether happenings are kept for an observer. Keeping them costs memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Recording {
    /// Nothing is kept.
    #[default]
    Off,
    /// All is kept until it is taken.
    On,
}

/// Something that collectors would see.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SimEvent {
    /// A job entered the queue.
    Submitted {
        /// The job, by its place in the list.
        job: u32,
    },
    /// A job began to hold GPUs, or holds others from now on.
    Started {
        /// The job.
        job: u32,
        /// Attempt, from 0.
        attempt: u32,
        /// What it holds.
        held: Held,
    },
    /// An attempt ended.
    Ended {
        /// The job.
        job: u32,
        /// Attempt, from 0.
        attempt: u32,
        /// How.
        how: AttemptEnd,
    },
    /// A node failed or is back.
    NodeUp {
        /// The node.
        node: u32,
        /// Whether it works.
        up: bool,
    },
    /// A node takes no new jobs, or takes them again.
    NodeDrained {
        /// The node.
        node: u32,
        /// Whether it is drained.
        drained: bool,
    },
    /// A node came into other hands.
    NodeMoved {
        /// The node.
        node: u32,
        /// Whose.
        place: Place,
    },
    /// A team may hold another number of GPUs from now on.
    LimitSet {
        /// The team.
        team: usize,
        /// GPUs; `None` is no limit.
        gpus: Option<u32>,
    },
}

/// How an attempt ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AttemptEnd {
    /// It did its work.
    Completed,
    /// It had to go for someone else and waits again.
    Preempted,
    /// A node of it failed and it waits again.
    NodeFailed,
    /// It goes on with other GPUs.
    Resized,
}
