//! What this process is, as every span and figure says it.

use std::collections::BTreeMap;

use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::common::v1::{AnyValue, InstrumentationScope, KeyValue};
use opentelemetry_proto::tonic::resource::v1::Resource;

/// A text as an attribute.
pub(crate) fn text(key: &str, value: impl Into<String>) -> KeyValue {
    attribute(key, Value::StringValue(value.into()))
}

pub(crate) fn attribute(key: &str, value: Value) -> KeyValue {
    KeyValue { key: key.to_owned(), value: Some(AnyValue { value: Some(value) }), ..KeyValue::default() }
}

/// The library that made the spans and figures.
pub(crate) fn scope() -> InstrumentationScope {
    let version = env!("CARGO_PKG_VERSION").to_owned();
    InstrumentationScope { name: "tidegate".to_owned(), version, ..InstrumentationScope::default() }
}

/// The resource with these attributes, and what is found out of those that they lack.
pub(crate) fn resource(given: &BTreeMap<String, String>) -> Resource {
    let mut attributes = found();
    attributes.extend(given.iter().map(|(key, value)| (key.clone(), value.clone())));
    let attributes = attributes.iter().map(|(key, value)| text(key, value)).collect();
    Resource { attributes, ..Resource::default() }
}

fn found() -> BTreeMap<String, String> {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let instance: [u8; 16] = rand::random();
    let instance: String = instance.iter().map(|byte| format!("{byte:02x}")).collect();
    let all = [
        ("service.name", "tidegate".to_owned()),
        ("service.version", env!("CARGO_PKG_VERSION").to_owned()),
        ("service.instance.id", instance),
        ("host.name", host.trim().to_owned()),
        ("process.pid", std::process::id().to_string()),
        ("telemetry.sdk.name", "tidegate".to_owned()),
        ("telemetry.sdk.language", "rust".to_owned()),
        ("telemetry.sdk.version", env!("CARGO_PKG_VERSION").to_owned()),
    ];
    all.into_iter()
        .filter(|(_, value)| !value.is_empty())
        .map(|(key, value)| (key.to_owned(), value))
        .collect()
}
