//! Keeps the state within its memory: what is least useful is forgotten, and counted.

use super::{Detectors, JobKey};
use crate::budget::{MemoryUse, Shares};
use crate::device::DeviceWindows;

/// Clusters; events of further ones change nothing.
const MAX_CLUSTERS: usize = 256;
/// Of jobs and nodes without signals at most one in so many is forgotten at once.
pub(super) const EVICTED_PART: usize = 16;

impl Detectors {
    /// Sets the limit of the memory of jobs and nodes, bytes.
    pub fn limit_memory(&mut self, bytes: usize) {
        self.memory.limit_bytes = bytes as u64;
        self.stay_within_limit();
    }

    /// Memory that jobs and nodes take, and what was left out.
    pub fn memory(&self) -> MemoryUse {
        let windows = self.open_windows * DeviceWindows::BYTES;
        let held_bytes = (self.jobs.bytes() + self.nodes.bytes() + windows) as u64;
        MemoryUse { held_bytes, ..self.memory }
    }

    /// Counts a job anew that was changed where it is.
    pub fn recount(&mut self, job: &JobKey) {
        self.jobs.recount(job);
        self.stay_within_limit();
    }

    /// Forgets a job that is set aside.
    pub fn forget_job(&mut self, job: &JobKey) {
        self.jobs.forget(job);
    }

    /// Whether another event than a step report has named the cluster.
    pub(super) fn knows_cluster(&self, cluster: &str) -> bool {
        self.clusters.contains(cluster)
    }

    /// Whether events of a cluster count.
    pub(super) fn admits_cluster(&mut self, cluster: &str) -> bool {
        self.clusters.contains(cluster)
            || self.clusters.len() < MAX_CLUSTERS && self.clusters.insert(cluster.to_owned())
    }

    /// Whether another batch of samples may open windows.
    pub(super) fn has_room_for_windows(&self) -> bool {
        self.open_windows * DeviceWindows::BYTES < Shares::of(self.memory.limit_bytes).windows
    }

    /// Forgets nodes where they take more than half of their share, and else jobs.
    pub(super) fn stay_within_limit(&mut self) {
        let most = Shares::of(self.memory.limit_bytes).state;
        while self.jobs.bytes() + self.nodes.bytes() > most {
            let nodes = if self.nodes.bytes() > most / 2 { self.nodes.evict() } else { 0 };
            self.memory.evicted_nodes += nodes as u64;
            if nodes > 0 {
                continue;
            }
            let evicted = self.jobs.evict();
            if evicted.is_empty() {
                break;
            }
            self.memory.evicted_jobs += evicted.len() as u64;
            evicted.into_iter().for_each(|(job, publications)| self.emit(&job, publications));
        }
    }
}
