//! Snapshot: all that Slurm shows at one time.

use std::collections::BTreeMap;

use super::config::SlurmConfig;
use super::inventory::{Limits, SlurmNode, SlurmReservation};
use super::notes::Notes;
use super::queue::QueueJob;

/// Jobs, nodes, reservations, limits and our notes at one time.
#[derive(Debug, Clone)]
pub(super) struct Snapshot {
    /// Microseconds since 1970.
    pub at_us: i64,
    pub jobs: Vec<QueueJob>,
    pub nodes: BTreeMap<String, SlurmNode>,
    pub reservations: BTreeMap<String, SlurmReservation>,
    /// Empty without slurmdbd.
    pub limits: Limits,
    pub notes: Notes,
}

impl Snapshot {
    /// A job that has not ended.
    pub(super) fn job(&self, id: &str) -> Option<&QueueJob> {
        self.jobs.iter().find(|job| job.id == id && job.is_open())
    }

    /// Jobs that hold anything of a node, also where it is not known how many of its GPUs.
    pub(super) fn jobs_on<'a>(&'a self, node: &'a str) -> impl Iterator<Item = &'a QueueJob> {
        self.jobs.iter().filter(move |job| job.is_open() && job.nodes.contains(node))
    }

    /// GPUs of nodes.
    pub(super) fn gpus<'a>(&self, nodes: impl IntoIterator<Item = &'a String>) -> u32 {
        nodes.into_iter().filter_map(|node| self.nodes.get(node)).map(|node| node.gpus).sum()
    }

    /// Pool of a node; `None`: it has none, or is not there.
    pub(super) fn pool_of(&self, config: &SlurmConfig, node: &str) -> Option<String> {
        self.nodes.get(node)?.partitions.iter().find_map(|partition| config.pool_of(partition))
    }
}
