//! Appends what was observed to a log: each source numbers its events, as collectors do.

use std::collections::BTreeMap;
use std::sync::Arc;

use tidegate_events::Event;
use tidegate_log::{Batch, EventLog, Producer, Record, TopicPartition, partition_for};

use crate::DemoError;
use crate::plan::CLUSTER;

/// Producer of all records.
const PRODUCER: &str = "demo/cluster";
/// Bytes of one append.
const MOST_BYTES: usize = 4 << 20;

/// An event, who observed it, and when, ms since the epoch.
#[derive(Debug)]
pub struct Observation {
    pub(crate) source: String,
    pub(crate) at_ms: i64,
    pub(crate) event: Event,
}

/// Records for one partition that are not appended yet.
#[derive(Debug, Default)]
struct Lane {
    records: Vec<Record>,
    bytes: usize,
    next: u64,
}

/// One life of the site's collectors.
pub struct Feed {
    log: Arc<dyn EventLog>,
    epoch: u64,
    partitions: BTreeMap<String, u32>,
    lanes: BTreeMap<(&'static str, u32), Lane>,
    numbers: BTreeMap<String, u64>,
}

impl std::fmt::Debug for Feed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Feed").field("epoch", &self.epoch).finish_non_exhaustive()
    }
}

impl Feed {
    /// A feed into a log that has all topics. `epoch` numbers the lives of the site's collectors.
    ///
    /// # Errors
    /// The log cannot be read.
    pub fn new(log: Arc<dyn EventLog>, epoch: u64) -> Result<Self, DemoError> {
        let partitions = log.topics()?.into_iter().map(|(name, config)| (name, config.partitions)).collect();
        Ok(Self { log, epoch, partitions, lanes: BTreeMap::new(), numbers: BTreeMap::new() })
    }

    /// Takes what was observed; appends what fills a batch.
    ///
    /// # Errors
    /// The log cannot be written.
    pub fn take(&mut self, observed: Vec<Observation>) -> Result<(), DemoError> {
        for Observation { source, at_ms, mut event } in observed {
            let number = self.numbers.entry(source.clone()).or_default();
            let envelope = event.envelope_mut();
            envelope.cluster = CLUSTER.into();
            (envelope.source, envelope.epoch, envelope.seq) = (source, self.epoch, *number);
            envelope.observed_time_ms = at_ms;
            *number += 1;
            let topic = event.schema().topic();
            let record: Record = event.record()?.into();
            let partitions = self.partitions.get(topic).copied().unwrap_or(1);
            let at = (topic, partition_for(&record.key, partitions));
            let lane = self.lanes.entry(at).or_default();
            lane.bytes += record.payload.len();
            lane.records.push(record);
            if lane.bytes >= MOST_BYTES {
                append(self.log.as_ref(), self.epoch, at, lane)?;
            }
        }
        Ok(())
    }

    /// Appends all that was taken.
    ///
    /// # Errors
    /// The log cannot be written.
    pub fn flush(&mut self) -> Result<(), DemoError> {
        let Self { log, epoch, lanes, .. } = self;
        lanes.iter_mut().try_for_each(|(at, lane)| append(log.as_ref(), *epoch, *at, lane))
    }
}

fn append(
    log: &dyn EventLog,
    epoch: u64,
    (topic, partition): (&str, u32),
    lane: &mut Lane,
) -> Result<(), DemoError> {
    let records = std::mem::take(&mut lane.records);
    lane.bytes = 0;
    if records.is_empty() {
        return Ok(());
    }
    let first_seq = lane.next;
    lane.next += records.len() as u64;
    let producer = Producer { source: PRODUCER.into(), epoch };
    log.append(&TopicPartition { topic: topic.into(), partition }, Batch { producer, first_seq, records })?;
    Ok(())
}
