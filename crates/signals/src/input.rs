//! Log events as the detectors take them: parsed, with their place in event-time order.

use prost::Message;
use serde::{Deserialize, Serialize};
use tidegate_events::v1::gpu_sample_batch::DeviceInfo;
use tidegate_events::{Event, JobFamily, Millis, v1};

use crate::budget;
use crate::facts::{HoldFact, JobFact};
use crate::stored;

/// Names in a step report: job, node, device, and those of its envelope.
const STEP_NAMES: usize = 6;
/// Bytes that the allocator adds to the texts of a message of jobs, nodes or prices.
const TEXTS_BYTES: usize = 256;
/// Bytes of a job's place in the index of waiting events.
const INDEX_BYTES: usize = 384;

/// An event that some detector uses.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum Input {
    Job {
        fact: Box<JobFact>,
        final_state: Option<String>,
        #[serde(with = "stored::family")]
        family: Box<JobFamily>,
    },
    Hold(Box<HoldFact>),
    Node(#[serde(with = "stored::message")] Box<v1::NodeEvent>),
    Capacity(#[serde(with = "stored::message")] Box<v1::CapacityEvent>),
    Samples(#[serde(with = "stored::message")] Box<v1::GpuSampleBatch>),
    Step {
        #[serde(with = "stored::message")]
        report: Box<v1::StepReport>,
        /// The run of the job whose detector has taken the report already, ahead of the order.
        processed_in: Option<u32>,
    },
}

impl Input {
    /// Parses an event. Returns its rank among inputs of the same time, its place in event time (µs
    /// since 1970), and itself; `None` for events that no detector uses.
    pub fn from_event(event: Event) -> Option<(u8, i64, Self)> {
        let event_us = Millis(event.event_time_ms()).to_micros().0;
        Some(match event {
            // A price applies to what happens at its own time, so it comes first.
            Event::Capacity(event) => (0, event_us, Self::from_capacity(event)?),
            Event::Job(job) => (1, event_us, Self::from_job(job)?),
            Event::Node(node) => (2, event_us, Self::Node(Box::new(node))),
            Event::GpuSamples(batch) => {
                (3, Millis(batch.first_tick_ms).to_micros().0, Self::Samples(Box::new(batch)))
            }
            // A step takes its place when it ends.
            Event::Step(step) => {
                let duration_us = i64::try_from(step.duration_us).unwrap_or(i64::MAX);
                let report = Box::new(step);
                (4, event_us.saturating_add(duration_us), Self::Step { report, processed_in: None })
            }
            _ => return None,
        })
    }

    /// Whether the event shows how far time has come. Prices and partitions may apply to a time yet
    /// to come.
    pub fn advances_time(&self) -> bool {
        !matches!(self, Self::Capacity(_))
    }

    /// Whether the event is of a stream: a step report or samples, which are written as things
    /// happen. The history of all others may come in any order.
    pub fn is_of_stream(&self) -> bool {
        matches!(self, Self::Samples(_) | Self::Step { .. })
    }

    /// Memory of the event while it waits, bytes.
    pub fn bytes(&self) -> usize {
        let bytes = match self {
            Self::Job { fact, final_state, family } => {
                let JobFact { job_id, team, pool, hosts, .. } = fact.as_ref();
                let JobFamily { team: of_family, user_name, job_name, gpu_model } = family.as_ref();
                let texts = [team, pool, hosts, final_state, of_family, user_name, job_name, gpu_model];
                let texts = texts.into_iter().flatten().map(String::len).sum::<usize>() + job_id.len();
                size_of::<JobFact>() + size_of::<JobFamily>() + texts + TEXTS_BYTES + INDEX_BYTES
            }
            Self::Hold(hold) => {
                let HoldFact { job_id, hold_id, device, .. } = hold.as_ref();
                let uuid = device.uuid.as_ref().map_or(0, String::len);
                let texts = job_id.len() + hold_id.len() + device.node.len() + uuid;
                size_of::<HoldFact>() + texts + TEXTS_BYTES
            }
            Self::Node(event) => size_of::<v1::NodeEvent>() + event.encoded_len() + TEXTS_BYTES,
            Self::Capacity(event) => size_of::<v1::CapacityEvent>() + event.encoded_len() + TEXTS_BYTES,
            Self::Samples(batch) => {
                let values = batch.columns.iter().map(|column| column.value_delta.len()).sum::<usize>();
                let devices = batch.devices.len() * (size_of::<DeviceInfo>() + 2 * budget::NAME_BYTES);
                size_of::<v1::GpuSampleBatch>()
                    + devices
                    + (values + batch.tick_delta_ms.len()) * size_of::<i64>()
            }
            Self::Step { .. } => size_of::<v1::StepReport>() + STEP_NAMES * budget::NAME_BYTES,
        };
        bytes + 2 * budget::NAME_BYTES + 2 * budget::ENTRY_BYTES
    }

    /// The job that the event changes, or whose step it reports. Such events of one job keep their
    /// order even where steps bypass the buffer.
    pub fn ordered_job(&self) -> Option<&str> {
        match self {
            Self::Job { fact, .. } if fact.kind != v1::JobEventKind::Submitted => Some(&fact.job_id),
            Self::Step { report, .. } => Some(&report.job_id),
            _ => None,
        }
    }

    fn from_job(job: v1::JobEvent) -> Option<Self> {
        if let Some(hold) = HoldFact::from_event(&job) {
            return Some(Self::Hold(Box::new(hold)));
        }
        let final_state = job.final_state.clone();
        let mut family = JobFamily::default();
        family.learn(&job);
        let fact = Box::new(JobFact::from_event(job)?);
        Some(Self::Job { fact, final_state, family: Box::new(family) })
    }

    fn from_capacity(event: v1::CapacityEvent) -> Option<Self> {
        use v1::CapacityEventKind::{PartitionRemoved, PartitionSet, PriceSet};
        let counts = matches!(event.kind(), PriceSet | PartitionSet | PartitionRemoved);
        counts.then(|| Self::Capacity(Box::new(event)))
    }
}
