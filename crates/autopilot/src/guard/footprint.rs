//! Footprint of a change: the owners, pools, nodes, jobs and GPUs it touches.

use std::collections::BTreeSet;

use crate::action::{Adjustment, Change};
use crate::policy::Footprint;
use crate::state::{ClusterState, JobId};

/// Objects `change` touches, as far as `state` knows them. Names are unique and sorted.
pub fn footprint(change: &Change, state: &ClusterState) -> Footprint {
    let mut out = Sets::default();
    match change {
        Change::ResizeJob { job, add_nodes, .. } => {
            out.job(job, state);
            out.nodes.extend(add_nodes.iter().cloned());
        }
        Change::Preempt { job, .. } => out.job(job, state),
        Change::Lend { from, to, pool, nodes, .. } => {
            out.owners.extend([from.clone(), to.clone()]);
            out.pools.insert(pool.clone());
            out.nodes.extend(nodes.iter().cloned());
        }
        Change::Reclaim { loan, nodes, .. } => {
            if let Some(loan) = state.loans.get(loan) {
                out.owners.extend([loan.from.clone(), loan.to.clone()]);
                out.pools.insert(loan.pool.clone());
            }
            out.nodes.extend(nodes.iter().cloned());
        }
        Change::AdjustReservation(
            Adjustment::Quota { owner, pool, .. } | Adjustment::Reservation { owner, pool, .. },
        ) => {
            out.owners.insert(owner.clone());
            out.pools.insert(pool.clone());
        }
        Change::AdjustReservation(Adjustment::Commitment { pool, .. }) => {
            out.pools.insert(pool.clone());
        }
        Change::DrainNode { node, .. } | Change::ReturnNode { node, .. } => {
            out.nodes.insert(node.clone());
            out.pools.extend(state.nodes.get(node).map(|node| node.pool.clone()));
        }
    }
    let list = |set: BTreeSet<String>| set.into_iter().collect();
    Footprint {
        owners: list(out.owners),
        pools: list(out.pools),
        nodes: list(out.nodes),
        jobs: list(out.jobs),
    }
}

#[derive(Default)]
struct Sets {
    owners: BTreeSet<String>,
    pools: BTreeSet<String>,
    nodes: BTreeSet<String>,
    jobs: BTreeSet<String>,
}

impl Sets {
    fn job(&mut self, id: &JobId, state: &ClusterState) {
        self.jobs.insert(id.clone());
        if let Some(job) = state.jobs.get(id) {
            self.owners.insert(job.owner.clone());
            self.pools.insert(job.pool.clone());
            self.nodes.extend(job.placement.keys().cloned());
        }
    }
}

/// GPUs `change` touches: those that change hands, and all GPUs of a job that is stopped or
/// restarted to grow.
pub fn gpus_touched(change: &Change, state: &ClusterState) -> u32 {
    match change {
        Change::ResizeJob { from_gpus, to_gpus, .. }
        | Change::Reclaim { from_gpus, to_gpus, .. }
        | Change::AdjustReservation(
            Adjustment::Quota { from_gpus, to_gpus, .. }
            | Adjustment::Reservation { from_gpus, to_gpus, .. }
            | Adjustment::Commitment { from_gpus, to_gpus, .. },
        ) => from_gpus.abs_diff(*to_gpus),
        Change::Lend { gpus, .. } => *gpus,
        Change::DrainNode { node, .. } | Change::ReturnNode { node, .. } => {
            state.nodes.get(node).map_or(0, |node| node.gpus)
        }
        Change::Preempt { frees_gpus, .. } => *frees_gpus,
    }
}
