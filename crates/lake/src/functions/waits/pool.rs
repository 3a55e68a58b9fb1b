//! Free GPUs of pools: how many nodes have at least so many.

use std::collections::{BTreeMap, BTreeSet};

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
    /// Nodes by number of whole GPUs free. What an event says of a node may be absurdly large, so
    /// this has an entry per number that occurs, not a place per GPU.
    by_free: BTreeMap<i64, i64>,
}

impl Pool {
    /// Nodes with at least so many whole GPUs free.
    pub fn nodes_with(&self, gpus: i64) -> i64 {
        self.by_free.range(gpus..).map(|(_, nodes)| nodes).sum()
    }

    /// Most whole GPUs free on one node.
    pub fn largest(&self) -> i64 {
        self.by_free.last_key_value().map_or(0, |(gpus, _)| (*gpus).max(0))
    }

    /// Adds a node, or takes it away. Sums wrap around, so that taking a node away undoes adding it
    /// whatever its numbers.
    fn change(&mut self, node: &Node<'_>, begins: bool) {
        self.is_known = true;
        let add = |sum: &mut i64, value: i64| {
            *sum = if begins { sum.wrapping_add(value) } else { sum.wrapping_sub(value) };
        };
        add(&mut self.present, node.gpus);
        add(&mut self.usable, if node.is_usable { node.gpus } else { 0 });
        add(&mut self.free, node.free);
        add(&mut self.assumed, node.assumed);
        let whole = node.free / 1_000;
        let nodes = self.by_free.entry(whole).or_insert(0);
        add(nodes, 1);
        if *nodes == 0 {
            self.by_free.remove(&whole);
        }
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
    pub fn change(&mut self, pool: usize, node: &Node<'_>, begins: bool) {
        self.remember(pool);
        self.now[pool].change(node, begins);
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
