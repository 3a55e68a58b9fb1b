//! Reads events from JSON, for test cases of tables that no import fills.
//!
//! Each line is one event, `{"node_event": {…}}`: the name of its schema and the message in
//! Protobuf's JSON mapping.

use std::path::Path;

use prost_reflect::DynamicMessage;
use prost_reflect::prost::Message;
use tidegate_events::contract::built_in;
use tidegate_events::{Event, SchemaId};

use crate::commands::CommandError;

/// Placeholder for the id, 16 bytes, until the event is sealed.
const NO_ID: &str = "AAAAAAAAAAAAAAAAAAAAAA==";

/// Reads and seals the events of a file. Events without a cluster get `cluster`.
pub fn read(file: &Path, cluster: Option<&str>) -> Result<Vec<Event>, CommandError> {
    let text = std::fs::read_to_string(file).map_err(|e| format!("read {}: {e}", file.display()))?;
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    let parsed = lines.map(|(number, line)| {
        event(line, cluster).map_err(|e| format!("{}:{}: {e}", file.display(), number + 1).into())
    });
    parsed.collect()
}

fn event(line: &str, cluster: Option<&str>) -> Result<Event, CommandError> {
    let object: serde_json::Map<String, serde_json::Value> = serde_json::from_str(line)?;
    let mut fields = object.into_iter();
    let (Some((name, mut message)), None) = (fields.next(), fields.next()) else {
        return Err("a line is one event, {\"job_event\": {…}}".into());
    };
    let schema = SchemaId::ALL.into_iter().find(|schema| schema.name() == name).ok_or_else(|| {
        let names = SchemaId::ALL.map(SchemaId::name).join(", ");
        format!("{name:?} is no schema; there are: {names}")
    })?;
    let file = built_in().get_file_by_name(&format!("{name}.proto"));
    let descriptor = file
        .and_then(|file| file.messages().next())
        .ok_or_else(|| format!("{name}.proto holds no message"))?;
    let envelope = &mut message["envelope"];
    envelope["event_id"] = NO_ID.into();
    if let Some(cluster) = cluster
        && envelope.get("cluster").is_none()
    {
        envelope["cluster"] = cluster.into();
    }
    let message = DynamicMessage::deserialize(descriptor, message)?;
    // Through the wire format, as an event of another program would arrive.
    let mut event = Event::decode(schema.number(), &message.encode_to_vec())?;
    event.seal();
    Ok(event)
}
