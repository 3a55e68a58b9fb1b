//! Lemon nodes of a cluster, those that fail again and again: hours in use and bad hours, evaluated
//! at midnight (UTC).

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use tidegate_insight::health::{Lemon, NodeHours, lemons};

/// Most nodes tracked per cluster.
const MAX_NODES: usize = 1 << 16;

/// Verdict on a node that is a lemon, or was one.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct LemonVerdict {
    pub lemon: Lemon,
    /// Hours in use in the last 28 days, and how many of them were bad.
    pub hours: u32,
    pub bad_hours: u32,
}

/// Hours of all nodes of a cluster.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct LemonTracker {
    names: BTreeMap<u32, String>,
    numbers: BTreeMap<String, u32>,
    next: u32,
    hours: NodeHours,
    excluded: BTreeSet<u32>,
}

impl LemonTracker {
    /// The node was in use from `from_us` to `to_us`, µs since 1970.
    pub fn record_use(&mut self, node: &str, from_us: i64, to_us: i64) {
        if let Some(number) = self.node_number(node) {
            self.hours.record_use(number, from_us, to_us);
        }
    }

    /// A fault, a confirmed straggler or a job end is held against the node.
    pub fn record_fault(&mut self, node: &str, at_us: i64) {
        if let Some(number) = self.node_number(node) {
            self.hours.record_bad(number, at_us);
        }
    }

    /// Lemons by the 28 days before `now_us`, and nodes that no longer are lemons; by name.
    pub fn evaluate(&mut self, now_us: i64) -> Vec<(String, LemonVerdict)> {
        // Evaluated just before midnight: the day that begins has no hours yet, and would push out
        // the first of the 28.
        let records = self.hours.records(now_us - 1);
        let mut found = Vec::new();
        for (record, lemon) in records.iter().zip(lemons(&records)) {
            let was = self.excluded.contains(&lemon.node);
            if let Some(name) = self.names.get(&lemon.node).filter(|_| was || lemon.exclude) {
                let of = LemonVerdict { lemon, hours: record.hours, bad_hours: record.bad_hours };
                found.push((name.clone(), of));
            }
            if lemon.exclude {
                self.excluded.insert(lemon.node);
            } else {
                self.excluded.remove(&lemon.node);
            }
        }
        let kept: BTreeSet<u32> = records.iter().map(|record| record.node).collect();
        // Of a lemon that was unused for 28 days nothing is known any more.
        for number in std::mem::take(&mut self.excluded) {
            if kept.contains(&number) {
                self.excluded.insert(number);
            } else if let Some(name) = self.names.get(&number) {
                let lemon = Lemon {
                    node: number,
                    rate: 0.0,
                    probability: 0.0,
                    times: 0.0,
                    least_times: 0.0,
                    exclude: false,
                };
                found.push((name.clone(), LemonVerdict { lemon, hours: 0, bad_hours: 0 }));
            }
        }
        self.names.retain(|number, _| kept.contains(number));
        self.numbers.retain(|_, number| kept.contains(number));
        found.sort_by(|a, b| a.0.cmp(&b.0));
        found
    }

    fn node_number(&mut self, node: &str) -> Option<u32> {
        if let Some(number) = self.numbers.get(node) {
            return Some(*number);
        }
        if self.names.len() >= MAX_NODES {
            return None;
        }
        let number = self.next;
        self.next = self.next.wrapping_add(1);
        self.numbers.insert(node.into(), number);
        self.names.insert(number, node.into());
        Some(number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR_US: i64 = 3_600_000_000;

    #[test]
    fn a_lemon_is_reported_while_it_lasts_and_once_after() {
        let mut lemons = LemonTracker::default();
        let day = |day: i64| day * 24 * HOUR_US;
        for node in 0..20 {
            lemons.record_use(&format!("n{node:02}"), 0, day(10));
        }
        for hour in 0..12 {
            lemons.record_fault("n07", hour * 20 * HOUR_US);
        }
        let found = lemons.evaluate(day(10));
        assert_eq!(found.len(), 1);
        let (name, of) = &found[0];
        assert_eq!((name.as_str(), of.hours, of.bad_hours, of.lemon.exclude), ("n07", 240, 12, true));
        assert!(of.lemon.probability > 0.95 && of.lemon.least_times > 3.0, "{of:?}");
        // All nodes stay in use; 28 days later the bad hours are out of the window.
        for node in 0..20 {
            lemons.record_use(&format!("n{node:02}"), day(10), day(45));
        }
        let past = lemons.evaluate(day(45));
        assert_eq!(
            past.iter().map(|(name, of)| (name.as_str(), of.lemon.exclude)).collect::<Vec<_>>(),
            [("n07", false)]
        );
        assert_eq!(lemons.evaluate(day(46)), []);
        assert_eq!(lemons.evaluate(day(99)), []);
        assert!(lemons.names.is_empty() && lemons.numbers.is_empty());
    }
}
