//! GPUs per node and GPU model of each pool; capacity is bought in whole nodes.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use tidegate_events::{MilliGpus, v1};

/// Nodes and partitions remembered per cluster.
const MAX_NODES: usize = 1 << 16;
/// A larger count is an error in the events.
const MAX_NODE_GPUS: u64 = 1 << 12;

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
struct Node {
    pool: Option<String>,
    gpus_milli: Option<u64>,
    model: Option<String>,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
struct Partition {
    nodes: BTreeSet<String>,
    gpus_milli: Option<u64>,
    model: Option<String>,
}

/// Nodes and partitions of one cluster.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct NodeSizes {
    nodes: BTreeMap<String, Node>,
    partitions: BTreeMap<String, Partition>,
}

impl NodeSizes {
    /// Takes a node event.
    pub fn observe_node(&mut self, event: &v1::NodeEvent) {
        match event.kind() {
            v1::NodeEventKind::NodeRegistered
                if self.nodes.len() < MAX_NODES || self.nodes.contains_key(&event.node) =>
            {
                let node = self.nodes.entry(event.node.clone()).or_default();
                // Agents report devices, schedulers pools; neither overrides the other.
                node.pool = event.pool.clone().or(node.pool.take());
                node.gpus_milli = event.gpus_milli.or(node.gpus_milli);
                node.model = event.gpu_model.clone().or(node.model.take());
            }
            v1::NodeEventKind::NodeRemoved => {
                self.nodes.remove(&event.node);
            }
            _ => {}
        }
    }

    /// Takes a partition event.
    pub fn observe_partition(&mut self, event: &v1::CapacityEvent) {
        let Some(pool) = event.pool.clone() else { return };
        match event.kind() {
            v1::CapacityEventKind::PartitionSet
                if self.partitions.len() < MAX_NODES || self.partitions.contains_key(&pool) =>
            {
                let names = event.nodes.as_deref().unwrap_or("").split(',').map(str::trim);
                // Partitions overlap, so all of them together may name more than there are.
                let others = self.partitions.iter().filter(|(other, _)| **other != pool);
                let named = others.map(|(_, partition)| partition.nodes.len()).sum::<usize>();
                let most = (16 * MAX_NODES).saturating_sub(named).min(MAX_NODES);
                let nodes = names.filter(|node| !node.is_empty()).take(most).map(str::to_owned).collect();
                let (gpus_milli, model) = (event.gpus_milli, event.gpu_model.clone());
                self.partitions.insert(pool, Partition { nodes, gpus_milli, model });
            }
            v1::CapacityEventKind::PartitionRemoved => {
                self.partitions.remove(&pool);
            }
            _ => {}
        }
    }

    /// GPUs of most nodes of a pool, or of all nodes; the larger where two sizes are equally
    /// frequent. `None` if unknown.
    pub fn size(&self, pool: Option<&str>) -> Option<u32> {
        let mut counts: BTreeMap<u64, usize> = BTreeMap::new();
        for gpus in self.nodes_of(pool).filter_map(|node| whole_gpus(node.gpus_milli?)) {
            *counts.entry(gpus).or_default() += 1;
        }
        let usual = counts.into_iter().max_by_key(|(gpus, count)| (*count, *gpus)).map(|(gpus, _)| gpus);
        let by_partition = || {
            let partition = self.partitions.get(pool?)?;
            let nodes = u64::try_from(partition.nodes.len()).ok().filter(|nodes| *nodes > 0)?;
            let gpus_milli = partition.gpus_milli?;
            gpus_milli.is_multiple_of(nodes).then(|| whole_gpus(gpus_milli / nodes)).flatten()
        };
        u32::try_from(usual.or_else(by_partition)?).ok()
    }

    /// The GPU model of a pool, or of all nodes; `None` if there are several or it is unknown.
    pub fn model(&self, pool: Option<&str>) -> Option<&str> {
        let partition = pool.and_then(|pool| self.partitions.get(pool)).and_then(|it| it.model.as_deref());
        let mut models: BTreeSet<&str> =
            self.nodes_of(pool).filter_map(|node| node.model.as_deref()).collect();
        models.extend(partition.filter(|_| models.is_empty()));
        models.pop_first().filter(|_| models.is_empty())
    }

    fn nodes_of(&self, pool: Option<&str>) -> impl Iterator<Item = &Node> {
        let partition = pool.and_then(|pool| self.partitions.get(pool));
        let is_in = move |name: &str, node: &Node| match pool {
            None => true,
            Some(pool) => {
                partition.is_some_and(|it| it.nodes.contains(name)) || node.pool.as_deref() == Some(pool)
            }
        };
        self.nodes.iter().filter(move |(name, node)| is_in(name, node)).map(|(_, node)| node)
    }
}

/// GPUs of a node; `None` for a fraction, or a number that no node has.
fn whole_gpus(gpus_milli: u64) -> Option<u64> {
    MilliGpus(gpus_milli).whole_gpus().filter(|gpus| (1..=MAX_NODE_GPUS).contains(gpus))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(name: &str, pool: Option<&str>, gpus_milli: Option<u64>, model: Option<&str>) -> v1::NodeEvent {
        v1::NodeEvent {
            kind: v1::NodeEventKind::NodeRegistered.into(),
            node: name.into(),
            pool: pool.map(str::to_owned),
            gpus_milli,
            gpu_model: model.map(str::to_owned),
            ..v1::NodeEvent::default()
        }
    }

    #[test]
    fn most_nodes_tell_the_size_and_all_of_them_the_model() {
        let mut nodes = NodeSizes::default();
        assert_eq!((nodes.size(Some("p")), nodes.model(Some("p"))), (None, None));
        for (name, gpus) in [("a", 8_000), ("b", 8_000), ("c", 4_000), ("d", 500), ("e", 0)] {
            nodes.observe_node(&node(name, Some("p"), Some(gpus), Some("h100")));
        }
        nodes.observe_node(&node("f", Some("q"), Some(4_000), Some("a100")));
        assert_eq!(
            (nodes.size(Some("p")), nodes.size(Some("q")), nodes.size(None)),
            (Some(8), Some(4), Some(8))
        );
        assert_eq!((nodes.model(Some("p")), nodes.model(None)), (Some("h100"), None));
        // The agent's event after the scheduler's keeps the pool.
        nodes.observe_node(&node("f", None, Some(2_000), None));
        assert_eq!((nodes.size(Some("q")), nodes.model(Some("q"))), (Some(2), Some("a100")));
        let gone =
            v1::NodeEvent { kind: v1::NodeEventKind::NodeRemoved.into(), ..node("f", None, None, None) };
        nodes.observe_node(&gone);
        assert_eq!((nodes.size(Some("q")), nodes.model(None)), (None, Some("h100")));
    }

    #[test]
    fn a_partition_tells_its_nodes_or_their_mean() {
        let mut nodes = NodeSizes::default();
        let partition = |nodes: &str, gpus_milli| v1::CapacityEvent {
            kind: v1::CapacityEventKind::PartitionSet.into(),
            pool: Some("p".into()),
            nodes: Some(nodes.into()),
            gpus_milli: Some(gpus_milli),
            ..v1::CapacityEvent::default()
        };
        nodes.observe_partition(&partition("a,b", 16_000));
        assert_eq!(nodes.size(Some("p")), Some(8));
        nodes.observe_partition(&partition("a,b", 15_000));
        assert_eq!(nodes.size(Some("p")), None, "7.5 GPUs are no node");
        nodes.observe_node(&node("a", None, Some(4_000), None));
        assert_eq!((nodes.size(Some("p")), nodes.size(Some("q"))), (Some(4), None));
        let kind = v1::CapacityEventKind::PartitionRemoved.into();
        nodes.observe_partition(&v1::CapacityEvent { kind, ..partition("", 0) });
        assert_eq!(nodes.size(Some("p")), None);
    }
}
