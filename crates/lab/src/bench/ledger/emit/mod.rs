//! Emits the day into a log, as collectors would, in their formats.

mod nodes;
mod samples;
mod scheduler;
mod steps;

use std::collections::BTreeMap;

use tidegate_events::Event;
use tidegate_log::EventLog;

use super::day::Day;
use super::fleet::Span;
use crate::bench::batcher::PartitionBatcher;
use tidegate_workspace::CommandError;

/// Cluster, and source of the scheduler watcher.
pub const CLUSTER: &str = "day";
const WATCHER: &str = "watch/slurm/day";
/// Producer of the records.
const SOURCE: &str = "bench/ledger";
/// Delay between an event and its observation.
const SEEN_MS: i64 = 2_000;

/// Damage to sample batches, per million.
#[derive(Debug, Clone, Copy, Default)]
pub struct Damage {
    pub late_ppm: u32,
    pub duplicate_ppm: u32,
    pub missing_ppm: u32,
}

/// Totals of emitted data, as the tables should have them.
#[derive(Debug, Clone, Default)]
pub struct Emitted {
    pub job_events: u64,
    pub node_events: u64,
    pub capacity_events: u64,
    pub batches: u64,
    pub late_batches: u64,
    pub duplicate_batches: u64,
    pub missing_batches: u64,
    /// Devices × ticks in emitted batches, and the time they cover.
    pub samples: u64,
    pub us_sampled: i64,
    pub steps: steps::Sums,
    /// By node: periods without samples in the log.
    pub unseen: Vec<Vec<Span>>,
}

/// Emits everything.
pub fn emit(day: &Day, damage: Damage, log: &dyn EventLog) -> Result<Emitted, CommandError> {
    let mut emitter = Emitter { log, batchers: BTreeMap::new(), numbers: BTreeMap::new() };
    let mut emitted = Emitted::default();
    let scheduler = scheduler::events(day);
    emitted.job_events = scheduler.len() as u64;
    emitter.emit_all(scheduler)?;
    let (capacity, nodes) = (nodes::capacity(day), nodes::events(day));
    (emitted.capacity_events, emitted.node_events) = (capacity.len() as u64, nodes.len() as u64);
    emitter.emit_all(capacity)?;
    emitter.emit_all(nodes)?;
    emitted.steps = steps::emit(day, &mut emitter)?;
    samples::emit(day, damage, &mut emitter, &mut emitted)?;
    emitter.finish()?;
    Ok(emitted)
}

/// An event with its source.
struct SourcedEvent {
    source: String,
    /// Time of emission.
    at_ms: i64,
    event: Event,
}

/// Numbers the events of each source and appends them.
struct Emitter<'a> {
    log: &'a dyn EventLog,
    batchers: BTreeMap<&'static str, PartitionBatcher>,
    /// Next sequence number of each source.
    numbers: BTreeMap<String, u64>,
}

impl Emitter<'_> {
    /// Emits events in order of emission.
    fn emit_all(&mut self, mut said: Vec<SourcedEvent>) -> Result<(), CommandError> {
        said.sort_by_key(|said| said.at_ms);
        said.into_iter().try_for_each(|said| self.emit(said))
    }

    fn emit(&mut self, said: SourcedEvent) -> Result<(), CommandError> {
        let event = self.seal(said);
        self.append(event)
    }

    /// Fills in the envelope.
    fn seal(&mut self, SourcedEvent { source, at_ms, mut event }: SourcedEvent) -> Event {
        let number = self.numbers.entry(source.clone()).or_default();
        let envelope = event.envelope_mut();
        envelope.cluster = CLUSTER.into();
        (envelope.source, envelope.epoch, envelope.seq) = (source, 1, *number);
        envelope.observed_time_ms = at_ms;
        *number += 1;
        event
    }

    fn append(&mut self, mut event: Event) -> Result<(), CommandError> {
        let topic = event.schema().topic();
        let batcher = self.batchers.entry(topic).or_insert_with(|| PartitionBatcher::new(SOURCE, topic, 0));
        batcher.push(self.log, event.record()?)
    }

    fn finish(&mut self) -> Result<(), CommandError> {
        self.batchers.values_mut().try_for_each(|batcher| batcher.append(self.log))
    }
}

/// The agent of a node.
fn agent(day: &Day, node: usize) -> String {
    format!("agent/{}", day.fleet.nodes[node].name)
}
