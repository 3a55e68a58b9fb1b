//! The files of `schemas/` as descriptors, so that tests speak about every message and field
//! without naming them.

use std::path::PathBuf;

use prost_reflect::MessageDescriptor;
use tidegate_events::{SchemaId, contract};

pub fn folder() -> PathBuf {
    PathBuf::from("../../schemas")
}

/// The message of a schema: `job_event` is `tidegate.v1.JobEvent`.
pub fn message(schema: SchemaId) -> MessageDescriptor {
    let words = schema.name().split('_').map(|word| word[..1].to_uppercase() + &word[1..]);
    let name = format!("tidegate.v1.{}", words.collect::<String>());
    contract::built_in()
        .get_message_by_name(&name)
        .unwrap_or_else(|| panic!("schemas/{}.proto has {name}", schema.name()))
}

/// Whether missing fixtures shall be written.
pub fn blessing() -> bool {
    std::env::var_os("TIDEGATE_BLESS").is_some_and(|value| value == "1")
}
