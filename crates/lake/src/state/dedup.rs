//! Dedup window: recognises events that stand twice in the log, within a bounded distance.

use std::collections::VecDeque;

use hashbrown::HashSet;

use crate::raw::facts::EventId;

/// Width of the window: an event is dropped if it repeats one of this many records before it in its
/// log partition.
///
/// The window is counted in offsets, so its content depends on the log alone. After a restart it is
/// filled again from the newest committed rows, and decides as it would have without the restart. A
/// thousand nodes that send a batch every ten seconds to eight partitions fill it in four hours. It
/// takes about 11 MiB per partition.
pub const REMEMBERED_RECORDS: u64 = 200_000;

/// Events of the last [`REMEMBERED_RECORDS`] records of one log partition.
#[derive(Debug, Default)]
pub struct DedupWindow {
    seen: HashSet<EventId>,
    /// The same events by offset, oldest first.
    order: VecDeque<(u64, EventId)>,
}

impl DedupWindow {
    /// The oldest offset in the window of an event at `offset`.
    pub fn horizon(offset: u64) -> u64 {
        offset.saturating_sub(REMEMBERED_RECORDS)
    }

    /// On start: fills the window with committed events and their offsets, in any order and with
    /// repeats.
    pub fn restore(&mut self, mut events: Vec<(u64, EventId)>) {
        events.sort_unstable();
        events.dedup();
        for (offset, id) in events {
            self.insert(offset, id);
        }
    }

    /// Adds an event; `false` if it is in the window already. Offsets must not decrease.
    pub fn insert(&mut self, offset: u64, id: EventId) -> bool {
        while let Some((_, old)) = self.order.pop_front_if(|(at, _)| *at < Self::horizon(offset)) {
            self.seen.remove(&old);
        }
        let is_new = self.seen.insert(id);
        if is_new {
            self.order.push_back((offset, id));
        }
        is_new
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_repeat_is_dropped_within_the_window_and_not_beyond() {
        let mut window = DedupWindow::default();
        assert!(window.insert(10, (1, 1)));
        assert!(!window.insert(11, (1, 1)));
        assert!(window.insert(12, (2, 1)) && window.insert(13, (1, 2)), "both parts identify an event");
        assert!(!window.insert(10 + REMEMBERED_RECORDS, (1, 1)), "at the horizon; a repeat does not move it");
        assert!(window.insert(11 + REMEMBERED_RECORDS, (1, 1)), "beyond it");
        assert_eq!(window.seen.len(), window.order.len());
    }

    #[test]
    fn memory_is_bounded() {
        let mut window = DedupWindow::default();
        (0..3 * REMEMBERED_RECORDS).for_each(|offset| assert!(window.insert(offset, (0, offset as i64))));
        assert_eq!(window.seen.len() as u64, REMEMBERED_RECORDS + 1);
    }
}
