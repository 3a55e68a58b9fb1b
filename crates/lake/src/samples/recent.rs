//! Which batches of samples came lately, so that one that stands twice in the log counts once.

use std::collections::VecDeque;

use hashbrown::HashSet;

/// A batch is known again if it repeats one of so many records before it in its log partition.
///
/// Counted in offsets, so that what is remembered depends on the log alone: after a restart it is
/// filled again from the newest rows, and decides as it would have without. A thousand nodes that
/// send every ten seconds to eight partitions get here in four hours. It takes about 11 MiB a
/// partition.
pub const REMEMBERED_RECORDS: u64 = 200_000;

/// Identity of a batch: hash of its node, and the first 8 bytes of its event id.
pub type BatchId = (i64, i64);

/// Batches of the last [`REMEMBERED_RECORDS`] records of one log partition.
#[derive(Debug, Default)]
pub struct Recent {
    known: HashSet<BatchId>,
    /// The same, in order of offset.
    order: VecDeque<(u64, BatchId)>,
}

impl Recent {
    /// The first offset that matters for a batch at `offset`.
    pub fn horizon(offset: u64) -> u64 {
        offset.saturating_sub(REMEMBERED_RECORDS)
    }

    /// On start: remembers batches of the lake, each with its offset, in any order and as often as
    /// they come.
    pub fn remember(&mut self, mut batches: Vec<(u64, BatchId)>) {
        batches.sort_unstable();
        batches.dedup();
        for (offset, id) in batches {
            self.insert(offset, id);
        }
    }

    /// Remembers a batch; `false` if it came lately. Offsets must not go back.
    pub fn insert(&mut self, offset: u64, id: BatchId) -> bool {
        while let Some((_, old)) = self.order.pop_front_if(|(at, _)| *at < Self::horizon(offset)) {
            self.known.remove(&old);
        }
        let new = self.known.insert(id);
        if new {
            self.order.push_back((offset, id));
        }
        new
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_repeat_is_known_within_the_horizon_and_not_beyond() {
        let mut recent = Recent::default();
        assert!(recent.insert(10, (1, 1)));
        assert!(!recent.insert(11, (1, 1)));
        assert!(recent.insert(12, (2, 1)) && recent.insert(13, (1, 2)), "both parts name a batch");
        assert!(!recent.insert(10 + REMEMBERED_RECORDS, (1, 1)), "at the horizon; a repeat does not move it");
        assert!(recent.insert(11 + REMEMBERED_RECORDS, (1, 1)), "beyond it");
        assert_eq!(recent.known.len(), recent.order.len());
    }

    #[test]
    fn memory_is_bounded() {
        let mut recent = Recent::default();
        (0..3 * REMEMBERED_RECORDS).for_each(|offset| assert!(recent.insert(offset, (0, offset as i64))));
        assert_eq!(recent.known.len() as u64, REMEMBERED_RECORDS + 1);
    }
}
