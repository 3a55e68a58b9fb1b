//! Data folders with the events of pipeline cases (`pipelines/tests/NAME/events.jsonl`), appended
//! to the log.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use prost_reflect::DynamicMessage;
use prost_reflect::prost::Message;
use serde_json::Value;
use tidegate_events::contract::built_in;
use tidegate_events::{Event, SchemaId};
use tidegate_log::{
    Batch, DataDir, EmbeddedLog, EmbeddedOptions, EventLog, Producer, Record, TopicConfig, TopicPartition,
};

use crate::program::{succeed, tidegate};

/// The events of a case, stamped with this cluster.
pub fn case(name: &str, cluster: &str) -> Vec<Event> {
    let file = format!("../../pipelines/tests/{name}/events.jsonl");
    let text = fs::read_to_string(&file).unwrap_or_else(|e| panic!("{file}: {e}"));
    text.lines().map(|line| event(serde_json::from_str(line).unwrap(), cluster)).collect()
}

fn event(mut line: Value, cluster: &str) -> Event {
    let (name, message) = line.as_object_mut().unwrap().iter_mut().next().unwrap();
    let schema = SchemaId::ALL.into_iter().find(|schema| schema.name() == name).unwrap();
    let file = built_in().get_file_by_name(&format!("{name}.proto")).unwrap();
    message["envelope"]["event_id"] = "AAAAAAAAAAAAAAAAAAAAAA==".into();
    message["envelope"]["cluster"] = cluster.into();
    let message = DynamicMessage::deserialize(file.messages().next().unwrap(), message.take()).unwrap();
    Event::decode(schema.number(), &message.encode_to_vec()).unwrap()
}

/// A data folder with these events in its log, and its tables.
pub fn tables_of(folder: &Path, events: Vec<Event>) -> PathBuf {
    let data = folder.join("data");
    let place = DataDir::open(&data).unwrap();
    let log = EmbeddedLog::open(place.log(), EmbeddedOptions::default()).unwrap();
    let mut topics: BTreeMap<&str, Vec<Record>> = BTreeMap::new();
    for mut event in events {
        topics.entry(event.schema().topic()).or_default().push(event.record().unwrap().into());
    }
    // The topic of unreadable records.
    topics.entry(SchemaId::DeadLetter.topic()).or_default();
    for (topic, records) in topics {
        log.create_topic(topic, TopicConfig { partitions: 1, retain_ms: None, retain_bytes: None }).unwrap();
        if records.is_empty() {
            continue;
        }
        let producer = Producer { source: "test".into(), epoch: 1 };
        let at = TopicPartition { topic: topic.into(), partition: 0 };
        log.append(&at, Batch { producer, first_seq: 0, records }).unwrap();
    }
    drop((log, place));
    succeed(tidegate().args(["pipeline", "run", "--data"]).arg(&data));
    data
}
