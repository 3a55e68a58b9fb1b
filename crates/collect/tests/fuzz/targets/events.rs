//! Events as agents and other programs send them.

use std::hint::black_box;

use prost::Message;
use tidegate_events::{Event, SchemaId};
use tidegate_log::wire::{AppendRecord, AppendRequest, measure_request};

use super::{Target, files_of};

pub const TARGETS: [Target; 2] = [
    Target { name: "events", start: || Box::new(event), seeds: events },
    Target { name: "append", start: || Box::new(append), seeds: appends },
];

/// Events of every version of every schema, each with the number of its schema before it.
fn events() -> Vec<Vec<u8>> {
    let of = |schema: SchemaId| {
        let folder = format!("schemas/fixtures/{}", schema.name());
        files_of(&folder, "bin").into_iter().map(move |payload| [vec![schema as u8], payload].concat())
    };
    SchemaId::ALL.into_iter().flat_map(of).collect()
}

fn event(input: &[u8]) {
    let Some((schema, payload)) = input.split_first() else { return };
    if let Ok(event) = Event::decode((u32::from(*schema) << 16) | 1, payload) {
        black_box((event.key(), event.content_id(), event.encode_to_vec()));
    }
}

fn appends() -> Vec<Vec<u8>> {
    let record = |event: Vec<u8>| AppendRecord {
        key: "c/j".into(),
        schema: u32::from(event[0]) << 16,
        event_time_ms: 1,
        payload: event[1..].to_vec().into(),
    };
    let request = AppendRequest {
        topic: "jobs".into(),
        source: "agent/n1@c".into(),
        records: events().into_iter().take(4).map(record).collect(),
        ..AppendRequest::default()
    };
    vec![request.encode_to_vec(), vec![0x32, 0]]
}

/// As the server takes it: measured, then decoded.
fn append(input: &[u8]) {
    if measure_request(input).is_ok()
        && let Ok(request) = AppendRequest::decode(input)
    {
        for record in &request.records {
            black_box(Event::decode(record.schema, &record.payload).ok());
        }
    }
}
