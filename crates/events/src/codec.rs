//! Events to records and back: what a log stores of an event, and what is refused on the way.

use bytes::Bytes;
use prost::Message;

use crate::wire::{self, TooMuch};
use crate::{Event, InvalidEvent, SchemaId, UnknownSchema, id, v1};

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
#[allow(missing_docs, reason = "the message says what each field is")]
pub enum DecodeError {
    /// No schema of this build has the number.
    #[error(transparent)]
    UnknownSchema(#[from] UnknownSchema),
    /// The bytes are not a Protobuf message of the schema.
    #[error("{schema} payload of {len} bytes is not a protobuf message of schemas/{schema}.proto: {reason}")]
    Malformed { schema: &'static str, len: usize, reason: prost::DecodeError },
    /// The message holds more than one may.
    #[error("{schema} holds too much: {reason}")]
    TooMuch { schema: &'static str, reason: TooMuch },
    /// The message lacks what every event of the schema must have.
    #[error("{schema} is incomplete: {reason}")]
    Invalid { schema: &'static str, reason: InvalidEvent },
}

impl Event {
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
    /// its size alone.
    ///
    /// # Errors
    /// [`DecodeError`] if the schema is unknown, or the bytes are not a message of it or one that
    /// holds too much.
    pub fn decode_draft(schema_number: u32, payload: &[u8]) -> Result<Self, DecodeError> {
        let schema = SchemaId::from_number(schema_number)?;
        wire::measure(wire::shape_of(schema), payload)
            .map_err(|reason| DecodeError::TooMuch { schema: schema.name(), reason })?;
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
            SchemaId::AuditEvent => v1::AuditEvent::decode(payload).map(Self::Audit),
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
        wire::measure(wire::shape_of(self.schema()), &payload)?;
        self.validate()?;
        Ok(EventRecord {
            key: self.key().into(),
            schema: self.schema().number(),
            event_time_ms: self.event_time_ms(),
            payload: payload.into(),
        })
    }
}
