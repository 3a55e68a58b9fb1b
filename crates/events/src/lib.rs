//! What can happen: event types, identities, units and codecs.
//!
//! The contract is `schemas/*.proto`; the types in [`v1`] are generated from it. This crate adds
//! what a schema language cannot say: which number and topic a schema has ([`SchemaId`]), what a
//! message must hold to be an event ([`Event`]), when two messages state the same fact
//! ([`Event::content_id`]) and how GPU time is counted ([`gpu_ms`]).
//!
//! [`contract`] holds the contract itself, and says what a change of it would break.
//!
//! It does no I/O, knows no clock and no randomness: everything is a function of its arguments. It
//! knows no log either; [`EventRecord`] holds what a log needs to store an event.
//!
//! ```
//! use tidegate_events::{Event, v1};
//!
//! let mut event = Event::Job(v1::JobEvent {
//!     envelope: Some(v1::Envelope {
//!         cluster: "helios".into(),
//!         source: "import:jobs.csv".into(),
//!         event_time_ms: 1_600_000_000_000,
//!         observed_time_ms: 1_600_000_000_000,
//!         ..Default::default()
//!     }),
//!     kind: v1::JobEventKind::Started.into(),
//!     job_id: "4711".into(),
//!     attempt_id: Some(0),
//!     gpus_milli: Some(8_000),
//!     ..Default::default()
//! });
//! let record = event.record()?; // fills event_id
//! assert_eq!(record.key, "helios/4711");
//! assert_eq!(event.schema().topic(), "jobs");
//! assert_eq!(Event::decode(record.schema, &record.payload)?, event);
//!
//! // Eight GPUs for half a second are 4,000 GPU milliseconds.
//! assert_eq!(tidegate_events::gpu_ms(8_000, 0, 500), 4_000);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![warn(missing_docs)]

mod codec;
pub mod contract;
mod event;
mod family;
mod id;
mod invalid;
mod schema;
mod states;
mod validate;
pub mod wire;

pub use codec::{DecodeError, EventRecord};
pub use event::Event;
pub use family::JobFamily;
pub use id::EVENT_ID_BYTES;
pub use invalid::InvalidEvent;
pub use schema::{SchemaId, UnknownSchema};
pub use states::{FinalState, UnknownFinalState};
pub use tidegate_units::{GPU_MILLI, Micros, MilliGpus, Millis, gpu_ms, gpu_ms_between};
pub use wire::MAX_SAMPLES;

/// Types generated from `schemas/*.proto`.
#[allow(missing_docs, clippy::all, clippy::pedantic)]
pub mod v1 {
    include!(concat!(env!("OUT_DIR"), "/tidegate.v1.rs"));
}
