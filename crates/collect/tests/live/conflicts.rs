//! Two agents under one name: the older one is refused, reports it and stops, and their records
//! never mix.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tidegate_collect::agent::spool::SpoolOptions;
use tidegate_collect::agent::{Agent, AgentOptions, End};
use tidegate_events::Event;
use tidegate_events::v1::NodeEventKind;
use tidegate_log::{Batch, KafkaLog, Producer, Record, TopicPartition, partition_for};

use crate::broker;
use crate::kit::*;

const ENOUGH: Duration = Duration::from_secs(60);

fn tell(agent: &Agent, numbers: std::ops::Range<u64>) {
    numbers.for_each(|number| agent.sink().event(numbered(number)));
    agent.store().unwrap();
}

fn delivered(agent: &Agent) {
    wait_until("all is delivered", || agent.is_drained());
}

/// Ends the refused agent and returns its advice.
fn refused(agent: Agent) -> String {
    wait_until("it is refused", || agent.ended().is_some());
    let End::Conflict(advice) = agent.wait() else { panic!("it was not refused") };
    assert!(!agent.stop(Duration::ZERO, ""), "what it has stays where it is");
    advice
}

fn two_agents(log: &Log) {
    let (one, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let older = start(options(one.path()), log);
    tell(&older, 0..5);
    delivered(&older);
    std::thread::sleep(Duration::from_millis(5));
    let newer = start(options(other.path()), log);
    tell(&newer, 100..105);
    delivered(&newer);
    tell(&older, 5..8);
    let advice = refused(older);
    assert!(advice.contains("another collector reports as agent/n1 in cluster c"), "{advice}");
    assert!(advice.contains("--take-over") && advice.contains(&one.path().display().to_string()), "{advice}");
    tell(&newer, 105..107);
    delivered(&newer);

    let events = check_numbers(&*log.log, 0);
    let mut seen = numbers(&events);
    seen.sort_unstable();
    assert_eq!(seen, [0, 1, 2, 3, 4, 100, 101, 102, 103, 104, 105, 106]);
    let conflict = node_events(&events, NodeEventKind::CollectorConflict).remove(0);
    let source = &conflict.envelope.as_ref().unwrap().source;
    assert!(source.starts_with("agent/n1/conflict/"), "{source}");
    assert!(conflict.description.unwrap().contains("was refused") && conflict.boot_id.is_some());

    // Restarted, it is refused again. With a takeover it delivers, and the other one is refused.
    let older = start(options(one.path()), log);
    refused(older);
    let spool = SpoolOptions { take_over: true, ..options(one.path()).spool };
    let older = start(AgentOptions { spool, ..options(one.path()) }, log);
    tell(&older, 8..9);
    delivered(&older);
    tell(&newer, 107..108);
    refused(newer);
    assert!(older.stop(ENOUGH, ""));
    let events = crate::kit::events(&*log.log).into_values().flatten().collect::<Vec<_>>();
    let mut seen = numbers(&events);
    seen.sort_unstable();
    assert_eq!(seen, [0, 1, 2, 3, 4, 5, 6, 7, 8, 100, 101, 102, 103, 104, 105, 106]);
}

#[test]
fn the_older_of_two_agents_is_refused() {
    two_agents(&Log::embedded());
}

#[test]
fn the_older_of_two_agents_is_refused_by_kafka() {
    let Some(servers) = broker::shared() else { return };
    two_agents(&Log::of(Arc::new(KafkaLog::open(broker::options(&servers)).unwrap())));
}

fn copy(from: &Path, to: &Path) {
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
    }
}

/// The disk of a node was cloned with its spool: spooled records count once, later ones are
/// separate.
#[test]
fn a_cloned_spool_is_another_agent() {
    let (log, one, clone) = (Log::embedded(), tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let first = start(options(one.path()), &log);
    tell(&first, 0..3);
    delivered(&first);
    log.go_away(true);
    tell(&first, 3..6);
    copy(one.path(), clone.path());
    let second = start(options(clone.path()), &log);
    tell(&first, 6..8);
    tell(&second, 60..62);
    log.go_away(false);
    delivered(&second);
    tell(&first, 8..9);
    refused(first);
    assert!(second.stop(ENOUGH, ""));
    let events: Vec<Event> = events(&*log.log).into_values().flatten().collect();
    let mut seen = numbers(&events);
    seen.sort_unstable();
    // The first may have delivered its last two before the second came.
    seen.retain(|number| ![6, 7].contains(number));
    assert_eq!(seen, [0, 1, 2, 3, 4, 5, 60, 61]);
    assert_eq!(node_events(&events, NodeEventKind::CollectorConflict).len(), 1);
}

/// A machine cloned while running has the same boot id and files: only the log can tell the two
/// apart.
#[test]
fn numbers_used_by_another_agent_are_noticed() {
    let (dir, log) = (tempfile::tempdir().unwrap(), Log::embedded());
    let agent = start(options(dir.path()), &log);
    tell(&agent, 0..2);
    delivered(&agent);
    let mut stolen = numbered(77);
    let events = events(&*log.log);
    let (at, last) = events.iter().filter_map(|(at, events)| Some((at, events.last()?))).next().unwrap();
    let envelope = last.envelope().unwrap().clone();
    let (epoch, first_seq) = (envelope.epoch, envelope.seq + 1);
    if let Event::Node(event) = &mut stolen {
        event.node = "n1".into();
        event.envelope = Some(tidegate_events::v1::Envelope { seq: first_seq, event_time_ms: 1, ..envelope });
    }
    let record = Record::from(stolen.record().unwrap());
    let at = TopicPartition { partition: partition_for(&record.key, 3), ..at.clone() };
    let producer = Producer { source: "agent/n1@c".into(), epoch };
    log.log.append(&at, Batch { producer, first_seq, records: vec![record] }).unwrap();
    tell(&agent, 2..3);
    let advice = refused(agent);
    assert!(advice.contains("a clone of this machine"), "{advice}");
}
