//! Bounded queue of events that await the spool.

use tidegate_events::Event;

use super::batcher::Batcher;
use crate::reading::Reading;

/// Bound on the events awaiting disk; excess is dropped and counted.
const MAX_WAITING: usize = 16_384;

pub(super) struct WriteQueue {
    pub batcher: Batcher,
    /// In order of arrival; a batch arrives when it is closed.
    pub events: Vec<Event>,
    /// Events dropped because the queue was full.
    pub overrun: u64,
    /// Part of `overrun` that was reported.
    pub overrun_reported: u64,
    /// Events ever queued, and those written or given up since.
    taken: u64,
    stored: u64,
    /// Callers blocked until their events are stored.
    pub waiting: u64,
    /// The queue holds a batch, which should not wait.
    pub is_urgent: bool,
    /// The disk's last error.
    pub trouble: Option<String>,
    pub ending: bool,
}

impl WriteQueue {
    pub fn new(span_ms: i64) -> Self {
        Self {
            batcher: Batcher::new(span_ms),
            events: Vec::new(),
            overrun: 0,
            overrun_reported: 0,
            taken: 0,
            stored: 0,
            waiting: 0,
            is_urgent: false,
            trouble: None,
            ending: false,
        }
    }

    pub fn take_event(&mut self, event: Event) {
        if self.events.len() >= MAX_WAITING {
            self.overrun += 1;
            return;
        }
        self.taken += 1;
        self.events.push(event);
    }

    /// Returns whether the reading completed a batch.
    pub fn take_reading(&mut self, reading: Reading, steady_ms: i64) -> bool {
        let batch = self.batcher.add(reading, steady_ms);
        self.is_urgent |= batch.is_some();
        let completed = batch.is_some();
        batch.into_iter().for_each(|batch| self.take_event(Event::GpuSamples(batch)));
        completed
    }

    pub fn close_due(&mut self, steady_ms: i64) {
        while let Some(batch) = self.batcher.close_due(steady_ms) {
            self.take_event(Event::GpuSamples(batch));
            self.is_urgent = true;
        }
    }

    pub fn close_all(&mut self, steady_ms: i64) {
        for batch in self.batcher.close_all(steady_ms) {
            self.take_event(Event::GpuSamples(batch));
            self.is_urgent = true;
        }
    }

    /// Empties the queue.
    pub fn drain(&mut self) -> Vec<Event> {
        self.is_urgent = false;
        std::mem::take(&mut self.events)
    }

    /// Records that `count` drained events were written or given up.
    pub fn note_stored(&mut self, count: usize, trouble: Option<String>) {
        self.stored += count as u64;
        self.trouble = trouble;
    }

    /// A ticket for everything queued so far; see [`WriteQueue::is_stored`].
    pub fn ticket(&self) -> u64 {
        self.taken
    }

    pub fn is_stored(&self, ticket: u64) -> bool {
        self.stored >= ticket
    }
}
