//! Nodes that reservations keep for one owner in a pool that others use too.
//!
//! The scheduler gives them to nobody else, however free they look: it would refuse growth onto
//! them and a loan of them. The owner's waiting jobs start there by themselves.

use std::collections::{BTreeMap, BTreeSet};

use tidegate_units::Micros;

use super::room::Room;
use crate::policy::Policy;
use crate::state::{ClusterState, JobId, NodeName, Occupancy, OwnerName, PoolName, Reservation};

/// What reservations that have begun, or begin soon, keep.
pub(super) struct Reserved<'a> {
    nodes: BTreeSet<&'a NodeName>,
    starts: BTreeSet<&'a JobId>,
}

impl<'a> Reserved<'a> {
    /// Soon is within the time for which jobs grow and loans are made.
    pub(super) fn of(
        policy: &Policy,
        state: &'a ClusterState,
        occupancy: &Occupancy<'a>,
        now_us: i64,
    ) -> Self {
        let lasts_s = policy.resize.hold_s.max(policy.lend.term_s + policy.lend.reclaim_within_s);
        let soon_us = now_us + Micros::from_secs(lasts_s).0;
        let is_kept = |of: &&Reservation| of.start_us <= soon_us && of.end_us.is_none_or(|end| end > now_us);
        let mut nodes = BTreeSet::new();
        let mut begun = BTreeSet::new();
        let mut rooms: BTreeMap<(&OwnerName, &PoolName), Room> = BTreeMap::new();
        for reservation in state.reservations.values().filter(is_kept) {
            for name in &reservation.nodes {
                let Some(node) = state.nodes.get(name) else { continue };
                if is_alone(state, &reservation.owner, &node.pool) {
                    continue;
                }
                nodes.insert(name);
                // Slurm lets reservations overlap: a node counts once.
                let has_begun = reservation.start_us <= now_us && node.takes_jobs();
                if has_begun && begun.insert((&reservation.owner, name)) {
                    let room = rooms.entry((&reservation.owner, &node.pool)).or_default();
                    room.add(node.gpus.saturating_sub(occupancy.held_on(name)), node.gpus);
                }
            }
        }
        Self { nodes, starts: starts(state, rooms) }
    }

    /// Whether a node is kept for one of several owners of its pool.
    pub(super) fn keeps(&self, node: &NodeName) -> bool {
        self.nodes.contains(node)
    }

    /// Whether the scheduler can start this waiting job in a reservation of its owner.
    pub(super) fn starts(&self, job: &JobId) -> bool {
        self.starts.contains(job)
    }
}

/// Whether nobody but `owner` has a share of the pool.
fn is_alone(state: &ClusterState, owner: &OwnerName, pool: &PoolName) -> bool {
    let has = |of: &crate::state::Owner| of.shares.get(pool).is_some_and(|share| share.quota_gpus > 0);
    let mut having = state.owners.iter().filter(|(_, of)| has(of)).map(|(name, _)| name);
    having.next() == Some(owner) && having.next().is_none()
}

/// Waiting jobs that fit in reservations of their owners, in the scheduler's order.
fn starts<'a>(
    state: &'a ClusterState,
    mut rooms: BTreeMap<(&'a OwnerName, &'a PoolName), Room>,
) -> BTreeSet<&'a JobId> {
    if rooms.is_empty() {
        return BTreeSet::new();
    }
    let mut waiting: Vec<_> =
        state.jobs.iter().filter_map(|(id, job)| Some((id, job, job.pending_since_us()?))).collect();
    waiting.sort_by(|a, b| b.1.priority.cmp(&a.1.priority).then(a.2.cmp(&b.2)).then(a.0.cmp(b.0)));
    let fits = |(id, job, _): (&'a JobId, &'a crate::state::Job, i64)| {
        rooms.get_mut(&(&job.owner, &job.pool))?.take(job.gpus).then_some(id)
    };
    waiting.into_iter().filter_map(fits).collect()
}
