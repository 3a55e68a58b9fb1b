//! Writes a site's events to its log, as its agents and its scheduler's watcher would.

use std::collections::BTreeMap;

use tidegate_events::{Event, SchemaId};
use tidegate_log::EventLog;
use tidegate_workspace::CommandError;

use super::{LIVE_TICK_MS, PAST_TICK_MS, Site};
use crate::bench::batcher::PartitionBatcher;
use crate::bench::fleet::{Cadence, Fleet, SAMPLES_PER_MESSAGE};

const SOURCE: &str = "bench/site";

/// Which nodes send how often.
#[derive(Debug, Clone, Copy)]
pub enum Sending {
    /// All nodes, a sample a minute.
    Past,
    /// All nodes, a sample a second.
    Live,
    /// The first node alone, a sample a second.
    OneNode,
}

/// The writer of one stretch of a site's time.
pub struct Feed<'a> {
    site: &'a Site,
    log: &'a dyn EventLog,
    fleet: Fleet,
    senders: u32,
    cadence: Cadence,
    batchers: BTreeMap<&'static str, PartitionBatcher>,
    pub events: u64,
    pub samples: u64,
}

impl<'a> Feed<'a> {
    /// A feed of the time from `from_ms` to `to_ms`. `life` numbers the feeds of a site.
    pub fn new(
        site: &'a Site,
        log: &'a dyn EventLog,
        sending: Sending,
        life: u64,
        (from_ms, to_ms): (i64, i64),
    ) -> Self {
        let (senders, tick_ms) = match sending {
            Sending::Past => (site.nodes, PAST_TICK_MS),
            Sending::Live => (site.nodes, LIVE_TICK_MS),
            Sending::OneNode => (1, LIVE_TICK_MS),
        };
        let fleet = site.fleet(senders, tick_ms, from_ms, to_ms, life);
        let cadence = Cadence { first_ms: from_ms, tick_ms, epoch: life };
        Self { site, log, fleet, senders, cadence, batchers: BTreeMap::new(), events: 0, samples: 0 }
    }

    /// Messages of all senders for one round, and how long a round is, ms.
    pub fn round(&self) -> (u32, i64) {
        (self.senders, self.cadence.round_ms())
    }

    /// Appends the events of jobs and nodes in `[from, to)`, ms.
    pub fn append_events(&mut self, from_ms: i64, to_ms: i64) -> Result<(), CommandError> {
        // Each call is a life of its own: its numbers begin at 0.
        let events = self.site.events(from_ms, to_ms, from_ms.unsigned_abs());
        self.events += events.len() as u64;
        for mut event in events {
            let (record, log) = (event.record()?, self.log);
            self.batcher(event.schema().topic()).push(log, record)?;
        }
        self.append()
    }

    /// Appends the next messages of the fleet.
    pub fn append_messages(&mut self, messages: u32) -> Result<(), CommandError> {
        for _ in 0..messages {
            let (record, log) = (Event::GpuSamples(self.fleet.message()).record()?, self.log);
            self.samples += SAMPLES_PER_MESSAGE;
            self.batcher(SchemaId::GpuSampleBatch.topic()).push(log, record)?;
        }
        self.append()
    }

    fn append(&mut self) -> Result<(), CommandError> {
        let log = self.log;
        self.batchers.values_mut().try_for_each(|batcher| batcher.append(log))
    }

    fn batcher(&mut self, topic: &'static str) -> &mut PartitionBatcher {
        let life = self.cadence.epoch;
        let new = || PartitionBatcher::new(SOURCE, topic, 0).in_life(life);
        self.batchers.entry(topic).or_insert_with(new)
    }
}

impl std::fmt::Debug for Feed<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Feed").field("events", &self.events).field("samples", &self.samples).finish()
    }
}
