//! Sums over a state, computed once: GPUs held, free and used.

use std::collections::BTreeMap;

use super::{ClusterState, NodeName, OwnerName, PoolName};

/// GPUs held and free by node, pool and owner.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Occupancy<'a> {
    /// GPUs held, by node. Nodes without jobs are absent.
    pub held: BTreeMap<&'a NodeName, u32>,
    /// GPUs on nodes that take jobs, by pool.
    pub in_service: BTreeMap<&'a PoolName, u32>,
    /// Free GPUs on nodes that take jobs, by pool.
    pub free: BTreeMap<&'a PoolName, u32>,
    /// GPUs held by an owner's jobs, by owner and job's pool.
    pub used: BTreeMap<(&'a OwnerName, &'a PoolName), u32>,
}

impl<'a> Occupancy<'a> {
    /// Sums up `state`. A job on nodes missing from the state still counts for its owner.
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

    /// Free GPUs of `pool` on nodes that take jobs.
    pub fn free(&self, pool: &PoolName) -> u32 {
        self.free.get(pool).copied().unwrap_or(0)
    }

    /// GPUs held by jobs that `owner` submitted to `pool`.
    pub fn used(&self, owner: &OwnerName, pool: &PoolName) -> u32 {
        self.used.get(&(owner, pool)).copied().unwrap_or(0)
    }
}
