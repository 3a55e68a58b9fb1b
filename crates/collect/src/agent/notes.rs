//! What the agent says of itself.

use tidegate_events::v1::{Envelope, NodeEvent, NodeEventKind};
use tidegate_events::{Event, SchemaId, v1};
use tidegate_log::Record;

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

/// Says what was lost, and what records had said that are lost with it.
pub(super) fn dropped(at_ms: i64, dropped: &Dropped) -> Event {
    let times = match dropped.times_ms {
        Some((oldest, newest)) => format!("{TIMES}{oldest} to {newest} ms"),
        None => "their times are not known".into(),
    };
    Event::Node(NodeEvent {
        count: Some(dropped.count + dropped.told_before),
        description: Some(format!("{}; {times}", dropped.why)),
        ..note(NodeEventKind::RecordsDropped, at_ms)
    })
}

const TIMES: &str = "event times ";

/// What a record of [`dropped`] says: how many, and their times; `None` of any other record.
pub(super) fn told_losses(record: &Record) -> Option<(u64, Option<(i64, i64)>)> {
    if SchemaId::from_number(record.schema) != Ok(SchemaId::NodeEvent) {
        return None;
    }
    let Ok(Event::Node(event)) = Event::decode(record.schema, &record.payload) else { return None };
    if event.kind() != NodeEventKind::RecordsDropped {
        return None;
    }
    let times = event.description.as_deref().and_then(|said| said.split_once(TIMES));
    let times = times.and_then(|(_, times)| times.strip_suffix(" ms")?.split_once(" to "));
    let times = times.and_then(|(oldest, newest)| Some((oldest.parse().ok()?, newest.parse().ok()?)));
    Some((event.count?, times))
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
