//! Events that wait for the watermark, in event-time order, with an index by job.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::detectors::JobKey;
use crate::input::Input;

/// Place of an event in the order: time (µs since 1970), rank of its kind, event id.
pub type OrderKey = (i64, u8, u128);

/// The waiting events.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Buffer {
    /// With the cluster of each.
    pub events: BTreeMap<OrderKey, (String, Input)>,
    /// Of these, step reports and what else changes a job, by job.
    pub by_job: BTreeMap<JobKey, BTreeSet<OrderKey>>,
    /// Jobs that received an event since their early steps were last processed.
    pub received: BTreeSet<JobKey>,
    /// Memory of the events that are [`bounded`](Input::bounded_bytes).
    bytes: usize,
}

impl Buffer {
    /// Adds an event, unless it waits already: a duplicate may have been processed early.
    pub fn insert(&mut self, key: OrderKey, cluster: String, input: Input) {
        if self.events.contains_key(&key) {
            return;
        }
        if let Some(job_id) = input.ordered_job() {
            let job = (cluster.clone(), job_id.to_owned());
            self.by_job.entry(job.clone()).or_default().insert(key);
            self.received.insert(job);
        }
        self.bytes += input.bounded_bytes();
        self.events.insert(key, (cluster, input));
    }

    /// Memory of the events that are [`bounded`](Input::bounded_bytes).
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Drops bounded events until they take `most` bytes or less: those of the latest time, which
    /// would wait for longest. Returns how many.
    pub fn shrink_to(&mut self, most: usize) -> u64 {
        let mut dropped = 0;
        while self.bytes > most {
            let bounded = |(_, (_, input)): &(&OrderKey, &(String, Input))| input.bounded_bytes() > 0;
            let Some(last) = self.events.iter().rev().find(bounded).map(|(key, _)| *key) else { break };
            self.remove(last);
            dropped += 1;
        }
        dropped
    }

    /// Place of the earliest event.
    pub fn first_key(&self) -> Option<OrderKey> {
        self.events.keys().next().copied()
    }

    /// Removes an event when the order has come to it.
    pub fn remove(&mut self, key: OrderKey) -> Option<(String, Input)> {
        let (cluster, input) = self.events.remove(&key)?;
        self.bytes -= input.bounded_bytes();
        if let Some(job_id) = input.ordered_job() {
            self.remove_from_job(&(cluster.clone(), job_id.to_owned()), &[key]);
        }
        Some((cluster, input))
    }

    /// Takes events out of the index of their job. Returns whether others are left in it.
    pub fn remove_from_job(&mut self, job: &JobKey, keys: &[OrderKey]) -> bool {
        let Some(waiting) = self.by_job.get_mut(job) else { return false };
        for key in keys {
            waiting.remove(key);
        }
        let is_empty = waiting.is_empty();
        if is_empty {
            self.by_job.remove(job);
        }
        !is_empty
    }
}
