//! Hours in use and bad hours of nodes over 28 days, the input of [`lemons`](super::lemons).

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::lemon::NodeRecord;

const HOUR_US: i64 = 3_600_000_000;
const DAY_HOURS: i64 = 24;
/// Days looked back (RSC, HPCA'25).
const DAYS: i64 = 28;

/// Hours of a day as bits.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
struct Day {
    used: u32,
    bad: u32,
}

/// Hours of all nodes. An hour counts as used if the node was in use at any time of it, and as bad
/// if a straggler signal of the node was confirmed in it, a device logged an XID other than the
/// program's, or the node ended a job.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct NodeHours {
    /// By node and day since 1970.
    nodes: BTreeMap<u32, BTreeMap<i64, Day>>,
}

impl NodeHours {
    /// No hours yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Records use from `from_us` to `to_us` (µs since 1970). Of a longer span the last 28 days
    /// count; an inverted span is ignored.
    pub fn record_use(&mut self, node: u32, from_us: i64, to_us: i64) {
        if to_us <= from_us {
            return;
        }
        let last = (to_us - 1).div_euclid(HOUR_US);
        let first = from_us.div_euclid(HOUR_US).max(last - DAYS * DAY_HOURS);
        let days = self.nodes.entry(node).or_default();
        for hour in first..=last {
            days.entry(hour.div_euclid(DAY_HOURS)).or_default().used |= bit(hour);
        }
    }

    /// Records a bad event at `at_us`; the node was in use then.
    pub fn record_bad(&mut self, node: u32, at_us: i64) {
        let hour = at_us.div_euclid(HOUR_US);
        let day = self.nodes.entry(node).or_default().entry(hour.div_euclid(DAY_HOURS)).or_default();
        day.used |= bit(hour);
        day.bad |= bit(hour);
    }

    /// Records over the day of `now_us` and the 28 days before it, by node. Forgets older days.
    pub fn records(&mut self, now_us: i64) -> Vec<NodeRecord> {
        let today = now_us.div_euclid(HOUR_US * DAY_HOURS);
        self.nodes.retain(|_, days| {
            *days = days.split_off(&(today - DAYS));
            !days.is_empty()
        });
        let count = |days: &BTreeMap<i64, Day>, of: fn(&Day) -> u32| -> u32 {
            days.range(..=today).map(|(_, day)| of(day).count_ones()).sum()
        };
        let record = |(&node, days): (&u32, &BTreeMap<i64, Day>)| NodeRecord {
            node,
            hours: count(days, |day| day.used),
            bad_hours: count(days, |day| day.bad),
        };
        self.nodes.iter().map(record).collect()
    }
}

fn bit(hour: i64) -> u32 {
    1 << hour.rem_euclid(DAY_HOURS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_an_hour_are_one_hour_and_old_ones_are_forgotten() {
        let mut hours = NodeHours::new();
        // 23:30 to 02:00 of the next day, recorded in two overlapping parts: hours 23, 0 and 1.
        hours.record_use(7, 47 * HOUR_US / 2, 25 * HOUR_US);
        hours.record_use(7, 24 * HOUR_US, 26 * HOUR_US);
        hours.record_bad(7, 24 * HOUR_US + 5);
        hours.record_bad(7, 24 * HOUR_US + 9);
        hours.record_bad(3, 40 * HOUR_US);
        let seven = NodeRecord { node: 7, hours: 3, bad_hours: 1 };
        assert_eq!(hours.records(30 * HOUR_US), [NodeRecord { node: 3, hours: 1, bad_hours: 1 }, seven]);
        // Hour 23 is more than 28 days ago.
        let later = hours.records(29 * 24 * HOUR_US);
        assert_eq!(later[1], NodeRecord { hours: 2, ..seven });
        assert_eq!(hours.records(99 * 24 * HOUR_US), []);
    }

    #[test]
    fn absurd_times_are_borne() {
        let mut hours = NodeHours::new();
        hours.record_use(1, i64::MIN, 0);
        hours.record_use(1, 5, 5);
        assert_eq!(hours.records(0)[0].hours, 28 * 24);
        hours.record_use(2, i64::MAX - 1, i64::MAX);
        hours.record_bad(2, i64::MIN);
        assert_eq!(hours.records(i64::MAX).len(), 1);
    }
}
