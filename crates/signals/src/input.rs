//! Log events as the detectors take them: parsed, with their place in event-time order.

use serde::{Deserialize, Serialize};
use tidegate_events::v1::gpu_sample_batch::DeviceInfo;
use tidegate_events::{Event, JobFamily, Millis, v1};

use crate::budget;
use crate::facts::{HoldFact, JobFact};
use crate::stored;

/// Names in a step report: job, node, device, and those of its envelope.
const STEP_NAMES: usize = 6;

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

    /// Memory of a step report or batch of samples that waits, bytes. 0 for other events: their
    /// whole history is read before anything is decided on it.
    pub fn bounded_bytes(&self) -> usize {
        let bytes = match self {
            Self::Job { .. } | Self::Hold(_) | Self::Node(_) | Self::Capacity(_) => return 0,
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
