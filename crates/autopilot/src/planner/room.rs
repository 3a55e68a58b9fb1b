//! Where gangs fit: free GPUs node by node. A job smaller than a node takes one node, a larger one whole nodes and, for the rest, one
//! more; so GPUs that are free in many places may be of no use to a job that needs them in one.

use std::collections::BTreeMap;

/// Free GPUs of nodes that jobs can be put on together.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Room {
    /// Nodes by how many of their GPUs are free.
    nodes: BTreeMap<u32, u32>,
    /// GPUs of its largest node.
    size: u32,
}

impl Room {
    /// Adds a node of `size` GPUs of which `free` are free.
    pub(super) fn add(&mut self, free: u32, size: u32) {
        self.size = self.size.max(size);
        if free > 0 {
            *self.nodes.entry(free).or_default() += 1;
        }
    }

    /// Adds GPUs that are lent by number: any of them go together.
    pub(super) fn add_loose(&mut self, gpus: u32) {
        self.size = self.size.max(1);
        if gpus > 0 {
            *self.nodes.entry(1).or_default() += gpus;
        }
    }

    /// All its free GPUs.
    pub(super) fn gpus(&self) -> u32 {
        self.nodes.iter().map(|(free, nodes)| free * nodes).sum()
    }

    /// Puts a job of `gpus` on it; `false`: it does not fit and nothing is taken.
    pub(super) fn take(&mut self, gpus: u32) -> bool {
        let mut left = self.clone();
        let fits = left.missing_after(gpus) == 0;
        if fits {
            *self = left;
        }
        fits
    }

    /// Takes what it has of use to a gang of `gpus`, and returns the GPUs that must come beside it, whole nodes of its own size.
    pub(super) fn missing_after(&mut self, gpus: u32) -> u32 {
        if self.size == 0 {
            return gpus;
        }
        let (whole, rest) = (gpus / self.size, gpus % self.size);
        let here = self.nodes.get(&self.size).copied().unwrap_or(0).min(whole);
        self.remove(self.size, here);
        let mut missing = (whole - here) * self.size;
        if rest > 0 {
            // Best fit: the node with the fewest free GPUs that has enough.
            match self.nodes.range(rest..).next().map(|(free, _)| *free) {
                Some(free) => {
                    self.remove(free, 1);
                    self.add(free - rest, 0);
                }
                None => missing += rest,
            }
        }
        missing
    }

    fn remove(&mut self, free: u32, nodes: u32) {
        if let Some(count) = self.nodes.get_mut(&free) {
            *count -= nodes;
            if *count == 0 {
                self.nodes.remove(&free);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn room(free: &[u32]) -> Room {
        let mut room = Room::default();
        free.iter().for_each(|free| room.add(*free, 8));
        room
    }

    #[test]
    fn gangs_take_whole_nodes_and_small_jobs_the_tightest_one() {
        // 21 GPUs are free, and 16 in whole nodes only once.
        let mut four = room(&[8, 6, 4, 3]);
        assert_eq!(four.gpus(), 21);
        assert!(!four.clone().take(16));
        assert!(four.clone().take(8 + 6), "a whole node, and six on another");
        assert!(!four.clone().take(8 + 7));
        assert!(four.take(3) && four.take(4));
        assert_eq!(four, room(&[8, 6]), "the tightest ones went first");
        assert!(!Room::default().take(1));
    }

    #[test]
    fn what_is_missing_comes_in_whole_nodes() {
        // A gang of 32 finds one whole node: three are missing. A job of 5 finds six on one node.
        assert_eq!(room(&[8, 6, 4]).missing_after(32), 24);
        assert_eq!(room(&[8, 6, 4]).missing_after(5), 0);
        assert_eq!(room(&[4, 4]).missing_after(13), 8 + 5);
        assert_eq!(Room::default().missing_after(13), 13);
        let missing = room(&[8]).missing_after(20);
        assert_eq!((missing, room(&[8, 4]).missing_after(missing)), (12, 0), "on both together");
        let mut loose = Room::default();
        loose.add_loose(12);
        assert!(loose.take(9) && !loose.take(4), "by number any go together");
    }
}
