//! Packing: where a scheduler places a gang. A gang smaller than a node goes to the tightest node
//! that has room; a larger one takes whole nodes, and the tightest one for the rest.

use std::collections::{BTreeMap, BTreeSet};

/// GPUs held by node.
pub(super) type Placement<'a> = BTreeMap<&'a str, u32>;

/// Nodes that the same jobs may use, by their free GPUs.
#[derive(Debug, Clone, Default)]
pub(super) struct FreeNodes<'a> {
    by_free: BTreeMap<u32, BTreeSet<&'a str>>,
    /// GPUs of the largest node that was ever here.
    size: u32,
}

impl<'a> FreeNodes<'a> {
    pub(super) fn insert(&mut self, name: &'a str, free: u32, size: u32) {
        self.size = self.size.max(size);
        self.by_free.entry(free).or_default().insert(name);
    }

    pub(super) fn remove(&mut self, name: &str, free: u32) {
        if let Some(names) = self.by_free.get_mut(&free) {
            names.remove(name);
        }
    }

    /// The node with the fewest free GPUs, but at least `gpus`, that is not in `taken`.
    fn tightest(&self, gpus: u32, taken: &Placement<'a>) -> Option<&'a str> {
        let fitting = self.by_free.range(gpus.max(1)..).flat_map(|(_, names)| names);
        fitting.copied().find(|name| !taken.contains_key(name))
    }
}

/// Places a gang of `gpus` on nodes of `groups`, the first group first. `None`: there is no room.
pub(super) fn fit<'a>(groups: &[&FreeNodes<'a>], gpus: u32) -> Option<Placement<'a>> {
    let size = groups.iter().map(|group| group.size).max().filter(|size| *size > 0)?;
    let (whole, rest) = (gpus / size, gpus % size);
    let full = groups.iter().filter_map(|group| group.by_free.get(&size)).flatten();
    let mut placed: Placement<'a> = full.take(whole as usize).map(|name| (*name, size)).collect();
    if placed.len() < whole as usize {
        return None;
    }
    if rest > 0 {
        let node = groups.iter().find_map(|group| group.tightest(rest, &placed))?;
        placed.insert(node, rest);
    }
    Some(placed)
}

/// Places `each` GPUs on each of `nodes` nodes, as a job does that asks for GPUs by the node.
pub(super) fn fit_by_node<'a>(groups: &[&FreeNodes<'a>], each: u32, nodes: u32) -> Option<Placement<'a>> {
    let mut placed = Placement::new();
    for _ in 0..nodes {
        let node = groups.iter().find_map(|group| group.tightest(each, &placed))?;
        placed.insert(node, each);
    }
    Some(placed)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nodes(free: &[(&'static str, u32)]) -> FreeNodes<'static> {
        let mut out = FreeNodes::default();
        free.iter().for_each(|(name, free)| out.insert(name, *free, 8));
        out
    }

    #[test]
    fn small_gangs_take_the_tightest_node_and_large_ones_whole_nodes() {
        let here = nodes(&[("a", 8), ("b", 3), ("c", 8), ("d", 5)]);
        let at = |gpus| fit(&[&here], gpus).map(|placed| placed.into_iter().collect::<Vec<_>>());
        assert_eq!(at(3), Some(vec![("b", 3)]));
        assert_eq!(at(4), Some(vec![("d", 4)]));
        assert_eq!(at(8), Some(vec![("a", 8)]));
        assert_eq!(at(21), Some(vec![("a", 8), ("c", 8), ("d", 5)]));
        assert_eq!(at(22), None, "24 GPUs are free, but not 6 on one node beside the whole ones");
        assert_eq!(fit(&[&FreeNodes::default()], 1), None);
    }

    #[test]
    fn the_first_group_goes_first_and_gpus_by_the_node_may_scatter() {
        let (own, lent) = (nodes(&[("a", 8), ("b", 4)]), nodes(&[("x", 8), ("y", 2)]));
        assert_eq!(fit(&[&own, &lent], 16), Some([("a", 8), ("x", 8)].into()));
        assert_eq!(fit(&[&own, &lent], 2), Some([("b", 2)].into()), "its own node, though y is tighter");
        assert_eq!(fit(&[&own], 12), Some([("a", 8), ("b", 4)].into()));
        assert_eq!(fit_by_node(&[&own], 4, 2), Some([("a", 4), ("b", 4)].into()));
        assert_eq!(fit_by_node(&[&own], 4, 3), None);
    }
}
