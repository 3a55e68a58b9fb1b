//! Packing of gangs: free GPUs by node. A job smaller than a node takes one node; a larger one
//! takes whole nodes and one more for the rest. So GPUs scattered over many nodes may be useless to
//! a job that needs them on one.

/// Free GPUs on nodes that jobs can be placed on together.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Room {
    /// Free GPUs per node and number of such nodes: ascending, neither 0. Short, because nodes have
    /// few GPUs.
    nodes: Vec<(u32, u32)>,
    /// GPUs of the largest node.
    size: u32,
}

impl Room {
    /// Adds a node of `size` GPUs with `free` free.
    pub(super) fn add(&mut self, free: u32, size: u32) {
        self.size = self.size.max(size);
        self.add_nodes(free, 1);
    }

    /// Adds GPUs lent by number: any of them go together.
    pub(super) fn add_loose(&mut self, gpus: u32) {
        self.size = self.size.max(1);
        self.add_nodes(1, gpus);
    }

    /// Returns `gpus` that were taken as whole nodes.
    pub(super) fn give_back(&mut self, gpus: u32) {
        self.add_nodes(self.size, gpus / self.size.max(1));
    }

    /// Copies `other`, reusing the allocation.
    pub(super) fn set(&mut self, other: &Self) {
        self.size = other.size;
        self.nodes.clone_from(&other.nodes);
    }

    /// All free GPUs.
    pub(super) fn gpus(&self) -> u32 {
        self.nodes.iter().map(|(free, nodes)| free * nodes).sum()
    }

    /// Whether `gpus` make up whole nodes.
    pub(super) fn in_whole_nodes(&self, gpus: u32) -> bool {
        self.size > 0 && gpus.is_multiple_of(self.size)
    }

    /// Places a job of `gpus`. `false`: it does not fit and nothing is taken.
    pub(super) fn take(&mut self, gpus: u32) -> bool {
        let fits = self.missing(gpus) == 0;
        if fits {
            self.missing_after(gpus);
        }
        fits
    }

    /// GPUs missing for a gang of `gpus`, in whole nodes of this size. 0: it fits.
    pub(super) fn missing(&self, gpus: u32) -> u32 {
        if self.size == 0 {
            return gpus;
        }
        let (whole, rest) = (gpus / self.size, gpus % self.size);
        let full = self.full();
        let here = full.min(whole);
        let part =
            rest == 0 || full > here || self.nodes.iter().any(|(free, _)| (rest..self.size).contains(free));
        (whole - here) * self.size + if part { 0 } else { rest }
    }

    /// Takes what is usable for a gang of `gpus`, and returns what [`Room::missing`] would.
    pub(super) fn missing_after(&mut self, gpus: u32) -> u32 {
        let missing = self.missing(gpus);
        if self.size == 0 {
            return missing;
        }
        let (whole, rest) = (gpus / self.size, gpus % self.size);
        self.remove(self.size, self.full().min(whole));
        // Best fit: the node with the fewest free GPUs that has enough.
        let best = self.nodes.iter().map(|(free, _)| *free).find(|free| *free >= rest);
        if let Some(free) = best.filter(|_| rest > 0) {
            self.remove(free, 1);
            self.add_nodes(free - rest, 1);
        }
        missing
    }

    /// Nodes that are free whole.
    fn full(&self) -> u32 {
        self.nodes.last().filter(|(free, _)| *free == self.size).map_or(0, |(_, nodes)| *nodes)
    }

    fn add_nodes(&mut self, free: u32, nodes: u32) {
        if free == 0 || nodes == 0 {
            return;
        }
        let at = self.nodes.partition_point(|(other, _)| *other < free);
        match self.nodes.get_mut(at).filter(|(other, _)| *other == free) {
            Some((_, count)) => *count += nodes,
            None => self.nodes.insert(at, (free, nodes)),
        }
    }

    fn remove(&mut self, free: u32, nodes: u32) {
        let at = self.nodes.partition_point(|(other, _)| *other < free);
        if let Some((_, count)) = self.nodes.get_mut(at).filter(|(other, _)| *other == free) {
            *count -= nodes;
            if *count == 0 {
                self.nodes.remove(at);
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
        // 21 GPUs are free, but 16 in whole nodes are not.
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
    fn missing_gpus_come_in_whole_nodes() {
        // A gang of 32 finds one whole node, so three are missing. A job of 5 finds six GPUs on one
        // node.
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
