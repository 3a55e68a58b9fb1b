//! The copy: nodes, placements, limits and loans of an observed cluster, as far as a scheduler
//! looks at them, indexed so that a change costs what it touches and not the size of the cluster.

use std::collections::{BTreeMap, BTreeSet};

use super::packing::{FreeNodes, Placement};
use crate::policy::Policy;
use crate::state::{ClusterState, Job};

/// Which jobs may use a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Access<'a> {
    /// Jobs of the pool.
    Pool(&'a str),
    /// Jobs of this owner in the pool.
    Reserved {
        /// Owner of the reservation.
        owner: &'a str,
        /// Pool of the node.
        pool: &'a str,
    },
    /// Preemptible jobs of the borrower.
    Lent(&'a str),
}

/// A node of the copy.
#[derive(Debug, Clone, Copy)]
pub(super) struct CopiedNode<'a> {
    pub(super) pool: &'a str,
    pub(super) gpus: u32,
    pub(super) held: u32,
    /// Up and not drained.
    pub(super) in_service: bool,
    /// Borrower, while it is lent as a whole.
    pub(super) lent_to: Option<&'a str>,
    /// Being handed to its borrower, or called back and not returned: nobody starts on it.
    pub(super) in_transit: bool,
    pub(super) reserved_for: Option<&'a str>,
}

impl<'a> CopiedNode<'a> {
    pub(super) fn free(&self) -> u32 {
        self.gpus.saturating_sub(self.held)
    }

    fn access(&self) -> Option<Access<'a>> {
        match (self.lent_to, self.reserved_for) {
            _ if !self.in_service || self.in_transit => None,
            (Some(owner), _) => Some(Access::Lent(owner)),
            (None, Some(owner)) => Some(Access::Reserved { owner, pool: self.pool }),
            (None, None) => Some(Access::Pool(self.pool)),
        }
    }
}

/// A loan of the copy.
#[derive(Debug, Clone)]
pub(super) struct CopiedLoan<'a> {
    pub(super) from: &'a str,
    pub(super) to: &'a str,
    pub(super) pool: &'a str,
    pub(super) gpus: u32,
    /// Empty: a number of GPUs on no particular nodes.
    pub(super) nodes: BTreeSet<&'a str>,
    /// An action takes some of it back.
    pub(super) is_called: bool,
}

/// A reservation of the copy.
#[derive(Debug, Clone)]
pub(super) struct CopiedReservation<'a> {
    pub(super) pool: &'a str,
    pub(super) gpus: u32,
    pub(super) nodes: BTreeSet<&'a str>,
}

/// A job that waits because of what was tried.
#[derive(Debug, Clone, Copy)]
pub(super) struct Requeued {
    /// GPUs with which it starts again.
    pub(super) gpus: u32,
    /// Whether others start before it, because the scheduler lets it wait first.
    pub(super) is_delayed: bool,
}

/// An owner in a pool.
type Seat<'a> = (&'a str, &'a str);

/// A copy of a cluster.
#[derive(Debug, Clone)]
pub(super) struct ClusterCopy<'a> {
    pub(super) policy: &'a Policy,
    pub(super) state: &'a ClusterState,
    pub(super) now_us: i64,
    nodes: BTreeMap<&'a str, CopiedNode<'a>>,
    rooms: BTreeMap<Access<'a>, FreeNodes<'a>>,
    /// Free GPUs on nodes in service, by pool.
    free: BTreeMap<&'a str, u32>,
    /// GPUs on nodes in service, by pool.
    in_service: BTreeMap<&'a str, u32>,
    /// Placements that differ from the observed ones.
    placed: BTreeMap<&'a str, Placement<'a>>,
    /// GPUs that count against an owner's limit.
    used: BTreeMap<Seat<'a>, u32>,
    /// Limits and quotas that differ from the observed ones.
    limits: BTreeMap<Seat<'a>, u32>,
    quotas: BTreeMap<Seat<'a>, u32>,
    pub(super) loans: BTreeMap<&'a str, CopiedLoan<'a>>,
    pub(super) reservations: BTreeMap<&'a str, CopiedReservation<'a>>,
    pub(super) requeued: BTreeMap<&'a str, Requeued>,
    /// GPUs that jobs leave, by node, and by owner and pool. They are free once all is done.
    leaving: Vec<(&'a str, u32)>,
    leaving_of: Vec<(Seat<'a>, u32)>,
    /// Objects looked at so far: what a dry run costs.
    pub(super) visited: u64,
}

impl<'a> ClusterCopy<'a> {
    pub(super) fn of(policy: &'a Policy, state: &'a ClusterState, now_us: i64) -> Self {
        let mut copy = Self {
            policy,
            state,
            now_us,
            nodes: BTreeMap::new(),
            rooms: BTreeMap::new(),
            free: BTreeMap::new(),
            in_service: BTreeMap::new(),
            placed: BTreeMap::new(),
            used: BTreeMap::new(),
            limits: BTreeMap::new(),
            quotas: BTreeMap::new(),
            loans: BTreeMap::new(),
            reservations: BTreeMap::new(),
            requeued: BTreeMap::new(),
            leaving: Vec::new(),
            leaving_of: Vec::new(),
            visited: 0,
        };
        let mut nodes = copy.bare_nodes();
        copy.add_loans(&mut nodes);
        copy.add_reservations(&mut nodes);
        for (id, job) in &state.jobs {
            copy.visited += 1 + job.placement.len() as u64;
            for (node, gpus) in &job.placement {
                if let Some(node) = nodes.get_mut(node.as_str()) {
                    node.held += gpus;
                }
            }
            if copy.counts(id) && !job.placement.is_empty() {
                *copy.used.entry((&job.owner, &job.pool)).or_default() += job.held_gpus();
            }
        }
        nodes.into_iter().for_each(|(name, node)| copy.insert(name, node));
        copy
    }

    fn bare_nodes(&mut self) -> BTreeMap<&'a str, CopiedNode<'a>> {
        self.visited += self.state.nodes.len() as u64;
        let bare = |(name, node): (&'a String, &'a crate::state::Node)| {
            let copied = CopiedNode {
                pool: &node.pool,
                gpus: node.gpus,
                held: 0,
                in_service: node.takes_jobs(),
                lent_to: None,
                in_transit: false,
                reserved_for: None,
            };
            (name.as_str(), copied)
        };
        self.state.nodes.iter().map(bare).collect()
    }

    fn add_loans(&mut self, nodes: &mut BTreeMap<&'a str, CopiedNode<'a>>) {
        for (id, loan) in &self.state.loans {
            self.visited += 1 + loan.nodes.len() as u64;
            for name in &loan.nodes {
                if let Some(node) = nodes.get_mut(name.as_str()) {
                    node.lent_to = Some(&loan.to);
                    node.in_transit = loan.reclaiming_nodes.contains(name);
                }
            }
            let nodes = loan.nodes.iter().map(String::as_str).collect();
            let copied = CopiedLoan {
                from: &loan.from,
                to: &loan.to,
                pool: &loan.pool,
                gpus: loan.gpus,
                nodes,
                is_called: false,
            };
            self.loans.insert(id, copied);
        }
    }

    fn add_reservations(&mut self, nodes: &mut BTreeMap<&'a str, CopiedNode<'a>>) {
        for (name, found) in &self.state.reservations {
            self.visited += 1 + found.nodes.len() as u64;
            let is_active = found.start_us <= self.now_us && found.end_us.is_none_or(|end| end > self.now_us);
            for node in found.nodes.iter().filter(|_| is_active) {
                if let Some(node) = nodes.get_mut(node.as_str()) {
                    node.reserved_for = Some(&found.owner);
                }
            }
            let nodes = found.nodes.iter().map(String::as_str).collect();
            let copied = CopiedReservation { pool: &found.pool, gpus: found.gpus, nodes };
            self.reservations.insert(name, copied);
        }
    }

    fn insert(&mut self, name: &'a str, node: CopiedNode<'a>) {
        if node.in_service {
            *self.free.entry(node.pool).or_default() += node.free();
            *self.in_service.entry(node.pool).or_default() += node.gpus;
        }
        if let Some(access) = node.access() {
            self.rooms.entry(access).or_default().insert(name, node.free(), node.gpus);
        }
        self.nodes.insert(name, node);
    }

    /// Changes a node and all sums and indexes with it.
    pub(super) fn change_node(&mut self, name: &str, change: impl FnOnce(&mut CopiedNode<'a>)) {
        let Some((name, mut node)) = self.nodes.remove_entry(name) else { return };
        self.visited += 1;
        if node.in_service {
            *self.free.entry(node.pool).or_default() -= node.free();
            *self.in_service.entry(node.pool).or_default() -= node.gpus;
        }
        if let Some(room) = node.access().and_then(|access| self.rooms.get_mut(&access)) {
            room.remove(name, node.free());
        }
        change(&mut node);
        self.insert(name, node);
    }

    pub(super) fn node(&self, name: &str) -> Option<&CopiedNode<'a>> {
        self.nodes.get(name)
    }

    pub(super) fn room(&self, access: Access<'a>) -> Option<&FreeNodes<'a>> {
        self.rooms.get(&access)
    }

    /// Free GPUs of a pool on nodes in service, whoever may use them.
    pub(super) fn free_gpus(&self, pool: &str) -> u32 {
        self.free.get(pool).copied().unwrap_or(0)
    }

    pub(super) fn in_service_gpus(&self, pool: &str) -> u32 {
        self.in_service.get(pool).copied().unwrap_or(0)
    }

    /// Whether what a job holds counts against its owner's limit. GPUs lent by number come on top
    /// of the limit; on nodes that are lent whole the limit holds as elsewhere.
    fn counts(&self, id: &str) -> bool {
        let loan = self.state.jobs.get(id).and_then(|job| self.state.loans.get(job.loan.as_ref()?));
        loan.is_none_or(|loan| !loan.nodes.is_empty())
    }

    /// GPUs that a job holds, by node.
    pub(super) fn placement(&self, id: &str) -> Placement<'a> {
        if let Some(placed) = self.placed.get(id) {
            return placed.clone();
        }
        let observed = self.state.jobs.get(id).map(|job| &job.placement);
        observed.into_iter().flatten().map(|(node, gpus)| (node.as_str(), *gpus)).collect()
    }

    pub(super) fn held_gpus(&self, id: &str) -> u32 {
        self.placement(id).values().sum()
    }

    /// Gives a job another placement. GPUs that it leaves stay held until [`Self::release`]: its
    /// processes end meanwhile.
    pub(super) fn place(&mut self, id: &'a str, job: &'a Job, to: Placement<'a>) {
        let from = self.placement(id);
        let mut left = 0;
        for (node, had) in &from {
            let less = had.saturating_sub(to.get(node).copied().unwrap_or(0));
            left += less;
            self.leaving.extend((less > 0).then_some((*node, less)));
        }
        let mut gained = 0;
        for (node, has) in &to {
            let more = has.saturating_sub(from.get(node).copied().unwrap_or(0));
            gained += more;
            if more > 0 {
                self.change_node(node, |node| node.held += more);
            }
        }
        if self.counts(id) {
            let seat: Seat<'a> = (&job.owner, &job.pool);
            self.leaving_of.extend((left > 0).then_some((seat, left)));
            *self.used.entry(seat).or_default() += gained;
        }
        self.placed.insert(id, to);
    }

    /// Frees the GPUs that jobs have left.
    pub(super) fn release(&mut self) {
        for (node, gpus) in std::mem::take(&mut self.leaving) {
            self.change_node(node, |node| node.held = node.held.saturating_sub(gpus));
        }
        for (seat, gpus) in std::mem::take(&mut self.leaving_of) {
            let used = self.used.entry(seat).or_default();
            *used = used.saturating_sub(gpus);
        }
    }

    /// GPUs of `owner` in `pool` that count against its limit.
    pub(super) fn used_gpus(&self, owner: &str, pool: &str) -> u32 {
        self.used.get(&(owner, pool)).copied().unwrap_or(0)
    }

    /// Most GPUs that `owner` may use of `pool`. `None`: no limit.
    pub(super) fn limit_gpus(&self, owner: &str, pool: &str) -> Option<u32> {
        let observed = || self.state.share(owner, pool).and_then(|share| share.limit_gpus);
        self.limits.get(&(owner, pool)).copied().or_else(observed)
    }

    pub(super) fn quota_gpus(&self, owner: &str, pool: &str) -> u32 {
        let observed = || self.state.share(owner, pool).map_or(0, |share| share.quota_gpus);
        self.quotas.get(&(owner, pool)).copied().unwrap_or_else(observed)
    }

    pub(super) fn set_quota(&mut self, owner: &'a str, pool: &'a str, gpus: u32) {
        self.quotas.insert((owner, pool), gpus);
        self.limits.insert((owner, pool), gpus);
    }

    /// Moves a limit, if there is one.
    pub(super) fn move_limit(&mut self, owner: &'a str, pool: &'a str, by: i64) {
        if let Some(limit) = self.limit_gpus(owner, pool) {
            let moved = (i64::from(limit) + by).clamp(0, i64::from(u32::MAX));
            self.limits.insert((owner, pool), moved as u32);
        }
    }

    /// GPUs of `pool` that `owner` lends.
    pub(super) fn lent_gpus(&self, owner: &str, pool: &str) -> u32 {
        let ours = self.loans.values().filter(|loan| loan.from == owner && loan.pool == pool);
        ours.map(|loan| loan.gpus).sum()
    }

    /// Jobs that hold GPUs on any of these nodes, with their number. Looks at every job.
    pub(super) fn holders(&mut self, nodes: &BTreeSet<&str>) -> BTreeMap<&'a str, u32> {
        self.visited += self.state.jobs.len() as u64;
        let mut out = BTreeMap::new();
        for id in self.state.jobs.keys().map(String::as_str) {
            let on = self.placement(id).into_iter().filter(|(node, _)| nodes.contains(node));
            let held: u32 = on.map(|(_, gpus)| gpus).sum();
            if held > 0 {
                out.insert(id, held);
            }
        }
        out
    }
}
