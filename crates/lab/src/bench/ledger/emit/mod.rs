//! What collectors would have told of the day, in their own formats, into a log.

mod nodes;
mod samples;
mod scheduler;
mod steps;

use std::collections::BTreeMap;

use tidegate_events::Event;
use tidegate_log::EventLog;

use super::day::Day;
use super::fleet::Span;
use crate::bench::outbox::Outbox;
use tidegate_workspace::CommandError;

/// Name of the cluster, and of who watches its scheduler.
pub const CLUSTER: &str = "day";
const WATCHER: &str = "watch/slurm/day";
/// Who appends.
const SOURCE: &str = "bench/ledger";
/// So long after something happened it is known.
const SEEN_MS: i64 = 2_000;

/// How many batches of samples in a million come to harm.
#[derive(Debug, Clone, Copy, Default)]
pub struct Damage {
    pub late_ppm: u32,
    pub duplicate_ppm: u32,
    pub missing_ppm: u32,
}

/// What was told, as the tables should have it.
#[derive(Debug, Clone, Default)]
pub struct Told {
    pub job_events: u64,
    pub node_events: u64,
    pub capacity_events: u64,
    pub batches: u64,
    pub late_batches: u64,
    pub duplicate_batches: u64,
    pub missing_batches: u64,
    /// Devices × ticks in batches that were told, and the time they speak of.
    pub samples: u64,
    pub us_sampled: i64,
    pub steps: steps::Sums,
    /// Stretches of each node for which no sample is in the log.
    pub unseen: Vec<Vec<Span>>,
}

/// Tells everything.
pub fn emit(day: &Day, damage: Damage, log: &dyn EventLog) -> Result<Told, CommandError> {
    let mut teller = Teller { log, outboxes: BTreeMap::new(), numbers: BTreeMap::new() };
    let mut told = Told::default();
    let scheduler = scheduler::events(day);
    told.job_events = scheduler.len() as u64;
    teller.tell_all(scheduler)?;
    let (capacity, nodes) = (nodes::capacity(day), nodes::events(day));
    (told.capacity_events, told.node_events) = (capacity.len() as u64, nodes.len() as u64);
    teller.tell_all(capacity)?;
    teller.tell_all(nodes)?;
    told.steps = steps::tell(day, &mut teller)?;
    samples::tell(day, damage, &mut teller, &mut told)?;
    teller.finish()?;
    Ok(told)
}

/// An event and who tells of it.
struct Said {
    source: String,
    /// When it is told.
    at_ms: i64,
    event: Event,
}

/// Numbers what sources tell, and hands it to the log.
struct Teller<'a> {
    log: &'a dyn EventLog,
    outboxes: BTreeMap<&'static str, Outbox>,
    /// Of the next record of each source.
    numbers: BTreeMap<String, u64>,
}

impl Teller<'_> {
    /// Tells events in order of the times at which they are told.
    fn tell_all(&mut self, mut said: Vec<Said>) -> Result<(), CommandError> {
        said.sort_by_key(|said| said.at_ms);
        said.into_iter().try_for_each(|said| self.tell(said))
    }

    fn tell(&mut self, said: Said) -> Result<(), CommandError> {
        let event = self.seal(said);
        self.append(event)
    }

    /// Fills in what an agent fills in.
    fn seal(&mut self, Said { source, at_ms, mut event }: Said) -> Event {
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
        let outbox = self.outboxes.entry(topic).or_insert_with(|| Outbox::new(SOURCE, topic, 0));
        outbox.push(self.log, event.record()?)
    }

    fn finish(&mut self) -> Result<(), CommandError> {
        self.outboxes.values_mut().try_for_each(|outbox| outbox.append(self.log))
    }
}

/// The agent of a node.
fn agent(day: &Day, node: usize) -> String {
    format!("agent/{}", day.fleet.nodes[node].name)
}
