//! Racks from Slurm's own topology, and what a person imported before it.

use std::collections::BTreeMap;
use std::sync::Arc;

use tidegate_autopilot::target::Target;
use tidegate_control::EnrichedTarget;
use tidegate_control::slurm::{SlurmConfig, SlurmTarget};
use tidegate_events::v1::{Envelope, NodeEvent, NodeEventKind};
use tidegate_events::{Event, SchemaId};
use tidegate_log::{
    Batch, EmbeddedLog, EmbeddedOptions, EventLog, Producer, Record, TopicConfig, TopicPartition,
};
use tidegate_testing::slurm::Cluster;

fn target(cluster: &Cluster) -> SlurmTarget {
    SlurmTarget::open(SlurmConfig { conf: Some(cluster.conf()), ..SlurmConfig::default() }).unwrap()
}

fn racks(target: &mut dyn Target) -> BTreeMap<String, Option<String>> {
    let nodes = target.observe().unwrap().nodes;
    nodes.into_iter().map(|(name, node)| (name, node.rack)).collect()
}

fn named(racks: &[(&str, Option<&str>)]) -> BTreeMap<String, Option<String>> {
    racks.iter().map(|(node, rack)| ((*node).to_owned(), rack.map(str::to_owned))).collect()
}

/// A log on which a person has stated the rack of n1.
fn log_with_a_rack(data: &std::path::Path) -> Arc<dyn EventLog> {
    let log = EmbeddedLog::open(data, EmbeddedOptions::default()).unwrap();
    let topic = SchemaId::NodeEvent.topic();
    log.create_topic(topic, TopicConfig { partitions: 1, retain_ms: None, retain_bytes: None }).unwrap();
    let mut event = Event::Node(NodeEvent {
        envelope: Some(Envelope {
            cluster: "tidegate".into(),
            source: "topology/test".into(),
            event_time_ms: 1_000,
            observed_time_ms: 1_000,
            ..Envelope::default()
        }),
        kind: NodeEventKind::NodeLabeled.into(),
        node: "n1".into(),
        rack: Some("r7".into()),
        ..NodeEvent::default()
    });
    let producer = Producer { source: "topology/test".into(), epoch: 0 };
    let records = vec![Record::from(event.record().unwrap())];
    let at = TopicPartition { topic: topic.into(), partition: 0 };
    log.append(&at, Batch { producer, first_seq: 0, records }).unwrap();
    Arc::new(log)
}

#[test]
fn nodes_are_in_the_rack_of_their_leaf_switch_unless_a_person_says_otherwise() {
    let Some(cluster) = Cluster::start(&["--topology=tree", "--nodes=2+1"]) else { return };
    let by_slurm = [("n1", Some("leaf-train")), ("n2", Some("leaf-train")), ("n3", Some("leaf-infer"))];
    assert_eq!(racks(&mut target(&cluster)), named(&by_slurm));
    let data = tempfile::tempdir().unwrap();
    let log = log_with_a_rack(data.path());
    let mut enriched = EnrichedTarget::new(target(&cluster), log, "tidegate", None).unwrap();
    let stated = [("n1", Some("r7")), ("n2", Some("leaf-train")), ("n3", Some("leaf-infer"))];
    assert_eq!(racks(&mut enriched), named(&stated));
}

#[test]
fn without_a_topology_no_rack_is_known() {
    let Some(cluster) = Cluster::start(&["--nodes=1+1"]) else { return };
    let mut target = target(&cluster);
    assert_eq!(racks(&mut target), named(&[("n1", None), ("n2", None)]));
    let lacking = target.capabilities().lacking.join("\n");
    assert!(!lacking.contains("racks"), "there is none to be read: {lacking}");
}
