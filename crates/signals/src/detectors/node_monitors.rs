//! The monitors of all nodes, and what memory they take.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::NodeKey;
use super::limits::EVICTED_PART;
use crate::node::NodeMonitor;
use crate::publication::Publication;

#[derive(Debug, Default, Serialize, Deserialize)]
pub struct NodeMonitors {
    nodes: BTreeMap<NodeKey, NodeMonitor>,
    /// Memory of all nodes, bytes.
    bytes: usize,
}

impl NodeMonitors {
    pub fn get(&self, node: &NodeKey) -> Option<&NodeMonitor> {
        self.nodes.get(node)
    }

    /// Whether the passing of time alone may change the output.
    pub fn any_active(&self) -> bool {
        self.nodes.values().any(NodeMonitor::is_active)
    }

    /// Memory of all nodes, bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Changes a node. One that is new was first heard of at `at_us`.
    pub fn update<T>(&mut self, name: &NodeKey, at_us: i64, change: impl FnOnce(&mut NodeMonitor) -> T) -> T {
        let new = || NodeMonitor::new(&name.0, &name.1, at_us);
        let node = self.nodes.entry(name.clone()).or_insert_with(new);
        let changed = change(node);
        let (before, after) = node.recount();
        self.bytes = self.bytes - before + after;
        changed
    }

    /// What the nodes have to say at `now_us`.
    pub fn evaluate(&mut self, now_us: i64) -> Vec<Publication> {
        let mut said = Vec::new();
        for node in self.nodes.values_mut() {
            said.extend(node.evaluate(now_us));
            let (before, after) = node.recount();
            self.bytes = self.bytes - before + after;
        }
        said
    }

    /// Forgets the least useful node. To find it, all are looked at, so of those without signals
    /// one in sixteen goes at once. Returns how many.
    pub fn evict(&mut self) -> usize {
        let mut nodes: Vec<_> = self.nodes.iter().map(|(name, node)| (node.usefulness(), name)).collect();
        nodes.sort_unstable();
        let part = nodes.len().div_ceil(EVICTED_PART);
        let least = nodes.into_iter().take(part).enumerate();
        let silent = least.take_while(|(place, ((says, _), _))| *place == 0 || !says);
        let names: Vec<NodeKey> = silent.map(|(_, (_, name))| name.clone()).collect();
        for name in &names {
            self.bytes -= self.nodes.remove(name).map_or(0, |mut node| node.recount().0);
        }
        names.len()
    }
}
