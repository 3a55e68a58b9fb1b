//! Schemas only grow: what `schemas/fixtures/contract.txt` lists must stay as it is.
//!
//! `TIDEGATE_BLESS=1 cargo test -p tidegate-events` adds what is new. It removes and changes
//! nothing.

use std::{collections::BTreeSet, fs, path::PathBuf};

use prost_reflect::FieldDescriptor;
use tidegate_events::SchemaId;
use tidegate_events::contract::{built_in, shape};

use crate::schemas;

fn contract_file() -> PathBuf {
    schemas::folder().join("fixtures/contract.txt")
}

/// Every field and enum value of the schemas, one a line: `message.field = number label type`.
fn lines() -> BTreeSet<String> {
    let fields = built_in()
        .all_messages()
        .flat_map(|message| message.fields().map(|f| field_line(&f)).collect::<Vec<_>>());
    let values = built_in().all_enums().flat_map(|kinds| {
        let line = |v: prost_reflect::EnumValueDescriptor| {
            format!("{}.{} = {}", kinds.full_name(), v.name(), v.number())
        };
        kinds.values().map(line).collect::<Vec<_>>()
    });
    let numbers = SchemaId::ALL.map(|schema| format!("schema {} = {}", schema.name(), schema as u16));
    let topics = SchemaId::ALL.map(|schema| format!("topic of {} = {}", schema.name(), schema.topic()));
    fields.chain(values).chain(numbers).chain(topics).collect()
}

fn field_line(field: &FieldDescriptor) -> String {
    format!("{} = {} {}", field.full_name(), field.number(), shape(field))
}

/// What a change of the schemas breaks: lines of the committed contract that are no longer true.
fn broken<'a>(committed: &'a BTreeSet<String>, current: &'a BTreeSet<String>) -> Vec<&'a str> {
    committed.difference(current).map(String::as_str).collect()
}

#[test]
fn schemas_only_grow() {
    let file = contract_file();
    let current = lines();
    let committed: BTreeSet<String> =
        fs::read_to_string(&file).unwrap_or_default().lines().map(str::to_owned).collect();
    let broken = broken(&committed, &current);
    assert!(broken.is_empty(), "removed or changed in schemas/: {broken:#?}\nadd a new field instead");
    if schemas::blessing() {
        let lines: String = current.iter().map(|line| format!("{line}\n")).collect();
        fs::write(&file, lines).expect("write the contract");
        return;
    }
    let added: Vec<_> = current.difference(&committed).collect();
    assert!(
        added.is_empty(),
        "new in schemas/: {added:#?}\nraise the schema's version and run with TIDEGATE_BLESS=1"
    );
}

/// The check sees a renumbering, a change of type or label, and a removal; it allows an addition.
#[test]
fn the_check_sees_what_breaks_readers() {
    let committed = lines();
    let line = "tidegate.v1.JobEvent.gpus_milli = 13 optional uint64".to_owned();
    for changed in
        [None, Some(" = 24 optional uint64"), Some(" = 13 optional sint64"), Some(" = 13 plain uint64")]
    {
        let mut current = committed.clone();
        assert!(current.remove(&line), "the contract lists {line}");
        current.extend(changed.map(|rest| format!("tidegate.v1.JobEvent.gpus_milli{rest}")));
        assert_eq!(broken(&committed, &current), [line.as_str()]);
    }
    let mut grown = committed.clone();
    grown.insert("tidegate.v1.JobEvent.colour = 24 optional string".into());
    assert!(broken(&committed, &grown).is_empty());
}

/// On Kafka, the frame of a value only states that it is the first message of the schema's file.
#[test]
fn an_event_is_the_first_message_of_its_file() {
    for schema in SchemaId::ALL {
        let event = schemas::message(schema);
        let file = event.parent_file();
        assert_eq!(file.name(), format!("{}.proto", schema.name()));
        assert_eq!(
            file.messages().next(),
            Some(event),
            "another message stands before it in {}",
            file.name()
        );
    }
}
