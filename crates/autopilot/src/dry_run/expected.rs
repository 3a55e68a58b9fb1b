//! What a dry run expects of an action, and how that compares with what was observed.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::action::{ActionId, Kind};
use crate::state::{ClusterState, JobId, JobState, NodeName, Occupancy, OwnerName, PoolName};

/// Use of a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeUse {
    /// Whether new jobs may start on it.
    pub takes_jobs: bool,
    /// Borrower, while it is lent as a whole.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lent_to: Option<OwnerName>,
}

impl std::fmt::Display for NodeUse {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(if self.takes_jobs { "in service" } else { "out of service" })?;
        self.lent_to.as_ref().map_or(Ok(()), |to| write!(f, ", lent to {to}"))
    }
}

/// What the copy shows after the whole batch, as far as it concerns one action.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Expected {
    /// The action.
    pub action: ActionId,
    /// Its kind.
    pub kind: Kind,
    /// When the state that was copied was observed, µs since 1970.
    pub observed_us: i64,
    /// The other actions of the batch. What the pools show depends on them too.
    #[serde(default)]
    pub beside: Vec<ActionId>,
    /// GPUs that the action's job holds.
    #[serde(default)]
    pub jobs: BTreeMap<JobId, u32>,
    /// Use of the nodes that the action names.
    #[serde(default)]
    pub nodes: BTreeMap<NodeName, NodeUse>,
    /// Free GPUs on nodes in service, of the pools that the action touches.
    #[serde(default)]
    pub free_gpus: BTreeMap<PoolName, u32>,
    /// Waiting jobs of these pools that start, with their GPUs; at most 64 of them.
    #[serde(default)]
    pub starts: BTreeMap<JobId, u32>,
    /// What the copy contradicts although the action goes on, because it restores.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub reports: Vec<String>,
}

impl std::fmt::Display for Expected {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut said: Vec<String> = Vec::new();
        said.extend(self.jobs.iter().map(|(job, gpus)| format!("job {job} holds {gpus} GPUs")));
        said.extend(self.nodes.iter().map(|(node, used)| format!("node {node} is {used}")));
        said.extend(self.free_gpus.iter().map(|(pool, gpus)| format!("{gpus} GPUs of {pool} are free")));
        if !self.starts.is_empty() {
            let jobs: Vec<&str> = self.starts.keys().map(String::as_str).take(8).collect();
            let more = self.starts.len() - jobs.len();
            let more = if more > 0 { format!(" and {more} more") } else { String::new() };
            said.push(format!("job {}{more} can start", jobs.join(", ")));
        }
        said.extend(self.reports.iter().map(|report| format!("but {report}")));
        f.write_str(if said.is_empty() { "nothing is to be seen" } else { "" })?;
        f.write_str(&said.join("; "))
    }
}

/// A difference between what was expected and what was observed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "about", rename_all = "snake_case")]
pub enum Difference {
    /// GPUs of the action's job.
    Job {
        /// The job.
        job: JobId,
        /// GPUs expected.
        expected: u32,
        /// GPUs it holds.
        found: u32,
    },
    /// Use of a node.
    Node {
        /// The node.
        node: NodeName,
        /// Use expected.
        expected: NodeUse,
        /// Use observed. `None`: the node is not there.
        found: Option<NodeUse>,
    },
    /// Free GPUs of a pool.
    FreeGpus {
        /// The pool.
        pool: PoolName,
        /// GPUs expected.
        expected: u32,
        /// GPUs free.
        found: u32,
    },
    /// A waiting job still waits.
    Start {
        /// The job.
        job: JobId,
        /// GPUs it waits for.
        gpus: u32,
    },
}

impl Difference {
    /// Whether it is in what the action itself does, and not in what a scheduler and other people
    /// make of it.
    pub fn is_own(&self) -> bool {
        matches!(self, Self::Job { .. } | Self::Node { .. })
    }
}

impl std::fmt::Display for Difference {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Job { job, expected, found } => {
                write!(f, "job {job} holds {found} GPUs, {expected} were expected")
            }
            Self::Node { node, expected, found: Some(found) } => {
                write!(f, "node {node} is {found}, expected was {expected}")
            }
            Self::Node { node, expected, found: None } => {
                write!(f, "node {node} is gone, expected was {expected}")
            }
            Self::FreeGpus { pool, expected, found } => {
                write!(f, "{found} GPUs of {pool} are free, {expected} were expected")
            }
            Self::Start { job, gpus } => write!(f, "job {job} still waits for {gpus} GPUs"),
        }
    }
}

/// What was expected of an action, compared with the first observation that could show it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Compared {
    /// The action.
    pub action: ActionId,
    /// Its kind.
    pub kind: Kind,
    /// When what it was compared with was observed, µs since 1970.
    pub observed_us: i64,
    /// Actions of the batch that were not done. Then only what the action itself does was compared.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub without: Vec<ActionId>,
    /// Differences. Others may have acted meanwhile, so one is no failure. Empty: all agrees.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub differences: Vec<Difference>,
}

impl std::fmt::Display for Compared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let differences: Vec<String> = self.differences.iter().map(ToString::to_string).collect();
        f.write_str(if differences.is_empty() { "as expected" } else { "" })?;
        f.write_str(&differences.join("; "))?;
        match self.without.len() {
            0 => Ok(()),
            left => write!(f, " (pools were not compared: {left} actions of the batch were not done)"),
        }
    }
}

impl Expected {
    /// Waiting jobs that should have started and still wait in `state`.
    pub fn waiting<'s>(&'s self, state: &ClusterState) -> impl Iterator<Item = (&'s JobId, u32)> {
        let waits = |job: &&JobId| {
            state.jobs.get(*job).is_some_and(|job| matches!(job.state, JobState::Pending { .. }))
        };
        let waiting: Vec<(&JobId, u32)> =
            self.starts.keys().filter(waits).map(|job| (job, self.starts[job])).collect();
        waiting.into_iter()
    }

    /// Compares with `state`. With actions of the batch that were not done (`without`), only what
    /// the action itself does is compared. A job that has ended says nothing.
    pub fn compare(&self, state: &ClusterState, without: Vec<ActionId>) -> Compared {
        let mut differences = Vec::new();
        for (id, expected) in &self.jobs {
            let found = state.jobs.get(id).map(crate::state::Job::held_gpus);
            if let Some(found) = found.filter(|found| found != expected) {
                differences.push(Difference::Job { job: id.clone(), expected: *expected, found });
            }
        }
        for (name, expected) in &self.nodes {
            let found = node_use(state, name);
            if found.as_ref() != Some(expected) {
                let (node, expected) = (name.clone(), expected.clone());
                differences.push(Difference::Node { node, expected, found });
            }
        }
        if without.is_empty() {
            let free = (!self.free_gpus.is_empty()).then(|| Occupancy::of(state));
            for (pool, expected) in &self.free_gpus {
                let found = free.as_ref().map_or(0, |sums| sums.free(pool));
                if found != *expected {
                    differences.push(Difference::FreeGpus { pool: pool.clone(), expected: *expected, found });
                }
            }
            let still = self.waiting(state);
            differences.extend(still.map(|(job, gpus)| Difference::Start { job: job.clone(), gpus }));
        }
        Compared {
            action: self.action.clone(),
            kind: self.kind,
            observed_us: state.at_us,
            without,
            differences,
        }
    }
}

fn node_use(state: &ClusterState, name: &str) -> Option<NodeUse> {
    let takes_jobs = state.nodes.get(name)?.takes_jobs();
    let lent =
        |loan: &&crate::state::Loan| loan.nodes.contains(name) && !loan.reclaiming_nodes.contains(name);
    let lent_to = state.loans.values().find(lent).map(|loan| loan.to.clone());
    Some(NodeUse { takes_jobs, lent_to })
}
