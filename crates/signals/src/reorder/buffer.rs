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
    /// Memory of the events of [streams](Input::is_of_stream).
    stream_bytes: usize,
    /// Memory of all others.
    history_bytes: usize,
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
        *self.bytes_of(&input) += input.bytes();
        self.events.insert(key, (cluster, input));
    }

    /// Memory of all events, bytes.
    pub fn bytes(&self) -> usize {
        self.stream_bytes + self.history_bytes
    }

    /// Whether events wait that are of no stream.
    pub fn has_history(&self) -> bool {
        self.history_bytes > 0
    }

    /// Drops events of streams until they take `most` bytes or less: those of the latest time,
    /// which would wait for longest. Returns how many.
    pub fn shrink_streams(&mut self, most: usize) -> u64 {
        let mut dropped = 0;
        while self.stream_bytes > most {
            let of_stream = |(_, (_, input)): &(&OrderKey, &(String, Input))| input.is_of_stream();
            let Some(last) = self.events.iter().rev().find(of_stream).map(|(key, _)| *key) else { break };
            self.remove(last);
            dropped += 1;
        }
        dropped
    }

    /// Drops events of other kinds that are dated after `after_us`, the latest first, until the
    /// buffer takes `most` bytes or less. `prices`: also those that may apply to a time yet to
    /// come. Returns how many.
    pub fn shrink_history(&mut self, most: usize, after_us: i64, prices: bool) -> u64 {
        let mut excess = self.bytes().saturating_sub(most);
        let mut last: Vec<OrderKey> = Vec::new();
        for (key, (_, input)) in self.events.iter().rev().take_while(|(key, _)| key.0 > after_us) {
            if excess == 0 {
                break;
            }
            if !input.is_of_stream() && (prices || input.advances_time()) {
                excess = excess.saturating_sub(input.bytes());
                last.push(*key);
            }
        }
        last.iter().for_each(|key| drop(self.remove(*key)));
        last.len() as u64
    }

    /// The time (µs since 1970) up to which events would have to go so that the buffer takes `most`
    /// bytes. `None` if it does already.
    pub fn time_of_bytes(&self, most: usize) -> Option<i64> {
        let mut excess = self.bytes().saturating_sub(most);
        let mut until_us = None;
        for ((at_us, ..), (_, input)) in &self.events {
            if excess == 0 {
                break;
            }
            excess = excess.saturating_sub(input.bytes());
            until_us = Some(*at_us);
        }
        until_us
    }

    /// Events of no stream up to `until_us`.
    pub fn history_until(&self, until_us: i64) -> u64 {
        let until = self.events.range(..=(until_us, u8::MAX, u128::MAX));
        until.filter(|(_, (_, input))| !input.is_of_stream()).count() as u64
    }

    /// Place of the earliest event.
    pub fn first_key(&self) -> Option<OrderKey> {
        self.events.keys().next().copied()
    }

    /// Removes an event when the order has come to it.
    pub fn remove(&mut self, key: OrderKey) -> Option<(String, Input)> {
        let (cluster, input) = self.events.remove(&key)?;
        *self.bytes_of(&input) -= input.bytes();
        if let Some(job_id) = input.ordered_job() {
            self.remove_from_job(&(cluster.clone(), job_id.to_owned()), &[key]);
        }
        Some((cluster, input))
    }

    fn bytes_of(&mut self, input: &Input) -> &mut usize {
        if input.is_of_stream() { &mut self.stream_bytes } else { &mut self.history_bytes }
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
