//! What the agent says of itself.

use tidegate_events::v1::{Envelope, NodeEvent, NodeEventKind};
use tidegate_events::{Event, v1};

use super::spool::Dropped;

/// A node event of this kind at this time; everything else is for the sink to fill in.
pub(super) fn note(kind: NodeEventKind, at_ms: i64) -> NodeEvent {
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
        ..note(NodeEventKind::CollectorStarted, at_ms)
    })
}

pub(super) fn stopped(at_ms: i64, boot_id: String, reason: &str) -> Event {
    Event::Node(NodeEvent {
        boot_id: Some(boot_id),
        program_version: Some(env!("CARGO_PKG_VERSION").into()),
        reason: Some(reason.into()),
        ..note(NodeEventKind::CollectorStopped, at_ms)
    })
}

pub(super) fn clock(kind: NodeEventKind, at_ms: i64, amount_ms: i64, description: Option<String>) -> Event {
    Event::Node(NodeEvent { amount_ms: Some(amount_ms), description, ..note(kind, at_ms) })
}

pub(super) fn dropped(at_ms: i64, dropped: &Dropped) -> Event {
    let times = dropped.times_ms.map_or_else(
        || "their times are not known".into(),
        |(oldest, newest)| format!("event times {oldest} to {newest} ms"),
    );
    Event::Node(NodeEvent {
        count: Some(dropped.count),
        description: Some(format!("{}; {times}", dropped.why)),
        ..note(NodeEventKind::RecordsDropped, at_ms)
    })
}

/// For an event that a source told and that is none: what it said, and why it is none.
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
