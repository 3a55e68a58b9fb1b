//! Strategies that fill in any message by its descriptor: a field added to a schema is tested from
//! then on.

use proptest::prelude::*;
use prost_reflect::prost::Message;
use prost_reflect::{DynamicMessage, FieldDescriptor, Kind, MessageDescriptor, ReflectMessage, Value};
use tidegate_events::{Event, SchemaId};

use crate::schemas;

/// Any valid, sealed event of any schema.
pub fn event() -> BoxedStrategy<Event> {
    prop::sample::select(SchemaId::ALL.as_slice()).prop_flat_map(event_of).boxed()
}

/// Any valid, sealed event of one schema.
pub fn event_of(schema: SchemaId) -> BoxedStrategy<Event> {
    message(schemas::message(schema))
        .prop_map(move |mut message| {
            make_valid(&mut message);
            Event::decode(schema.number(), &message.encode_to_vec()).expect("a valid event decodes")
        })
        .boxed()
}

/// Any message of the descriptor, each field present or absent on its own.
fn message(descriptor: MessageDescriptor) -> BoxedStrategy<DynamicMessage> {
    let fields: Vec<_> =
        descriptor.fields().map(|field| prop::option::weighted(0.7, field_value(&field))).collect();
    fields
        .prop_map(move |values| {
            let mut message = DynamicMessage::new(descriptor.clone());
            for (field, value) in descriptor.fields().zip(values) {
                if let Some(value) = value {
                    message.set_field(&field, value);
                }
            }
            message
        })
        .boxed()
}

/// Any value that the field can hold.
pub fn field_value(field: &FieldDescriptor) -> BoxedStrategy<Value> {
    let one = scalar(field.kind());
    if field.is_list() { prop::collection::vec(one, 0..4).prop_map(Value::List).boxed() } else { one }
}

fn scalar(kind: Kind) -> BoxedStrategy<Value> {
    match kind {
        Kind::String => "[a-zA-Zäß0-9_/. -]{0,12}".prop_map(Value::String).boxed(),
        Kind::Bytes => prop::collection::vec(any::<u8>(), 0..20).prop_map(|v| Value::Bytes(v.into())).boxed(),
        Kind::Bool => any::<bool>().prop_map(Value::Bool).boxed(),
        Kind::Uint32 => any::<u32>().prop_map(Value::U32).boxed(),
        Kind::Uint64 => any::<u64>().prop_map(Value::U64).boxed(),
        Kind::Sint32 => any::<i32>().prop_map(Value::I32).boxed(),
        Kind::Sint64 => any::<i64>().prop_map(Value::I64).boxed(),
        Kind::Enum(kinds) => {
            let numbers: Vec<i32> = kinds.values().map(|value| value.number()).collect();
            prop::sample::select(numbers).prop_map(Value::EnumNumber).boxed()
        }
        Kind::Message(inner) => message(inner).prop_map(Value::Message).boxed(),
        other => panic!("{other:?} is new to the contract: say here which values it takes"),
    }
}

/// Fills in what `Event::validate` asks for and leaves the rest as it came.
fn make_valid(message: &mut DynamicMessage) {
    let Value::Message(mut envelope) =
        message.get_field_by_name("envelope").expect("an envelope field").into_owned()
    else {
        panic!("the envelope is a message");
    };
    envelope.set_field_by_name("event_id", Value::Bytes(vec![7; 16].into()));
    fill_if_empty(&mut envelope, "cluster");
    fill_if_empty(&mut envelope, "source");
    message.set_field_by_name("envelope", Value::Message(envelope));
    for required in [
        "job_id",
        "owner",
        "node",
        "origin",
        "code",
        "holder",
        "plan",
        "action",
        "name",
        "family",
        "unit",
        "term",
        "policy_hash",
        "beside_plan",
        "canary",
        "object",
        "id",
        "door",
    ] {
        fill_if_empty(message, required);
    }
    for required in ["kind", "state", "reach"] {
        if message.get_field_by_name(required).is_some_and(|kind| kind.as_enum_number() == Some(0)) {
            message.set_field_by_name(required, Value::EnumNumber(1));
        }
    }
    if message.get_field_by_name("level_ppm").is_some() {
        message.set_field_by_name("level_ppm", Value::List([100_000, 900_000].map(Value::U32).to_vec()));
        message.set_field_by_name("gpus_milli", Value::List([7, 9].map(Value::U64).to_vec()));
    }
    if message.get_field_by_name("regret_rule").is_some() {
        message.set_field_by_name("regret_rule", Value::List(vec![Value::String("LAST".into())]));
        message.set_field_by_name("regret_ppm", Value::List(vec![Value::I64(-3)]));
    }
    if message.get_field_by_name("columns").is_some() {
        fit_samples(message);
    }
}

fn fill_if_empty(message: &mut DynamicMessage, field: &str) {
    if message.get_field_by_name(field).is_some_and(|value| value.as_str() == Some("")) {
        message.set_field_by_name(field, Value::String("some".into()));
    }
}

/// Devices and metrics get names of their own, ticks come each second, and columns get one value
/// per device and tick and lose marks of missing values. Processes were on the last device, all the
/// time.
fn fit_samples(batch: &mut DynamicMessage) {
    let list = |batch: &DynamicMessage, name: &str| {
        batch.get_field_by_name(name).expect("a field").into_owned().as_list().expect("a list").to_vec()
    };
    let mut devices = list(batch, "devices");
    if devices.is_empty() {
        let field = batch.descriptor().get_field_by_name("devices").expect("a field");
        let Kind::Message(device) = field.kind() else { panic!("devices are messages") };
        devices.push(Value::Message(DynamicMessage::new(device)));
    }
    for (number, device) in devices.iter_mut().enumerate() {
        let device = device.as_message_mut().expect("a device");
        device.set_field_by_name("uuid", Value::String(format!("GPU-{number}")));
    }
    let ticks = list(batch, "tick_delta_ms").len();
    let mut columns = list(batch, "columns");
    for (number, column) in columns.iter_mut().enumerate() {
        let column = column.as_message_mut().expect("a column");
        column.set_field_by_name("name", Value::String(format!("metric_{number}")));
        column
            .set_field_by_name("value_delta", Value::List(vec![Value::I64(-3); devices.len() * (ticks + 1)]));
        column.set_field_by_name("first_growth", Value::List(vec![Value::I64(7); devices.len()]));
        column.clear_field_by_name("missing");
    }
    let mut processes = list(batch, "processes");
    for process in &mut processes {
        let process = process.as_message_mut().expect("a process");
        process.set_field_by_name("device", Value::U32(devices.len() as u32 - 1));
        process.set_field_by_name("first_tick", Value::U32(0));
        process.set_field_by_name("last_tick", Value::U32(ticks as u32));
    }
    batch.set_field_by_name("processes", Value::List(processes));
    batch.set_field_by_name("first_tick_ms", Value::I64(1_763_712_000_500));
    batch.set_field_by_name("tick_delta_ms", Value::List(vec![Value::I64(1_000); ticks]));
    batch.set_field_by_name("devices", Value::List(devices));
    batch.set_field_by_name("columns", Value::List(columns));
}
