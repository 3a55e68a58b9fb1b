//! The id is of the fact: every content field changes it, nothing about the report does.

use proptest::prelude::*;
use proptest::test_runner::TestCaseResult;
use prost_reflect::prost::Message;
use prost_reflect::{DynamicMessage, FieldDescriptor};
use tidegate_events::{Event, v1};

use crate::{any_event, schemas};

/// Fields of the envelope about the report, not the fact.
const ABOUT_THE_REPORT: [&str; 5] = ["event_id", "source", "epoch", "seq", "observed_time_ms"];

/// An event, one of its fields (of the envelope's as well) and another value for it.
fn change() -> impl Strategy<Value = (Event, FieldDescriptor, prost_reflect::Value)> {
    any_event::event().prop_flat_map(|event| {
        let message = schemas::message(event.schema());
        let envelope =
            message.get_field_by_name("envelope").and_then(|field| field.kind().as_message().cloned());
        let content = message.fields().filter(|field| field.name() != "envelope");
        let fields: Vec<_> = content.chain(envelope.expect("an envelope").fields()).collect();
        prop::sample::select(fields).prop_flat_map(move |field| {
            let value = any_event::field_value(&field);
            (Just(event.clone()), Just(field), value)
        })
    })
}

/// The event with the field set, not checked for validity: the id does not depend on that.
fn with_field(event: &Event, field: &FieldDescriptor, value: prost_reflect::Value) -> Event {
    let mut message =
        DynamicMessage::decode(schemas::message(event.schema()), &*event.encode_to_vec()).unwrap();
    if field.parent_message().name() == "Envelope" {
        message.get_field_by_name_mut("envelope").unwrap().as_message_mut().unwrap().set_field(field, value);
    } else {
        message.set_field(field, value);
    }
    let bytes = message.encode_to_vec();
    match event {
        Event::Job(_) => Event::Job(Message::decode(&*bytes).unwrap()),
        Event::Capacity(_) => Event::Capacity(Message::decode(&*bytes).unwrap()),
        Event::PoolSample(_) => Event::PoolSample(Message::decode(&*bytes).unwrap()),
        Event::Node(_) => Event::Node(Message::decode(&*bytes).unwrap()),
        Event::DeadLetter(_) => Event::DeadLetter(Message::decode(&*bytes).unwrap()),
        Event::GpuSamples(_) => Event::GpuSamples(Message::decode(&*bytes).unwrap()),
        Event::Step(_) => Event::Step(Message::decode(&*bytes).unwrap()),
        Event::Straggler(_) => Event::Straggler(Message::decode(&*bytes).unwrap()),
        Event::NodeHealth(_) => Event::NodeHealth(Message::decode(&*bytes).unwrap()),
        Event::Forecast(_) => Event::Forecast(Message::decode(&*bytes).unwrap()),
        Event::Autopilot(_) => Event::Autopilot(Message::decode(&*bytes).unwrap()),
        Event::Coverage(_) => Event::Coverage(Message::decode(&*bytes).unwrap()),
        Event::JobEnd(_) => Event::JobEnd(Message::decode(&*bytes).unwrap()),
        Event::Scaling(_) => Event::Scaling(Message::decode(&*bytes).unwrap()),
        Event::Sizing(_) => Event::Sizing(Message::decode(&*bytes).unwrap()),
        Event::Audit(_) => Event::Audit(Message::decode(&*bytes).unwrap()),
    }
}

fn only_content_counts(
    event: &Event,
    field: &FieldDescriptor,
    value: prost_reflect::Value,
) -> TestCaseResult {
    let changed = with_field(event, field, value);
    let about_the_report =
        field.parent_message().name() == "Envelope" && ABOUT_THE_REPORT.contains(&field.name());
    let same_fact = about_the_report || changed == *event;
    prop_assert_eq!(changed.content_id() == event.content_id(), same_fact, "field {}", field.full_name());
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn the_id_is_of_the_content_alone((event, field, value) in change()) {
        only_content_counts(&event, &field, value)?;
    }
}

proptest! {
    /// Sealing while encoding and sealing in place are two ways to the same id.
    #[test]
    fn sealing_is_stable(event in any_event::event()) {
        let (mut sealed, mut recorded) = (event.clone(), event.clone());
        sealed.seal();
        recorded.record().unwrap();
        prop_assert_eq!(&sealed, &recorded);
        prop_assert_eq!(sealed.envelope().unwrap().event_id.as_slice(), event.content_id());
        let first = sealed.clone();
        sealed.seal();
        prop_assert_eq!(sealed, first);
    }
}

/// The id is written into the encoded message: it must land in its place behind a length of one
/// byte or more.
#[test]
fn sealing_finds_its_place_in_any_envelope() {
    for source_len in [0, 80, 100, 120, 200, 4_096] {
        let envelope =
            v1::Envelope { source: "s".repeat(source_len), cluster: "c".into(), ..Default::default() };
        let node =
            v1::NodeEvent { envelope: Some(envelope), kind: 1, node: "n".into(), ..Default::default() };
        let mut event = Event::Node(node);
        let record = event.record().unwrap();
        assert_eq!(
            Event::decode(record.schema, &record.payload).unwrap(),
            event,
            "source of {source_len} bytes"
        );
        assert_eq!(event.envelope().unwrap().event_id, event.content_id());
    }
}

/// Ids are stored for ever: a change of the algorithm would import all history a second time.
#[test]
fn the_algorithm_is_part_of_the_contract() {
    let envelope = v1::Envelope { cluster: "c".into(), event_time_ms: 1_000, ..Default::default() };
    let job =
        v1::JobEvent { envelope: Some(envelope.clone()), kind: 3, job_id: "1".into(), ..Default::default() };
    let id = u128::from_be_bytes(Event::Job(job).content_id());
    assert_eq!(id, xxhash_rust::xxh3::xxh3_128(b"\x10\x03\x1a\x011c\x01\0\0\0\xe8\x03\0\0\0\0\0\0\x01\0"));
}

#[test]
fn equal_bytes_in_different_schemas_are_different_facts() {
    let envelope = Some(v1::Envelope { cluster: "c".into(), ..Default::default() });
    let node = v1::NodeEvent { envelope: envelope.clone(), kind: 1, node: "x".into(), ..Default::default() };
    let capacity = v1::CapacityEvent { envelope, kind: 1, owner: "x".into(), ..Default::default() };
    let (node, capacity) = (Event::Node(node), Event::Capacity(capacity));
    assert_eq!(node.encode_to_vec(), capacity.encode_to_vec());
    assert_ne!(node.content_id(), capacity.content_id());
}
