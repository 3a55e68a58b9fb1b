//! [`Event`]: any message of the contract, with what all of them share.

use bytes::Bytes;
use prost::Message;

use crate::{InvalidEvent, SchemaId, UnknownSchema, id, v1};

/// One event of any schema.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    Job(v1::JobEvent),
    Capacity(v1::CapacityEvent),
    PoolSample(v1::PoolSample),
    Node(v1::NodeEvent),
    DeadLetter(v1::DeadLetter),
    GpuSamples(v1::GpuSampleBatch),
    Step(v1::StepReport),
    Straggler(v1::StragglerSignal),
    NodeHealth(v1::NodeSignal),
    Forecast(v1::Forecast),
    Autopilot(v1::AutopilotEvent),
    Coverage(v1::CoverageSignal),
    JobEnd(v1::JobEndSignal),
    Scaling(v1::ScalingCurve),
    Sizing(v1::SizingAdvice),
}

/// What a log stores of one event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EventRecord {
    /// Unit of order, see [`Event::key`].
    pub key: Bytes,
    /// [`SchemaId::number`].
    pub schema: u32,
    /// When it happened, ms since the epoch.
    pub event_time_ms: i64,
    /// The encoded message.
    pub payload: Bytes,
}

/// Why a payload is not an event.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum DecodeError {
    #[error(transparent)]
    UnknownSchema(#[from] UnknownSchema),
    #[error("{schema} payload of {len} bytes is not a protobuf message of schemas/{schema}.proto: {reason}")]
    Malformed { schema: &'static str, len: usize, reason: prost::DecodeError },
    #[error("{schema} is incomplete: {reason}")]
    Invalid { schema: &'static str, reason: InvalidEvent },
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
        }
    }

    /// The unit of order: `cluster/job_id`, `cluster/owner`, `cluster/node`, `cluster/name`,
    /// `cluster/family`, `cluster` alone for what the autopilot does, or the origin of a dead
    /// letter.
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

    /// Reads an event that was written in any version of a known schema.
    ///
    /// # Errors
    /// [`DecodeError`] if the schema is unknown, the bytes are not a message of it, or the message
    /// lacks what every event of the schema must have.
    pub fn decode(schema_number: u32, payload: &[u8]) -> Result<Self, DecodeError> {
        let event = Self::decode_draft(schema_number, payload)?;
        let schema = event.schema().name();
        event.validate().map_err(|reason| DecodeError::Invalid { schema, reason })?;
        Ok(event)
    }

    /// Reads what [`Event::encode_to_vec`] wrote of an event that may not be sealed yet, and checks
    /// nothing.
    ///
    /// # Errors
    /// [`DecodeError`] if the schema is unknown or the bytes are not a message of it.
    pub fn decode_draft(schema_number: u32, payload: &[u8]) -> Result<Self, DecodeError> {
        let schema = SchemaId::from_number(schema_number)?;
        match schema {
            SchemaId::JobEvent => v1::JobEvent::decode(payload).map(Self::Job),
            SchemaId::CapacityEvent => v1::CapacityEvent::decode(payload).map(Self::Capacity),
            SchemaId::PoolSample => v1::PoolSample::decode(payload).map(Self::PoolSample),
            SchemaId::NodeEvent => v1::NodeEvent::decode(payload).map(Self::Node),
            SchemaId::DeadLetter => v1::DeadLetter::decode(payload).map(Self::DeadLetter),
            SchemaId::GpuSampleBatch => v1::GpuSampleBatch::decode(payload).map(Self::GpuSamples),
            SchemaId::StepReport => v1::StepReport::decode(payload).map(Self::Step),
            SchemaId::StragglerSignal => v1::StragglerSignal::decode(payload).map(Self::Straggler),
            SchemaId::NodeSignal => v1::NodeSignal::decode(payload).map(Self::NodeHealth),
            SchemaId::Forecast => v1::Forecast::decode(payload).map(Self::Forecast),
            SchemaId::AutopilotEvent => v1::AutopilotEvent::decode(payload).map(Self::Autopilot),
            SchemaId::CoverageSignal => v1::CoverageSignal::decode(payload).map(Self::Coverage),
            SchemaId::JobEndSignal => v1::JobEndSignal::decode(payload).map(Self::JobEnd),
            SchemaId::ScalingCurve => v1::ScalingCurve::decode(payload).map(Self::Scaling),
            SchemaId::SizingAdvice => v1::SizingAdvice::decode(payload).map(Self::Sizing),
        }
        .map_err(|reason| DecodeError::Malformed {
            schema: schema.name(),
            len: payload.len(),
            reason,
        })
    }

    /// Seals the event, checks it and gives what a log stores of it; the message is encoded once.
    ///
    /// # Errors
    /// [`InvalidEvent`] if [`Event::decode`] would refuse the payload.
    pub fn record(&mut self) -> Result<EventRecord, InvalidEvent> {
        if self.envelope().is_none() {
            return Err(InvalidEvent::MissingEnvelope);
        }
        let mut payload = Vec::with_capacity(self.encoded_len() + id::SCRATCH_BYTES);
        self.seal_and_encode(&mut payload);
        self.validate()?;
        Ok(EventRecord {
            key: self.key().into(),
            schema: self.schema().number(),
            event_time_ms: self.event_time_ms(),
            payload: payload.into(),
        })
    }
}
