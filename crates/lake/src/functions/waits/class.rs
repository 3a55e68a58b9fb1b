//! Classes of waits that pools and quotas treat alike.

use std::collections::BTreeSet;

use hashbrown::HashMap;

use super::fact::Wait;
use super::pool::{Pool, Pools};
use super::quota::Quotas;

/// What waits of a class have in common.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Class<'a> {
    /// Index of the pool, and its name.
    pub pool: usize,
    pub pool_name: &'a str,
    /// Indexes of team and QOS among the owners of quotas.
    pub owners: [Option<usize>; 2],
    /// Thousandths of a GPU.
    gpus: i64,
    nodes: Option<i64>,
    /// Whole GPUs needed on one node; 1 if the shape is not known.
    on_one: i64,
}

/// What pools and quotas say of a class.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// A quota has no room.
    Quota,
    /// The nodes of the pool are not known.
    Unknown,
    /// The job does not fit, for this reason.
    Lacks(&'static str),
    /// It fits, as far as its shape is known.
    Fits,
}

impl<'a> Class<'a> {
    pub fn new(wait: &Wait<'a>, pools: &mut Pools<'a>, quotas: &mut Quotas<'a>) -> Self {
        let qos = wait.qos.map(|qos| format!("qos/{qos}"));
        Self {
            pool: pools.index(wait.pool),
            pool_name: wait.pool,
            owners: [wait.team, qos.as_deref()].map(|owner| Some(quotas.index(owner?))),
            gpus: wait.gpus,
            nodes: wait.nodes,
            on_one: wait.per_node.map_or(1, |milli| milli.saturating_add(999) / 1_000),
        }
    }

    pub fn outcome(&self, pools: &Pools<'_>, quotas: &Quotas<'_>) -> Outcome {
        if quotas.now(self.owners, self.pool_name, self.gpus).is_some() {
            return Outcome::Quota;
        }
        let Some(pool) = pools.now(self.pool).filter(|_| self.on_one > 0) else { return Outcome::Unknown };
        let fitting = pool.nodes_with(self.on_one);
        let is_gang = self.nodes.is_some_and(|nodes| nodes > 1 && (1..nodes).contains(&fitting));
        match () {
            () if pool.present < self.gpus => Outcome::Lacks("not_provisioned"),
            () if pool.usable < self.gpus => Outcome::Lacks("nodes_unavailable"),
            () if pool.free < self.gpus && is_gang => Outcome::Lacks("gang"),
            () if pool.free < self.gpus => Outcome::Lacks("capacity_taken"),
            () if self.nodes.is_some_and(|nodes| fitting < nodes) => Outcome::Lacks("fragmented"),
            () => Outcome::Fits,
        }
    }

    /// What was free for it just before this instant; `None` if the nodes are not known.
    pub fn fit_before(&self, pools: &Pools<'_>) -> Option<Fit> {
        pools.before(self.pool).filter(|_| self.on_one > 0).map(|pool| Fit::of(pool, self.on_one))
    }

    /// The quota that had the least room just before this instant: granted and held.
    pub fn quota_before(&self, quotas: &Quotas<'_>) -> Option<(i64, i64)> {
        quotas.before(self.owners, self.pool_name, self.gpus)
    }
}

/// What of a pool is free for a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fit {
    /// Nodes with as many GPUs free as the job needs on one.
    pub fitting: i64,
    /// Thousandths of a GPU.
    pub free: i64,
    /// Most whole GPUs free on one node.
    pub largest: i64,
    /// Nodes with at least one GPU free.
    pub free_nodes: i64,
    /// Thousandths of a GPU, as the next two.
    pub usable: i64,
    pub present: i64,
    pub assumed: i64,
}

impl Fit {
    fn of(pool: &Pool, on_one: i64) -> Self {
        Self {
            fitting: pool.nodes_with(on_one),
            free: pool.free,
            largest: pool.largest(),
            free_nodes: pool.nodes_with(1),
            usable: pool.usable,
            present: pool.present,
            assumed: pool.assumed,
        }
    }
}

/// All classes, with the waits in each now.
#[derive(Debug, Default)]
pub struct Classes<'a> {
    indexes: HashMap<Class<'a>, usize>,
    all: Vec<(Class<'a>, Outcome, BTreeSet<usize>)>,
    of_pool: HashMap<usize, Vec<usize>>,
    of_owner: HashMap<usize, Vec<usize>>,
}

impl<'a> Classes<'a> {
    /// Index of a class.
    pub fn index(&mut self, class: Class<'a>) -> usize {
        let next = self.all.len();
        let index = *self.indexes.entry(class).or_insert(next);
        if index == next {
            self.all.push((class, Outcome::Unknown, BTreeSet::new()));
            self.of_pool.entry(class.pool).or_default().push(index);
            for owner in class.owners.into_iter().flatten() {
                self.of_owner.entry(owner).or_default().push(index);
            }
        }
        index
    }

    pub fn class(&self, index: usize) -> &Class<'a> {
        &self.all[index].0
    }

    pub fn outcome(&self, index: usize) -> Outcome {
        self.all[index].1
    }

    pub fn enter(&mut self, index: usize, wait: usize, pools: &Pools<'_>, quotas: &Quotas<'_>) {
        let (class, outcome, waits) = &mut self.all[index];
        if waits.is_empty() {
            *outcome = class.outcome(pools, quotas);
        }
        waits.insert(wait);
    }

    pub fn leave(&mut self, index: usize, wait: usize) {
        self.all[index].2.remove(&wait);
    }

    /// Compares the classes of pools and quotas that changed at this instant with those, and adds
    /// the waits of each class whose outcome changed to `touched`.
    pub fn update(&mut self, pools: &Pools<'_>, quotas: &Quotas<'_>, touched: &mut BTreeSet<usize>) {
        let of_pools = pools.changed().into_iter().filter_map(|pool| self.of_pool.get(&pool));
        let of_owners = quotas.changed().into_iter().filter_map(|owner| self.of_owner.get(&owner));
        for index in of_pools.chain(of_owners).flatten() {
            let (class, outcome, waits) = &mut self.all[*index];
            if waits.is_empty() {
                continue;
            }
            let now = class.outcome(pools, quotas);
            if now != *outcome {
                *outcome = now;
                touched.extend(waits.iter().copied());
            }
        }
    }
}
