//! `event_id`: the same fact has the same id, whichever source reports it and whenever.
//!
//! The id is the 128-bit XXH3 (seed 0, big-endian) of the event's content:
//!
//! ```text
//! message without its envelope ‖ cluster ‖ length of cluster, u32 LE ‖ event_time_ms, i64 LE ‖
//! schema id, u16 LE
//! ```
//!
//! The message is in Protobuf's canonical form: fields by ascending number, defaults left out. Read
//! from the end, the content splits in only one way, so that no two contents give the same bytes.
//! Source, epoch, seq and observed time are about the report rather than the fact, and stay out of
//! it.

use prost::Message;
use xxhash_rust::xxh3::xxh3_128;

use crate::{Event, v1};

/// Length of an `event_id`.
pub const EVENT_ID_BYTES: usize = 16;

/// Bytes beyond the message that sealing uses temporarily: an id, a cluster name of usual length
/// and the fixed trailer.
pub(crate) const SCRATCH_BYTES: usize = 64;

impl Event {
    /// The id of this event's content, whatever its envelope holds.
    pub fn content_id(&self) -> [u8; EVENT_ID_BYTES] {
        let mut buffer = Vec::with_capacity(self.encoded_len() + SCRATCH_BYTES);
        self.encode_into(&mut buffer);
        let body = self.envelope().map_or(0, encoded_envelope_len);
        self.hash_content(&mut buffer, body)
    }

    /// Fills in `event_id`. Call it last: the id is of the content as it is now.
    pub fn seal(&mut self) {
        let id = self.content_id();
        self.envelope_mut().event_id = id.to_vec();
    }

    /// Seals the event and appends its encoding to an empty buffer, in one pass over the message.
    pub(crate) fn seal_and_encode(&mut self, buffer: &mut Vec<u8>) {
        debug_assert!(buffer.is_empty(), "the message starts the buffer");
        self.envelope_mut().event_id.resize(EVENT_ID_BYTES, 0);
        self.encode_into(buffer);
        let envelope = self.envelope_mut();
        let body = encoded_envelope_len(envelope);
        // The id is the envelope's first field: its 16 bytes stand behind one byte of tag and one
        // of length.
        let id_at = body - envelope.encoded_len() + 2;
        let id = self.hash_content(buffer, body);
        buffer[id_at..id_at + EVENT_ID_BYTES].copy_from_slice(&id);
        self.envelope_mut().event_id.copy_from_slice(&id);
    }

    /// Hashes the message from `body` on, with cluster, time and schema; leaves the buffer
    /// unchanged.
    fn hash_content(&self, buffer: &mut Vec<u8>, body: usize) -> [u8; EVENT_ID_BYTES] {
        let message_len = buffer.len();
        let cluster = self.envelope().map_or("", |envelope| &envelope.cluster);
        buffer.extend_from_slice(cluster.as_bytes());
        buffer.extend_from_slice(&(cluster.len() as u32).to_le_bytes());
        buffer.extend_from_slice(&self.event_time_ms().to_le_bytes());
        buffer.extend_from_slice(&(self.schema() as u16).to_le_bytes());
        let id = xxh3_128(&buffer[body..]).to_be_bytes();
        buffer.truncate(message_len);
        id
    }
}

/// Length of the envelope inside a message, with the tag and length before it. The envelope is
/// field 1 of every message and fields are encoded by number, so it is also where the rest of the
/// message begins.
fn encoded_envelope_len(envelope: &v1::Envelope) -> usize {
    let len = envelope.encoded_len();
    1 + prost::length_delimiter_len(len) + len
}
