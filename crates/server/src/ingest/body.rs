//! Bodies of appends: read, counted and decoded within one budget of memory over all requests.
//!
//! A request holds what it has sent so far, and what it becomes when it is decoded. What does not
//! fit is refused at once with "busy": agents keep what they have and send it again.

use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::StatusCode;
use futures::StreamExt;
use prost::Message;
use tidegate_events::Event;
use tidegate_log::MAX_RECORD_BYTES;
use tidegate_log::wire::{self, AppendRequest};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use super::Refused;
use crate::access::{Action, Principal};
use crate::audit::{self, Text};

/// Longest request: the largest record and what goes with it.
const MAX_BODY_BYTES: usize = MAX_RECORD_BYTES + (1 << 20);
/// Memory of all requests together.
const MEMORY_BYTES: usize = 256 << 20;
/// Memory is counted in pieces of this many bytes.
const PIECE_BYTES: usize = 1 << 10;
/// Times as much memory as its payload that an event takes at most while it is checked: a packed
/// number of one byte becomes one of eight.
const EVENT_FACTOR: usize = 8;
/// How long a client may take to send a request.
const SENDING: Duration = Duration::from_secs(30);

/// Memory that is left for requests.
#[derive(Clone)]
pub(super) struct Memory(Arc<Semaphore>);

/// A body that was read, and the memory that is held for it.
pub(super) struct Sent {
    body: Bytes,
    held: OwnedSemaphorePermit,
}

/// A request that may be appended.
pub(super) struct Decoded {
    pub request: AppendRequest,
    /// Prices that it enters, if any.
    pub prices: Option<Prices>,
    /// Its memory.
    pub held: OwnedSemaphorePermit,
}

/// Prices of a request, for the record of who entered them.
pub(super) struct Prices {
    /// Cluster of the first.
    pub cluster: String,
    pub text: Text,
}

impl Default for Memory {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(MEMORY_BYTES / PIECE_BYTES)))
    }
}

impl Memory {
    fn take(&self, bytes: usize) -> Result<OwnedSemaphorePermit, Refused> {
        let pieces = u32::try_from(bytes.div_ceil(PIECE_BYTES)).unwrap_or(u32::MAX);
        Arc::clone(&self.0).try_acquire_many_owned(pieces).map_err(|_| {
            let message = "other requests fill the memory for events; send the same again in a second";
            Refused::new(StatusCode::SERVICE_UNAVAILABLE, wire::LOG_UNAVAILABLE, message)
        })
    }

    /// Reads a body as it comes.
    pub async fn read(&self, body: Body) -> Result<Sent, Refused> {
        timeout(SENDING, self.read_all(body)).await.unwrap_or_else(|_| {
            let message = format!("the request took longer than {} s to arrive", SENDING.as_secs());
            Err(Refused::new(StatusCode::REQUEST_TIMEOUT, "too_slow", message))
        })
    }

    async fn read_all(&self, body: Body) -> Result<Sent, Refused> {
        let mut held = self.take(0)?;
        let (mut chunks, mut read) = (body.into_data_stream(), Vec::new());
        while let Some(chunk) = chunks.next().await {
            let chunk = chunk.map_err(|_| Refused::bad("the body ended early; send it again".into()))?;
            if read.len() + chunk.len() > MAX_BODY_BYTES {
                let message = format!("the body is larger than {MAX_BODY_BYTES} bytes; send less at once");
                return Err(Refused::new(StatusCode::PAYLOAD_TOO_LARGE, "body_too_large", message));
            }
            // A vector that grows doubles, and its old half is there while it is copied.
            if read.len() + chunk.len() > held.num_permits() * PIECE_BYTES {
                held.merge(self.take((read.len() + chunk.len()).max(4 * PIECE_BYTES))?);
            }
            read.extend_from_slice(&chunk);
        }
        Ok(Sent { body: read.into(), held })
    }

    /// Decodes a request, and checks that its events belong to the topic and partition that it
    /// names, and that the principal may append them.
    pub fn decode(&self, sent: Sent, principal: &Principal) -> Result<Decoded, Refused> {
        let Sent { body, mut held } = sent;
        let bytes = wire::measure_request(&body).map_err(|why| Refused::bad(format!("the body: {why}")))?;
        // Keys and payloads share the body.
        held.merge(self.take(bytes.saturating_sub(body.len()))?);
        let request = AppendRequest::decode(body)
            .map_err(|error| Refused::bad(format!("the body is no AppendRequest: {error}")))?;
        let longest = request.records.iter().map(|record| record.payload.len()).max().unwrap_or(0);
        let _checking = self.take(longest * EVENT_FACTOR)?;
        let prices = check(&request, principal)?;
        Ok(Decoded { request, prices, held })
    }
}

/// Checks every record; returns the prices among them.
fn check(request: &AppendRequest, principal: &Principal) -> Result<Option<Prices>, Refused> {
    let mut prices: Option<Prices> = None;
    if request.records.is_empty() {
        return Err(Refused::bad("it holds no record".into()));
    }
    for (number, record) in request.records.iter().enumerate() {
        let refuse = |what: String| Err(Refused::bad(format!("record {number}: {what}")));
        let event = match Event::decode(record.schema, &record.payload) {
            Ok(event) => event,
            Err(error) => return refuse(error.to_string()),
        };
        if event.schema().topic() != request.topic {
            return refuse(format!(
                "a {} belongs to topic {}",
                event.schema().name(),
                event.schema().topic()
            ));
        }
        if event.key().as_bytes() != record.key {
            return refuse(format!("its key is {:?}, made of {}", event.key(), event.schema().key()));
        }
        principal.check_append(&request.source, &event)?;
        if event.event_time_ms() != record.event_time_ms {
            return refuse(format!("its event time is {}", event.event_time_ms()));
        }
        if let (Event::Capacity(price), Action::Prices) = (&event, Action::appending(&event)) {
            let cluster = || event.envelope().map_or_else(String::new, |envelope| envelope.cluster.clone());
            let prices = prices.get_or_insert_with(|| Prices { cluster: cluster(), text: Text::default() });
            prices.text.push(&audit::show_price(price));
        }
    }
    Ok(prices)
}
