//! A seeded fleet whose nodes send samples in rounds: fixed devices with running counters, held by
//! jobs.

pub mod events;
pub mod plan;

use std::collections::BTreeMap;

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use tidegate_events::v1::GpuSampleBatch;
use tidegate_events::v1::gpu_sample_batch::{Missing, MissingReason};
use tidegate_events::{Event, SchemaId};
use tidegate_log::{EventLog, partition_for};

use super::batcher::PartitionBatcher;
use crate::bench::codec::gpu::{DEVICES, Device, METRICS, NodeBatch, TICKS, protobuf};
use plan::Plan;
use tidegate_workspace::CommandError;

pub use crate::bench::codec::gpu::FIRST_TICK_MS;
pub use events::gpu_ms;

/// Cluster of all events.
pub const CLUSTER: &str = "prod-h100";
const POOL: &str = "train";
const MODEL: &str = "NVIDIA H100 80GB HBM3";
/// Producer of the records.
const SOURCE: &str = "bench/fleet";

/// Samples per message.
pub const SAMPLES_PER_MESSAGE: u64 = (DEVICES * TICKS) as u64;
/// Time from one message of a node to the next.
pub const ROUND_MS: i64 = 10_000;
/// Probability that a device is unreadable in the last ticks of a message.
const STALE: f64 = 0.000_5;
const STALE_TICKS: usize = 3;
/// The metric that is summed as the truth.
const SUMMED: &str = "power_mw";

/// When the messages of a fleet begin, how far apart its samples are, and which life of the agents
/// sends them.
#[derive(Debug, Clone, Copy)]
pub struct Cadence {
    pub first_ms: i64,
    /// From one sample of a GPU to the next.
    pub tick_ms: i64,
    pub epoch: u64,
}

impl Cadence {
    /// Time from one message of a node to the next.
    pub fn round_ms(self) -> i64 {
        self.tick_ms * TICKS as i64
    }
}

impl Default for Cadence {
    fn default() -> Self {
        Self { first_ms: FIRST_TICK_MS, tick_ms: ROUND_MS / TICKS as i64, epoch: 1_763_000_000_123 }
    }
}

/// An endless sequence of messages: one of each node, then the next of each.
pub struct Fleet {
    rng: ChaCha8Rng,
    plan: Plan,
    cadence: Cadence,
    nodes: Vec<Node>,
    next: usize,
    round: i64,
    /// Sum of `power_mw` over all readable samples so far.
    pub power_mw: i64,
}

struct Node {
    name: String,
    uuids: Vec<String>,
    phase_ms: i64,
    devices: Vec<Working>,
}

struct Working {
    device: Device,
    job: Option<usize>,
    /// Value of each counter metric.
    counters: [i64; METRICS.len()],
}

/// Totals written to the log.
pub struct Produced {
    pub samples: u64,
    pub payload_bytes: u64,
    pub power_mw: i64,
}

impl Fleet {
    /// A fleet of `nodes`, with jobs for `rounds` messages of each.
    pub fn new(seed: u64, nodes: u32, rounds: u64) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let plan = Plan::new(&mut rng, nodes, FIRST_TICK_MS, rounds as i64 * ROUND_MS);
        Self::of(rng, nodes, plan, Cadence::default())
    }

    /// A fleet whose devices are drawn from `rng`, with these jobs.
    pub fn of(mut rng: ChaCha8Rng, nodes: u32, plan: Plan, cadence: Cadence) -> Self {
        let node = |number: u32| Node {
            name: node_name(number),
            uuids: (0..DEVICES).map(|_| uuid(&mut rng)).collect(),
            phase_ms: rng.random_range(0..1_000),
            devices: (0..DEVICES)
                .map(|_| {
                    let device = Device::idle(&mut rng, 0);
                    Working { counters: [device.counter; METRICS.len()], device, job: None }
                })
                .collect(),
        };
        let nodes = (0..nodes).map(node).collect();
        Self { rng, plan, cadence, nodes, next: 0, round: 0, power_mw: 0 }
    }

    /// The next message.
    pub fn message(&mut self) -> GpuSampleBatch {
        let rng = &mut self.rng;
        let node = &mut self.nodes[self.next];
        let mut columns = vec![Vec::with_capacity(DEVICES * TICKS); METRICS.len()];
        let Cadence { first_ms, tick_ms, epoch } = self.cadence;
        let round_ms = first_ms + self.round * self.cadence.round_ms();
        for (gpu, working) in node.devices.iter_mut().enumerate() {
            let job = self.plan.holder(self.next as u32, gpu, round_ms);
            if job != working.job {
                working.job = job;
                let doing = match job {
                    Some(job) if self.plan.jobs[job].works => Device::busy(rng),
                    _ => Device::idle(rng, job.map_or(0, |_| 1)),
                };
                working.device = working.device.doing(doing);
            }
            let metrics = METRICS.iter().zip(&mut working.counters).zip(&mut columns);
            for (((metric, _), counter), column) in metrics {
                column.extend((0..TICKS).map(|_| working.device.sample(rng, metric, counter)));
            }
        }
        if let Some(interval) = METRICS.iter().position(|(metric, _)| *metric == "interval_us") {
            columns[interval].fill(tick_ms * 1_000);
        }
        let first_ms = round_ms + node.phase_ms;
        let mut batch = protobuf(&NodeBatch {
            event_id: [0; 16],
            cluster: CLUSTER,
            node: node.name.clone(),
            model: MODEL,
            epoch,
            seq: self.round as u64,
            observed_ms: first_ms + self.cadence.round_ms(),
            uuids: node.uuids.clone(),
            ticks_ms: (0..TICKS as i64).map(|tick| first_ms + tick * tick_ms).collect(),
            columns,
        });
        for device in 0..DEVICES {
            if rng.random_bool(STALE) {
                make_stale(&mut batch, device);
            }
        }
        self.power_mw += sum_of_read(&batch, SUMMED);
        self.next += 1;
        if self.next == self.nodes.len() {
            (self.next, self.round) = (0, self.round + 1);
        }
        batch
    }

    /// Writes messages until there are `samples`, each to the partition of its node.
    pub fn produce(
        &mut self,
        samples: u64,
        log: &dyn EventLog,
        partitions: u32,
    ) -> Result<Produced, CommandError> {
        let topic = SchemaId::GpuSampleBatch.topic();
        let mut batchers: Vec<PartitionBatcher> =
            (0..partitions).map(|partition| PartitionBatcher::new(SOURCE, topic, partition)).collect();
        let mut produced = Produced { samples: 0, payload_bytes: 0, power_mw: 0 };
        while produced.samples < samples {
            let record = Event::GpuSamples(self.message()).record()?;
            produced.samples += SAMPLES_PER_MESSAGE;
            produced.payload_bytes += (record.key.len() + record.payload.len()) as u64;
            batchers[partition_for(&record.key, partitions) as usize].push(log, record)?;
        }
        batchers.iter_mut().try_for_each(|batcher| batcher.append(log))?;
        produced.power_mw = self.power_mw;
        Ok(produced)
    }

    /// Writes the events of nodes and the scheduler for `length_ms`; returns their number.
    pub fn produce_jobs(&self, length_ms: i64, log: &dyn EventLog) -> Result<u64, CommandError> {
        let mut batchers: BTreeMap<&str, PartitionBatcher> = BTreeMap::new();
        let events = events::events(self, length_ms);
        let count = events.len() as u64;
        for mut event in events {
            let topic = event.schema().topic();
            let batcher = batchers.entry(topic).or_insert_with(|| PartitionBatcher::new(SOURCE, topic, 0));
            batcher.push(log, event.record()?)?;
        }
        batchers.values_mut().try_for_each(|batcher| batcher.append(log))?;
        Ok(count)
    }
}

/// Name of a node of the fleet.
pub fn node_name(number: u32) -> String {
    format!("h100-{number:05}")
}

fn uuid(rng: &mut ChaCha8Rng) -> String {
    let [a, b, c] = [rng.random::<u32>(), rng.random(), rng.random()];
    format!("GPU-{a:08x}-{:04x}-4{:03x}-8000-{c:08x}{:04x}", b >> 16, b & 0xfff, c >> 16)
}

/// Marks the last ticks of a device as stale.
fn make_stale(batch: &mut GpuSampleBatch, device: usize) {
    let (first, end) = ((device + 1) * TICKS - STALE_TICKS, (device + 1) * TICKS);
    for column in &mut batch.columns {
        column.value_delta[first..end].fill(0);
        let reason = MissingReason::Stale.into();
        column.missing.push(Missing { first: first as u32, count: STALE_TICKS as u32, reason });
    }
}

fn sum_of_read(batch: &GpuSampleBatch, metric: &str) -> i64 {
    let column = batch.columns.iter().find(|column| column.name == metric).expect("a metric of the fleet");
    let read = |at: usize| {
        !column.missing.iter().any(|m| (m.first as usize..(m.first + m.count) as usize).contains(&at))
    };
    let (mut value, mut sum) = (0, 0);
    for (at, delta) in column.value_delta.iter().enumerate() {
        value = if at % TICKS == 0 { *delta } else { value + delta };
        sum += if read(at) { value } else { 0 };
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_events::Event;

    #[test]
    fn messages_are_valid_and_go_on_from_round_to_round() {
        let mut fleet = Fleet::new(3, 2, 1_000);
        let messages: Vec<_> = (0..2_000).map(|_| fleet.message()).collect();
        assert_eq!((&messages[0].node, &messages[0].devices), (&messages[2].node, &messages[2].devices));
        assert_eq!(messages[2].first_tick_ms - messages[0].first_tick_ms, ROUND_MS);
        let energy = |batch: &GpuSampleBatch| {
            batch.columns.iter().find(|c| c.name == "energy_mj").expect("a metric").value_delta.clone()
        };
        let end: i64 = energy(&messages[0])[..TICKS].iter().sum();
        assert!((0..2_000_000).contains(&(energy(&messages[2])[0] - end)), "a counter goes on");
        assert!(messages.iter().any(|m| m.columns.iter().any(|c| !c.missing.is_empty())), "some are stale");
        assert_eq!(messages.iter().map(|m| sum_of_read(m, SUMMED)).sum::<i64>(), fleet.power_mw);
        for message in messages {
            assert!(Event::GpuSamples(message).record().is_ok());
        }
    }
}
