//! The event queue: ordered by time, then by insertion.

use std::{cmp::Reverse, collections::BinaryHeap};

/// Future events. Of two at the same time, the one inserted first comes first.
#[derive(Debug, Clone)]
pub struct Timeline<T> {
    heap: BinaryHeap<Reverse<Entry<T>>>,
    seq: u64,
}

#[derive(Debug, Clone)]
struct Entry<T> {
    at_us: i64,
    seq: u64,
    what: T,
}

impl<T> PartialEq for Entry<T> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl<T> Eq for Entry<T> {}

impl<T> PartialOrd for Entry<T> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl<T> Ord for Entry<T> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at_us, self.seq).cmp(&(other.at_us, other.seq))
    }
}

impl<T> Default for Timeline<T> {
    fn default() -> Self {
        Self { heap: BinaryHeap::new(), seq: 0 }
    }
}

impl<T> Timeline<T> {
    /// Inserts `what` at `at_us`.
    pub fn push(&mut self, at_us: i64, what: T) {
        self.heap.push(Reverse(Entry { at_us, seq: self.seq, what }));
        self.seq += 1;
    }

    /// Time of the next event.
    pub fn next_us(&self) -> Option<i64> {
        self.heap.peek().map(|entry| entry.0.at_us)
    }

    /// Removes and returns the next event.
    pub fn pop(&mut self) -> Option<(i64, T)> {
        self.heap.pop().map(|entry| (entry.0.at_us, entry.0.what))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ties_come_out_in_the_order_they_went_in() {
        let mut line = Timeline::default();
        for (at, what) in [(5, 'c'), (1, 'a'), (5, 'd'), (1, 'b'), (5, 'e')] {
            line.push(at, what);
        }
        let order: String = std::iter::from_fn(|| line.pop()).map(|(_, what)| what).collect();
        assert_eq!(order, "abcde");
    }
}
