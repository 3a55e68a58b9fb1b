//! Sums over a state that many ask for: made once.

use std::collections::BTreeMap;

use super::{ClusterState, NodeName, OwnerName, PoolName};

/// GPUs held and free, by node, pool and owner.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Occupancy<'a> {
    /// GPUs held, by node. Nodes without jobs are not in it.
    pub held: BTreeMap<&'a NodeName, u32>,
    /// GPUs in service (their node takes jobs), by pool.
    pub in_service: BTreeMap<&'a PoolName, u32>,
    /// GPUs of nodes that take jobs and that nobody holds, by pool.
    pub free: BTreeMap<&'a PoolName, u32>,
    /// GPUs that an owner's jobs hold, by owner and pool of the job.
    pub used: BTreeMap<(&'a OwnerName, &'a PoolName), u32>,
}

impl<'a> Occupancy<'a> {
    /// Sums of `state`. A job on nodes that are not in the state counts for its owner.
    pub fn of(state: &'a ClusterState) -> Self {
        let mut out = Self::default();
        for job in state.jobs.values() {
            for (node, gpus) in &job.placement {
                *out.held.entry(node).or_default() += gpus;
            }
            let held = job.held_gpus();
            if held > 0 {
                *out.used.entry((&job.owner, &job.pool)).or_default() += held;
            }
        }
        for (name, node) in &state.nodes {
            if !node.takes_jobs() {
                continue;
            }
            *out.in_service.entry(&node.pool).or_default() += node.gpus;
            *out.free.entry(&node.pool).or_default() += node.gpus.saturating_sub(out.held_on(name));
        }
        out
    }

    /// GPUs held on `node`.
    pub fn held_on(&self, node: &NodeName) -> u32 {
        self.held.get(node).copied().unwrap_or(0)
    }

    /// GPUs of `pool` on nodes that take jobs.
    pub fn in_service(&self, pool: &PoolName) -> u32 {
        self.in_service.get(pool).copied().unwrap_or(0)
    }

    /// GPUs of `pool` on nodes that take jobs and that nobody holds.
    pub fn free(&self, pool: &PoolName) -> u32 {
        self.free.get(pool).copied().unwrap_or(0)
    }

    /// GPUs that jobs of `owner` submitted to `pool` hold.
    pub fn used(&self, owner: &OwnerName, pool: &PoolName) -> u32 {
        self.used.get(&(owner, pool)).copied().unwrap_or(0)
    }
}
