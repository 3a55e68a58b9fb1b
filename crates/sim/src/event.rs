//! Events of a simulation, as an observer sees them.

use crate::{Held, Place};

/// Whether the simulation keeps its events for an observer. Kept events cost memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Recording {
    /// Nothing is kept.
    #[default]
    Off,
    /// Every event is kept until [`Sim::take_events`](crate::Sim::take_events).
    On,
}

/// An event that collectors of a real cluster would report.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SimEvent {
    /// A job entered the queue.
    Submitted {
        /// The job, by its index.
        job: u32,
    },
    /// A job started, or continues with other GPUs.
    Started {
        /// The job.
        job: u32,
        /// Attempt, from 0.
        attempt: u32,
        /// The GPUs it holds.
        held: Held,
    },
    /// An attempt ended.
    Ended {
        /// The job.
        job: u32,
        /// Attempt, from 0.
        attempt: u32,
        /// Why it ended.
        how: AttemptEnd,
    },
    /// A node failed or was repaired.
    NodeUp {
        /// The node.
        node: u32,
        /// Whether it is up.
        up: bool,
    },
    /// A node takes no new jobs, or takes them again.
    NodeDrained {
        /// The node.
        node: u32,
        /// Whether it is drained.
        drained: bool,
    },
    /// A node moved between its owner and a borrower.
    NodeMoved {
        /// The node.
        node: u32,
        /// Its new place.
        place: Place,
    },
    /// The GPU limit of a team changed.
    LimitSet {
        /// The team.
        team: usize,
        /// GPUs; `None` means no limit.
        gpus: Option<u32>,
    },
    /// A reservation was made or resized, or ended.
    Reserved {
        /// Its name.
        name: String,
        /// The team that may use it.
        team: usize,
        /// GPUs; 0 once it has ended.
        gpus: u32,
    },
}

/// How an attempt ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AttemptEnd {
    /// The job finished its work.
    Completed,
    /// It was preempted and waits again.
    Preempted,
    /// One of its nodes failed and it waits again.
    NodeFailed,
    /// It continues with other GPUs.
    Resized,
}
