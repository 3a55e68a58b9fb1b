//! [`Event`]: any message of the contract, with what all of them share.

use prost::Message;

use crate::{SchemaId, v1};

/// One event of any schema.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// Something that happened to a job or a step of it.
    Job(v1::JobEvent),
    /// A change of a quota, reservation, limit, partition or price.
    Capacity(v1::CapacityEvent),
    /// The state of a pool or quota, as a scheduler reported it.
    PoolSample(v1::PoolSample),
    /// Something that happened to a node.
    Node(v1::NodeEvent),
    /// Input that could not become an event.
    DeadLetter(v1::DeadLetter),
    /// GPU samples of one node.
    GpuSamples(v1::GpuSampleBatch),
    /// A training step of one rank.
    Step(v1::StepReport),
    /// A finding on one slow part of a job.
    Straggler(v1::StragglerSignal),
    /// Health of a node.
    NodeHealth(v1::NodeSignal),
    /// Quantiles of demand for one step ahead.
    Forecast(v1::Forecast),
    /// An entry of the autopilot's journal.
    Autopilot(v1::AutopilotEvent),
    /// Whether the bounds of a forecast hold.
    Coverage(v1::CoverageSignal),
    /// The fault that probably ended an attempt of a job.
    JobEnd(v1::JobEndSignal),
    /// A point of a scaling curve.
    Scaling(v1::ScalingCurve),
    /// How much of a pool to commit to for a term.
    Sizing(v1::SizingAdvice),
    /// What a person did, or how it ended.
    Audit(v1::AuditEvent),
}

/// Runs one expression on the message inside an event, whichever it is.
macro_rules! with_message {
    ($event:expr, $message:ident => $body:expr) => {
        match $event {
            Event::Job($message) => $body,
            Event::Capacity($message) => $body,
            Event::PoolSample($message) => $body,
            Event::Node($message) => $body,
            Event::DeadLetter($message) => $body,
            Event::GpuSamples($message) => $body,
            Event::Step($message) => $body,
            Event::Straggler($message) => $body,
            Event::NodeHealth($message) => $body,
            Event::Forecast($message) => $body,
            Event::Autopilot($message) => $body,
            Event::Coverage($message) => $body,
            Event::JobEnd($message) => $body,
            Event::Scaling($message) => $body,
            Event::Sizing($message) => $body,
            Event::Audit($message) => $body,
        }
    };
}

impl Event {
    /// The schema this event is written in.
    pub const fn schema(&self) -> SchemaId {
        match self {
            Self::Job(_) => SchemaId::JobEvent,
            Self::Capacity(_) => SchemaId::CapacityEvent,
            Self::PoolSample(_) => SchemaId::PoolSample,
            Self::Node(_) => SchemaId::NodeEvent,
            Self::DeadLetter(_) => SchemaId::DeadLetter,
            Self::GpuSamples(_) => SchemaId::GpuSampleBatch,
            Self::Step(_) => SchemaId::StepReport,
            Self::Straggler(_) => SchemaId::StragglerSignal,
            Self::NodeHealth(_) => SchemaId::NodeSignal,
            Self::Forecast(_) => SchemaId::Forecast,
            Self::Autopilot(_) => SchemaId::AutopilotEvent,
            Self::Coverage(_) => SchemaId::CoverageSignal,
            Self::JobEnd(_) => SchemaId::JobEndSignal,
            Self::Scaling(_) => SchemaId::ScalingCurve,
            Self::Sizing(_) => SchemaId::SizingAdvice,
            Self::Audit(_) => SchemaId::AuditEvent,
        }
    }

    /// The unit of order: `cluster/job_id`, `cluster/owner`, `cluster/node`, `cluster/name`,
    /// `cluster/family`, `cluster` alone for what the autopilot does, the source for what people
    /// do, or the origin of a dead letter.
    ///
    /// An [`OBSERVED`](v1::JobEventKind::Observed) heartbeat names no job, so its key is
    /// `cluster/`.
    pub fn key(&self) -> String {
        let object = match self {
            Self::Job(job) => &job.job_id,
            Self::Capacity(capacity) => &capacity.owner,
            Self::PoolSample(sample) => &sample.owner,
            Self::Node(node) => &node.node,
            Self::DeadLetter(letter) => return letter.origin.clone(),
            Self::GpuSamples(batch) => &batch.node,
            Self::Step(step) => &step.job_id,
            Self::Straggler(signal) => &signal.job_id,
            Self::NodeHealth(signal) => &signal.node,
            Self::Forecast(forecast) => &forecast.name,
            Self::Coverage(signal) => &signal.name,
            Self::JobEnd(signal) => &signal.job_id,
            Self::Scaling(curve) => &curve.family,
            Self::Sizing(advice) => &advice.name,
            Self::Autopilot(_) => return self.envelope().map_or_else(String::new, |e| e.cluster.clone()),
            Self::Audit(_) => return self.envelope().map_or_else(String::new, |e| e.source.clone()),
        };
        let cluster = self.envelope().map_or("", |envelope| &envelope.cluster);
        [cluster, "/", object].concat()
    }

    /// Identity and time; absent only in an event that was put together without one.
    pub fn envelope(&self) -> Option<&v1::Envelope> {
        with_message!(self, message => message.envelope.as_ref())
    }

    /// Identity and time to be filled in; an absent envelope is added.
    pub fn envelope_mut(&mut self) -> &mut v1::Envelope {
        with_message!(self, message => message.envelope.get_or_insert_default())
    }

    /// When it happened, ms since the epoch; 0 without an envelope.
    pub fn event_time_ms(&self) -> i64 {
        self.envelope().map_or(0, |envelope| envelope.event_time_ms)
    }

    /// Length of the encoded message in bytes.
    pub fn encoded_len(&self) -> usize {
        with_message!(self, message => message.encoded_len())
    }

    /// The encoded message. Neither seals nor checks the event; [`Event::record`] does both.
    pub fn encode_to_vec(&self) -> Vec<u8> {
        with_message!(self, message => message.encode_to_vec())
    }

    /// Appends the encoded message to a buffer.
    pub fn encode_into(&self, buffer: &mut Vec<u8>) {
        with_message!(self, message => message.encode_raw(buffer));
    }
}
