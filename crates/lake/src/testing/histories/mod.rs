//! Generated histories of every topic, for crash tests and `tidegate chaos log`.
//!
//! Everything follows from the seed. Two clusters run across midnight, so that minutes, hours and
//! days have something to sum: one with a scheduler, agents, training jobs and an autopilot, one
//! with pods that only the kubelet reports. Some events are late, some are delivered twice, and
//! some records cannot be decoded, lie in the future, or are in the wrong partition.

mod cluster;
mod operations;

use std::collections::BTreeMap;

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use tidegate_events::v1::{Envelope, JobEvent, JobEventKind};
use tidegate_events::{Event, InvalidEvent, SchemaId};
use tidegate_log::{Record, TopicPartition, partition_for};

/// 2023-11-14 23:10:00 UTC.
const START_MS: i64 = 1_700_003_400_000;
const MINUTE_MS: i64 = 60_000;
const HOUR_MS: i64 = 60 * MINUTE_MS;
/// Longest delay of a late or repeated event.
pub const LATEST_MS: i64 = 30 * MINUTE_MS;

/// Parameters of a history.
#[derive(Debug, Clone, Copy)]
pub struct History {
    /// Seed of the random numbers.
    pub seed: u64,
    /// Number of scheduled jobs.
    pub jobs: u32,
    /// Duration from 23:10 UTC on.
    pub minutes: u32,
}

/// Records of each partition of each topic, in append order.
pub type Records = BTreeMap<TopicPartition, Vec<Record>>;

impl History {
    /// All events, in the order in which they are emitted.
    pub fn events(&self) -> Vec<Event> {
        let mut timeline = Timeline {
            rng: ChaCha8Rng::seed_from_u64(self.seed),
            end_ms: START_MS + i64::from(self.minutes) * MINUTE_MS,
            emitted: Vec::new(),
        };
        cluster::emit(&mut timeline, self.jobs);
        operations::emit(&mut timeline);
        timeline.emitted.sort_by_key(|(at_ms, _)| *at_ms);
        timeline.emitted.into_iter().map(|(_, event)| event).collect()
    }

    /// The records to append, with this many partitions per topic. No two records have the same
    /// bytes.
    pub fn records(&self, partitions: u32) -> Result<Records, InvalidEvent> {
        let mut records = Records::new();
        for mut event in self.events() {
            let (topic, key) = (event.schema().topic(), event.key());
            let place = partition_for(key.as_bytes(), partitions);
            // A heartbeat goes to every partition.
            let here = if key.ends_with('/') { 0..partitions } else { place..place + 1 };
            for partition in here {
                let of = records.entry(TopicPartition { topic: topic.into(), partition }).or_default();
                event.envelope_mut().seq = of.len() as u64;
                of.push(event.record()?.into());
            }
        }
        strange(&mut records, partitions, self.seed)?;
        Ok(records)
    }
}

/// Events between their occurrence and the log.
struct Timeline {
    rng: ChaCha8Rng,
    end_ms: i64,
    /// Time of emission, ms, and event.
    emitted: Vec<(i64, Event)>,
}

impl Timeline {
    /// Emits an event: most within two seconds, one in twenty late, one in twenty twice.
    fn emit(&mut self, mut event: Event) {
        let at_ms = event.event_time_ms();
        let envelope = event.envelope_mut();
        (envelope.source, envelope.epoch) = ("history".into(), 1);
        let delay_ms = match self.rng.random_ratio(1, 20) {
            true => self.rng.random_range(MINUTE_MS..LATEST_MS),
            false => self.rng.random_range(0..2_000),
        };
        envelope.observed_time_ms = at_ms + delay_ms;
        event.seal();
        if self.rng.random_ratio(1, 20) {
            let again_ms = at_ms + self.rng.random_range(0..LATEST_MS);
            self.emitted.push((again_ms, event.clone()));
        }
        self.emitted.push((at_ms + delay_ms, event));
    }

    /// A random time at least ten minutes before the end.
    fn time(&mut self) -> i64 {
        self.rng.random_range(START_MS..self.end_ms - 10 * MINUTE_MS)
    }
}

fn envelope(cluster: &str, at_ms: i64) -> Option<Envelope> {
    Some(Envelope { cluster: cluster.into(), event_time_ms: at_ms, ..Envelope::default() })
}

fn job_event(cluster: &str, job: &str, kind: JobEventKind, at_ms: i64) -> JobEvent {
    JobEvent {
        envelope: envelope(cluster, at_ms),
        job_id: job.into(),
        kind: kind.into(),
        ..JobEvent::default()
    }
}

/// Adds records that cannot be decoded, come from a clock years ahead, or are in the wrong
/// partition.
fn strange(records: &mut Records, partitions: u32, seed: u64) -> Result<(), InvalidEvent> {
    let topic = SchemaId::JobEvent.topic();
    let mut ahead =
        Event::Job(job_event("east", "ahead", JobEventKind::Started, START_MS + 400 * 24 * HOUR_MS));
    ahead.envelope_mut().observed_time_ms = START_MS;
    let mut astray = Event::Job(job_event("east", "astray", JobEventKind::Submitted, START_MS + HOUR_MS));
    astray.envelope_mut().observed_time_ms = START_MS + HOUR_MS;
    let garbage = |number: u8| Record {
        key: "east/garbage".into(),
        schema: SchemaId::JobEvent.number(),
        event_time_ms: START_MS,
        payload: vec![0xff, number, seed as u8].into(),
    };
    let home = partition_for(astray.key().as_bytes(), partitions);
    let odd = [garbage(0), ahead.record()?.into(), astray.record()?.into(), garbage(1)];
    let at = TopicPartition { topic: topic.into(), partition: (home + 1) % partitions };
    let of = records.entry(at).or_default();
    for (number, record) in (1..).zip(odd) {
        of.insert(of.len() * number / 5, record);
    }
    Ok(())
}
