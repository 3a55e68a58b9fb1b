//! Events that the agent emits about itself.

use tidegate_events::v1::{Envelope, NodeEvent, NodeEventKind};
use tidegate_events::{Event, v1};

/// A node event of this kind and time; the sink fills in everything else.
pub(super) fn node_event(kind: NodeEventKind, at_ms: i64) -> NodeEvent {
    NodeEvent {
        envelope: Some(Envelope { event_time_ms: at_ms, ..Default::default() }),
        kind: kind.into(),
        ..Default::default()
    }
}

pub(super) fn started(at_ms: i64, boot_id: String, driver_version: Option<String>) -> Event {
    Event::Node(NodeEvent {
        driver_version,
        boot_id: Some(boot_id),
        program_version: Some(env!("CARGO_PKG_VERSION").into()),
        ..node_event(NodeEventKind::CollectorStarted, at_ms)
    })
}

pub(super) fn stopped(at_ms: i64, boot_id: String, reason: &str) -> Event {
    Event::Node(NodeEvent {
        boot_id: Some(boot_id),
        program_version: Some(env!("CARGO_PKG_VERSION").into()),
        reason: Some(reason.into()),
        ..node_event(NodeEventKind::CollectorStopped, at_ms)
    })
}

pub(super) fn clock(kind: NodeEventKind, at_ms: i64, amount_ms: i64, description: Option<String>) -> Event {
    Event::Node(NodeEvent { amount_ms: Some(amount_ms), description, ..node_event(kind, at_ms) })
}

/// Dead letter for an invalid event: its bytes and the reason.
pub(super) fn dead_letter(at_ms: i64, origin: &str, event: &Event, reason: String) -> Event {
    const RAW_BYTES: usize = 4096;
    let mut raw = event.encode_to_vec();
    raw.truncate(RAW_BYTES);
    Event::DeadLetter(v1::DeadLetter {
        envelope: Some(Envelope { event_time_ms: at_ms, ..Default::default() }),
        origin: origin.into(),
        code: "INVALID_EVENT".into(),
        reason,
        raw,
        ..Default::default()
    })
}
