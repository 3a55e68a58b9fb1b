//! Free GPUs of pools: how many nodes have at least so many.

use std::collections::BTreeSet;

use hashbrown::HashMap;

use super::fact::Node;

/// Nodes of a pool now.
#[derive(Debug, Clone, Default)]
pub struct Pool {
    /// It has or had a node.
    is_known: bool,
    /// Thousandths of a GPU of all nodes, as the next three.
    pub present: i64,
    /// Of nodes where jobs may start.
    pub usable: i64,
    pub free: i64,
    /// Assumed held by jobs whose nodes are not known.
    pub assumed: i64,
    /// Nodes with at least one GPU free, two, ….
    at_least: Vec<i64>,
}

impl Pool {
    /// Nodes with at least so many whole GPUs free.
    pub fn nodes_with(&self, gpus: i64) -> i64 {
        let place = usize::try_from(gpus - 1).unwrap_or(usize::MAX);
        self.at_least.get(place).copied().unwrap_or(0)
    }

    /// Most whole GPUs free on one node.
    pub fn largest(&self) -> i64 {
        self.at_least.iter().rposition(|nodes| *nodes > 0).map_or(0, |place| place as i64 + 1)
    }

    fn add(&mut self, node: &Node<'_>, sign: i64) {
        self.is_known = true;
        self.present += sign * node.gpus;
        self.usable += if node.is_usable { sign * node.gpus } else { 0 };
        self.free += sign * node.free;
        self.assumed += sign * node.assumed;
        let whole = usize::try_from(node.free / 1_000).unwrap_or(0);
        if self.at_least.len() < whole {
            self.at_least.resize(whole, 0);
        }
        self.at_least[..whole].iter_mut().for_each(|nodes| *nodes += sign);
    }
}

/// The pools that waiting jobs name.
#[derive(Debug, Default)]
pub struct Pools<'a> {
    names: HashMap<&'a str, usize>,
    now: Vec<Pool>,
    /// Of pools that changed at this instant: as they were before it.
    before: HashMap<usize, Pool>,
}

impl<'a> Pools<'a> {
    /// Index of a pool.
    pub fn index(&mut self, name: &'a str) -> usize {
        let next = self.now.len();
        let index = *self.names.entry(name).or_insert(next);
        if index == next {
            self.now.push(Pool::default());
        }
        index
    }

    /// The pools that a node counts in: those it names, and that of jobs without a pool. One that
    /// names none counts in all.
    pub fn served_by(&self, pools: &str) -> BTreeSet<usize> {
        if pools.is_empty() {
            return (0..self.now.len()).collect();
        }
        pools.split(',').chain([""]).filter_map(|name| self.names.get(name).copied()).collect()
    }

    /// Adds a node to a pool, or takes it away.
    pub fn change(&mut self, pool: usize, node: &Node<'_>, sign: i64) {
        self.remember(pool);
        self.now[pool].add(node, sign);
    }

    /// From now on it is known that the pool has or had a node.
    pub fn know(&mut self, pool: usize) {
        self.remember(pool);
        self.now[pool].is_known = true;
    }

    fn remember(&mut self, pool: usize) {
        self.before.entry(pool).or_insert_with(|| self.now[pool].clone());
    }

    /// A pool now; `None` if its nodes are not known.
    pub fn now(&self, pool: usize) -> Option<&Pool> {
        Some(&self.now[pool]).filter(|pool| pool.is_known)
    }

    /// A pool just before this instant.
    pub fn before(&self, pool: usize) -> Option<&Pool> {
        Some(self.before.get(&pool).unwrap_or(&self.now[pool])).filter(|pool| pool.is_known)
    }

    /// Pools that changed at this instant.
    pub fn changed(&self) -> Vec<usize> {
        self.before.keys().copied().collect()
    }

    /// Ends this instant.
    pub fn settle(&mut self) {
        self.before.clear();
    }
}
