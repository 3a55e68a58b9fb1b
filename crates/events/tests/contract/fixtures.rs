//! Fixtures of every version of every schema must decode for ever.
//!
//! `schemas/fixtures/<schema>/v<version>.bin` holds one payload as that version wrote it, `.json`
//! what it says, in Protobuf's own JSON form. `TIDEGATE_BLESS=1 cargo test -p tidegate-events`
//! writes those that are missing for the versions this build writes; files that exist are never
//! touched.

use std::{collections::BTreeSet, fs, path::PathBuf};

use prost_reflect::prost::Message;
use prost_reflect::{DeserializeOptions, DynamicMessage, SerializeOptions};
use tidegate_events::{Event, SchemaId, contract};

use crate::{samples, schemas};

fn file(schema: SchemaId, version: u16, ending: &str) -> PathBuf {
    schemas::folder().join(format!("fixtures/{}/v{version}.{ending}", schema.name()))
}

/// A payload as JSON, as this build decodes it; fields that are not set are left out.
fn json(schema: SchemaId, payload: &[u8]) -> String {
    let message = DynamicMessage::decode(schemas::message(schema), payload).expect("a message of the schema");
    let mut bytes = serde_json::Serializer::pretty(Vec::new());
    let options = SerializeOptions::new().use_proto_field_name(true);
    message.serialize_with_options(&mut bytes, &options).expect("every message has a JSON form");
    String::from_utf8(bytes.into_inner()).expect("JSON is UTF-8") + "\n"
}

/// Writes the fixtures that are missing.
fn bless(schema: SchemaId) {
    let (payload_file, json_file) =
        (file(schema, schema.version(), "bin"), file(schema, schema.version(), "json"));
    if payload_file.exists() || json_file.exists() {
        return;
    }
    let payload = samples::full_event(schema).record().expect("a valid sample").payload;
    fs::create_dir_all(payload_file.parent().expect("a folder")).expect("make the folder of fixtures");
    fs::write(&json_file, json(schema, &payload)).expect("write the JSON fixture");
    fs::write(&payload_file, payload).expect("write the payload fixture");
}

#[test]
fn every_version_decodes_to_its_json() {
    for schema in SchemaId::ALL {
        if schemas::blessing() {
            bless(schema);
        }
        for version in 1..=schema.version() {
            check_fixture(schema, version);
        }
    }
}

fn check_fixture(schema: SchemaId, version: u16) {
    let hint = "run `TIDEGATE_BLESS=1 cargo test -p tidegate-events` once after a schema gained a version";
    let payload_file = file(schema, version, "bin");
    let payload =
        fs::read(&payload_file).unwrap_or_else(|e| panic!("{}: {e}; {hint}", payload_file.display()));
    let json_file = file(schema, version, "json");
    let expected =
        fs::read_to_string(&json_file).unwrap_or_else(|e| panic!("{}: {e}; {hint}", json_file.display()));

    let number = schema.number() - u32::from(schema.version()) + u32::from(version);
    let event = Event::decode(number, &payload).unwrap_or_else(|e| panic!("{}: {e}", payload_file.display()));
    let again = event.encode_to_vec();
    assert_eq!(json(schema, &again), expected, "{}", payload_file.display());
    if version == schema.version() {
        assert_eq!(again, payload, "{} is written differently now", payload_file.display());
        assert_eq!(event.envelope().unwrap().event_id, event.content_id(), "{}", payload_file.display());
    }
}

/// The JSON form holds everything in the payload, so a decoder that swapped two fields would fail.
#[test]
fn the_json_form_is_the_whole_payload() {
    for schema in SchemaId::ALL {
        let payload = samples::full_event(schema).record().unwrap().payload;
        let text = json(schema, &payload);
        let mut reader = serde_json::Deserializer::from_str(&text);
        let options = DeserializeOptions::new();
        let message =
            DynamicMessage::deserialize_with_options(schemas::message(schema), &mut reader, &options)
                .unwrap();
        assert_eq!(message.encode_to_vec(), payload);
    }
}

/// The sample that becomes the fixture of a new version must set each of its fields.
#[test]
fn samples_fill_in_every_field() {
    let mut filled = BTreeSet::new();
    for schema in SchemaId::ALL {
        let payload = samples::full_event(schema).record().unwrap().payload;
        collect_filled(
            &DynamicMessage::decode(schemas::message(schema), payload.as_ref()).unwrap(),
            &mut filled,
        );
    }
    for field in contract::built_in().all_messages().flat_map(|message| message.fields().collect::<Vec<_>>())
    {
        assert!(filled.contains(field.full_name()), "samples.rs leaves {} empty", field.full_name());
    }
}

fn collect_filled(message: &DynamicMessage, filled: &mut BTreeSet<String>) {
    for (field, value) in message.fields() {
        filled.insert(field.full_name().to_owned());
        let values = value.as_list().unwrap_or(std::slice::from_ref(value));
        values.iter().filter_map(|value| value.as_message()).for_each(|inner| collect_filled(inner, filled));
    }
}
