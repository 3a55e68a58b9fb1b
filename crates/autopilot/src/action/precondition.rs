//! Preconditions of an action, checked again immediately before it is applied.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::ActionId;
use crate::state::{
    ClusterState, DrainedBy, Job, JobId, JobState, LoanId, NodeName, OwnerName, PoolName, ReservationName,
    Writer,
};

/// A condition on the cluster.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "fact", rename_all = "snake_case")]
pub enum Precondition {
    /// The job runs, on the same attempt and in the same place.
    JobRuns {
        /// The job.
        job: JobId,
        /// Restarts so far.
        restarts: u32,
        /// GPUs by node.
        placement: BTreeMap<NodeName, u32>,
    },
    /// The node is up and not drained.
    NodeTakesJobs {
        /// The node.
        node: NodeName,
    },
    /// The node has no drain, whoever made it.
    NodeNotDrained {
        /// The node.
        node: NodeName,
    },
    /// The node carries our drain, unchanged.
    NodeDrainedByUs {
        /// The node.
        node: NodeName,
        /// Action that drained it.
        action: ActionId,
    },
    /// No job holds a GPU on these nodes.
    NodesFree {
        /// The nodes. An empty set never holds.
        nodes: BTreeSet<NodeName>,
    },
    /// The loan is open with this many GPUs, and our record of it is unchanged.
    LoanIs {
        /// The loan.
        loan: LoanId,
        /// GPUs lent.
        gpus: u32,
    },
    /// The loan ends at this time: it was not extended meanwhile.
    LoanEnds {
        /// The loan.
        loan: LoanId,
        /// End, µs since 1970.
        at_us: i64,
    },
    /// The owner's quota has this many GPUs.
    QuotaIs {
        /// Owner.
        owner: OwnerName,
        /// Pool.
        pool: PoolName,
        /// GPUs.
        gpus: u32,
    },
    /// The owner lends this many GPUs of the pool in total.
    LentIs {
        /// Owner.
        owner: OwnerName,
        /// Pool.
        pool: PoolName,
        /// GPUs.
        gpus: u32,
    },
    /// The owner's demand is known and is at most this many GPUs.
    DemandAtMost {
        /// Owner.
        owner: OwnerName,
        /// Pool.
        pool: PoolName,
        /// GPUs.
        gpus: u32,
    },
    /// The reservation is ours and has this many GPUs.
    ReservationIs {
        /// Name of the reservation.
        name: ReservationName,
        /// GPUs.
        gpus: u32,
    },
    /// No reservation has this name.
    NoReservation {
        /// Name of the reservation.
        name: ReservationName,
    },
}

/// A precondition that does not hold.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{expected}, but {found}")]
pub struct UnmetPrecondition {
    /// What was expected.
    pub expected: String,
    /// What was found.
    pub found: String,
}

fn broken(expected: String, found: impl Into<String>) -> Result<(), UnmetPrecondition> {
    Err(UnmetPrecondition { expected, found: found.into() })
}

impl Precondition {
    /// Requires that the job still runs as `job` does: same attempt, same placement.
    pub fn job_unchanged(id: &JobId, job: &Job) -> Self {
        Self::JobRuns { job: id.clone(), restarts: job.restarts, placement: job.placement.clone() }
    }

    /// Checks the condition on `state`. Whatever the state does not contain fails the check.
    ///
    /// # Errors
    /// What was expected and what was found.
    pub fn check(&self, state: &ClusterState) -> Result<(), UnmetPrecondition> {
        match self {
            Self::JobRuns { job, restarts, placement } => {
                let expected = format!("job {job} runs, started {} times, on {placement:?}", restarts + 1);
                let Some(found) = state.jobs.get(job) else { return broken(expected, "it does not exist") };
                if !matches!(found.state, JobState::Running { .. }) {
                    return broken(expected, format!("it is {:?}", found.state));
                }
                if found.restarts != *restarts || found.placement != *placement {
                    let found = format!("started {} times, on {:?}", found.restarts + 1, found.placement);
                    return broken(expected, found);
                }
                Ok(())
            }
            Self::NodeTakesJobs { node } | Self::NodeNotDrained { node } => {
                let must_be_up = matches!(self, Self::NodeTakesJobs { .. });
                let expected =
                    format!("node {node} {}", if must_be_up { "takes jobs" } else { "is not drained" });
                let Some(found) = state.nodes.get(node) else { return broken(expected, "it does not exist") };
                match &found.drain {
                    Some(drain) => broken(expected, format!("it is drained: {}", drain.reason)),
                    None if must_be_up && !found.takes_jobs() => {
                        broken(expected, format!("it is {:?}", found.state))
                    }
                    None => Ok(()),
                }
            }
            Self::NodeDrainedByUs { node, action } => {
                let expected = format!("node {node} is drained by {action}");
                match state.nodes.get(node).map(|node| &node.drain) {
                    Some(Some(drain)) => match &drain.by {
                        DrainedBy::Autopilot { action: found, .. } if found == action => Ok(()),
                        _ => broken(expected, format!("its drain says: {}", drain.reason)),
                    },
                    Some(None) => broken(expected, "it is not drained"),
                    None => broken(expected, "it does not exist"),
                }
            }
            Self::NodesFree { nodes } => nodes_free(nodes, state),
            Self::LoanIs { loan, gpus } => {
                let expected = format!("loan {loan} is ours, of {gpus} GPUs");
                match state.loans.get(loan) {
                    Some(found) if found.writer == Writer::Other => {
                        broken(expected, "somebody else changed it")
                    }
                    Some(found) if found.gpus != *gpus => broken(expected, format!("it has {}", found.gpus)),
                    Some(_) => Ok(()),
                    None => broken(expected, "it is not open"),
                }
            }
            Self::LoanEnds { loan, at_us } => {
                let expected = format!("loan {loan} ends at {at_us}");
                match state.loans.get(loan).map(|loan| loan.expires_us) {
                    Some(found) if found == *at_us => Ok(()),
                    Some(found) => broken(expected, format!("it ends at {found}")),
                    None => broken(expected, "it is not open"),
                }
            }
            Self::QuotaIs { owner, pool, gpus } => {
                let found = state.share(owner, pool).map(|share| share.quota_gpus);
                number(format!("the quota of {owner} in {pool} is {gpus}"), found, |found| found == *gpus)
            }
            Self::LentIs { owner, pool, gpus } => {
                let found = state.lent_gpus(owner, pool);
                number(format!("{owner} lends {gpus} of {pool}"), Some(found), |found| found == *gpus)
            }
            Self::DemandAtMost { owner, pool, gpus } => {
                let found = state.share(owner, pool).and_then(|share| share.demand_gpus);
                number(format!("demand of {owner} in {pool} is at most {gpus}"), found, |found| {
                    found <= *gpus
                })
            }
            Self::ReservationIs { name, gpus } => {
                let expected = format!("reservation {name} is ours, of {gpus} GPUs");
                match state.reservations.get(name) {
                    Some(found) if found.writer == Writer::Other => {
                        broken(expected, "somebody else changed it")
                    }
                    Some(found) => number(expected, Some(found.gpus), |found| found == *gpus),
                    None => broken(expected, "it does not exist"),
                }
            }
            Self::NoReservation { name } => match state.reservations.get(name) {
                Some(_) => broken(format!("no reservation is called {name}"), "one is"),
                None => Ok(()),
            },
        }
    }
}

fn number(
    expected: String,
    found: Option<u32>,
    right: impl Fn(u32) -> bool,
) -> Result<(), UnmetPrecondition> {
    match found {
        Some(found) if right(found) => Ok(()),
        Some(found) => broken(expected, format!("it is {found}")),
        None => broken(expected, "it is unknown"),
    }
}

/// An empty selection fails: it means nothing, never everything.
fn nodes_free(nodes: &BTreeSet<NodeName>, state: &ClusterState) -> Result<(), UnmetPrecondition> {
    let expected = format!("nodes {nodes:?} are free");
    if nodes.is_empty() {
        return broken(expected, "no node is named");
    }
    if let Some(missing) = nodes.iter().find(|node| !state.nodes.contains_key(*node)) {
        return broken(expected, format!("node {missing} does not exist"));
    }
    for (id, job) in &state.jobs {
        if let Some(node) = job.placement.keys().find(|node| nodes.contains(*node)) {
            return broken(expected, format!("job {id} is on {node}"));
        }
    }
    Ok(())
}
