//! Events of keys that were sealed lately. Days that are not over, or were over an hour ago, depend
//! on them, and all history need not be read for those.

use arrow::array::{AsArray, BooleanArray, RecordBatch};
use arrow::compute::filter_record_batch;
use arrow::datatypes::Int64Type;
use hashbrown::{HashMap, HashSet};

use crate::batch::{compact, concat};
use crate::error::Result;
use crate::table::KEY;
use crate::window::{MICROS_PER_DAY, MICROS_PER_MS, floor_to};

/// How long a finished key stays open for late events after its last one, in event time.
pub const SEAL_AFTER_MS: i64 = 3_600_000;

/// Events held before all are dropped until the next day: about as many as a flush holds.
const MAX_EVENTS: usize = 250_000;
/// Batches held before they are merged.
const MAX_BATCHES: usize = 32;

/// Events of sealed keys whose last event is of a recent day.
#[derive(Debug)]
pub struct RecentKeys {
    /// Full raw schema.
    events: Vec<RecordBatch>,
    /// Time of the last event of each key, µs.
    last: HashMap<i64, i64>,
    /// It has every key with an event from then on, µs.
    from: i64,
}

/// Start of the first day that an update of joined tables recomputes as recent, µs.
pub fn recent_day(watermark: i64) -> i64 {
    floor_to(watermark.saturating_sub(SEAL_AFTER_MS * MICROS_PER_MS), MICROS_PER_DAY)
}

impl Default for RecentKeys {
    fn default() -> Self {
        Self { events: Vec::new(), last: HashMap::new(), from: i64::MIN }
    }
}

impl RecentKeys {
    /// It has every sealed key with an event from then on, µs.
    pub fn from(&self) -> i64 {
        self.from
    }

    /// The events, full raw schema.
    pub fn events(&self) -> &[RecordBatch] {
        &self.events
    }

    /// The keys of these events.
    pub(super) fn keys(&self) -> impl Iterator<Item = i64> {
        self.last.keys().copied()
    }

    /// On start: nothing is known of keys sealed before.
    pub fn forget_before(&mut self, from: i64) {
        self.from = self.from.max(from);
    }

    /// Adds events of keys with the time of each key's last event, and drops what is not recent at
    /// this watermark any more, µs.
    pub fn add(&mut self, events: RecordBatch, last: HashMap<i64, i64>, watermark: i64) -> Result<()> {
        if events.num_rows() > 0 {
            self.last.extend(last);
            self.events.push(events);
        }
        let from = recent_day(watermark);
        let is_next_day = from > self.from;
        self.from = self.from.max(from);
        if is_next_day || self.events.len() > MAX_BATCHES {
            self.last.retain(|_, last| *last >= from);
            self.keep_known()?;
        }
        if self.events.iter().map(RecordBatch::num_rows).sum::<usize>() > MAX_EVENTS {
            (self.events, self.last) = (Vec::new(), HashMap::new());
            self.from = floor_to(watermark, MICROS_PER_DAY) + MICROS_PER_DAY;
        }
        Ok(())
    }

    /// Drops keys that are open again.
    pub fn remove(&mut self, keys: &HashSet<i64>) -> Result<()> {
        let before = self.last.len();
        self.last.retain(|key, _| !keys.contains(key));
        if self.last.len() < before { self.keep_known() } else { Ok(()) }
    }

    /// Drops events of keys that are not in `last`, in one batch.
    fn keep_known(&mut self) -> Result<()> {
        let Some(schema) = self.events.first().map(RecordBatch::schema) else { return Ok(()) };
        let mut kept = Vec::new();
        for batch in &self.events {
            let keys = batch.column_by_name(KEY).expect("raw rows have keys").as_primitive::<Int64Type>();
            let is_known: BooleanArray =
                keys.values().iter().map(|key| Some(self.last.contains_key(key))).collect();
            kept.push(filter_record_batch(batch, &is_known)?);
        }
        let kept = concat(&schema, &kept)?;
        self.events = if kept.num_rows() == 0 { Vec::new() } else { vec![compact(&kept)?] };
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{ArrayRef, Int64Array};

    use super::*;
    use crate::window::MICROS_PER_HOUR;

    fn event(key: i64) -> RecordBatch {
        RecordBatch::try_from_iter([(KEY, Arc::new(Int64Array::from(vec![key])) as ArrayRef)]).unwrap()
    }

    fn keys(recent: &RecentKeys) -> Vec<i64> {
        let keys = recent
            .events()
            .iter()
            .flat_map(|batch| batch.column(0).as_primitive::<Int64Type>().values().to_vec());
        keys.collect()
    }

    #[test]
    fn keys_stay_until_an_hour_after_their_day_or_until_they_are_open_again() {
        let mut recent = RecentKeys::default();
        let hour = |hour: i64| hour * MICROS_PER_HOUR;
        let add = |recent: &mut RecentKeys, key, last, now| {
            recent.add(event(key), HashMap::from([(key, hour(last))]), hour(now)).unwrap();
        };
        add(&mut recent, 1, 20, 21);
        add(&mut recent, 2, 24, 24);
        assert_eq!((keys(&recent), recent.from()), (vec![1, 2], 0), "the day was over less than an hour ago");
        add(&mut recent, 3, 25, 25);
        assert_eq!((keys(&recent), recent.from()), (vec![2, 3], hour(24)));
        recent.remove(&HashSet::from([3, 9])).unwrap();
        assert_eq!(keys(&recent), [2]);
        recent.forget_before(hour(48));
        assert_eq!(recent.from(), hour(48), "after a start nothing is known of earlier ones");
    }
}
