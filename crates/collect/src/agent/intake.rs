//! What was told and is not in the spool yet.

use tidegate_events::Event;

use super::gather::Gatherer;
use crate::reading::Reading;

/// Events that wait for the disk at most; whoever tells more is told nothing, and they are counted.
const MAX_WAITING: usize = 16_384;

pub(super) struct Intake {
    pub gatherer: Gatherer,
    /// In the order in which they were told; batches count when they are closed.
    pub events: Vec<Event>,
    /// Events dropped because too many waited.
    pub overrun: u64,
    /// Of `overrun`, those that were recorded.
    pub overrun_told: u64,
    /// All events ever taken, and those that the keeper has written or given up.
    taken: u64,
    stored: u64,
    /// Callers that wait until what they told is stored.
    pub waiting: u64,
    /// A batch is among the events; they are not to wait.
    pub is_urgent: bool,
    /// Why the disk does not take what was told.
    pub trouble: Option<String>,
    pub ending: bool,
}

impl Intake {
    pub fn new(span_ms: i64) -> Self {
        Self {
            gatherer: Gatherer::new(span_ms),
            events: Vec::new(),
            overrun: 0,
            overrun_told: 0,
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

    /// Tells whether a batch was completed.
    pub fn take_reading(&mut self, reading: Reading, steady_ms: i64) -> bool {
        let batch = self.gatherer.take(reading, steady_ms);
        self.is_urgent |= batch.is_some();
        let completed = batch.is_some();
        batch.into_iter().for_each(|batch| self.take_event(Event::GpuSamples(batch)));
        completed
    }

    pub fn close_due(&mut self, steady_ms: i64) {
        while let Some(batch) = self.gatherer.close_due(steady_ms) {
            self.take_event(Event::GpuSamples(batch));
            self.is_urgent = true;
        }
    }

    pub fn close_all(&mut self, steady_ms: i64) {
        for batch in self.gatherer.close_all(steady_ms) {
            self.take_event(Event::GpuSamples(batch));
            self.is_urgent = true;
        }
    }

    /// Everything that waits.
    pub fn drain(&mut self) -> Vec<Event> {
        self.is_urgent = false;
        std::mem::take(&mut self.events)
    }

    /// So many of those drained are written, or never will be.
    pub fn note_stored(&mut self, count: usize, trouble: Option<String>) {
        self.stored += count as u64;
        self.trouble = trouble;
    }

    /// Stands for all that was told until now.
    pub fn ticket(&self) -> u64 {
        self.taken
    }

    pub fn is_stored(&self, ticket: u64) -> bool {
        self.stored >= ticket
    }
}
