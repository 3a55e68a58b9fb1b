//! Memory and the clock are bounded by what others cannot choose, and honest input changes nothing.

use tidegate_events::v1;

use super::super::*;
use super::{append_all, log_with_all_topics};
use crate::reorder::tests::{NOW_MS, input, input_where};

/// Faults in the flood.
const FLOOD: usize = 40_000;
const LIMIT: usize = 16 << 20;

fn log_of(folder: &std::path::Path, events: &[Event]) -> Arc<dyn EventLog> {
    let log = log_with_all_topics(folder, None);
    append_all(&log, "test", events);
    Arc::new(log)
}

/// What is on the log of the service's output, in the order of its bytes.
fn output(log: &dyn EventLog) -> Vec<Vec<u8>> {
    let mut output = Vec::new();
    for (topic, partition) in
        OUTPUT_TOPICS.iter().flat_map(|schema| [(schema.topic(), 0), (schema.topic(), 1)])
    {
        let at = TopicPartition { topic: topic.into(), partition };
        let mut cursor = Cursor::at_start(log, at).unwrap();
        while cursor.is_behind() {
            output.extend(
                cursor.read(log, READ_BYTES).unwrap().into_iter().map(|it| it.record.payload.to_vec()),
            );
        }
    }
    output.sort();
    output
}

fn catch_up(log: &Arc<dyn EventLog>, limit: usize) -> (ServiceStats, Vec<Vec<u8>>) {
    let mut service = SignalService::new(Arc::clone(log)).unwrap().limited_to(limit);
    let stats = service.catch_up(RunMode::Replay, NOW_MS).unwrap();
    (stats, output(log.as_ref()))
}

/// Honest events, and a flood of faults of a few nodes spread over their time.
fn flooded() -> Vec<Event> {
    let mut events = input().concat();
    let times = events.iter().map(Event::event_time_ms);
    let (from_ms, to_ms) = times.fold((i64::MAX, 0), |(from, to), at| (from.min(at), to.max(at)));
    for number in 0..FLOOD {
        let mut event = Event::Node(v1::NodeEvent {
            kind: v1::NodeEventKind::Xid.into(),
            node: format!("flood-{}", number % 8),
            gpu_uuid: Some(format!("GPU-{number}")),
            xid: Some(13),
            ..v1::NodeEvent::default()
        });
        let at_ms = from_ms + (to_ms - from_ms) * number as i64 / FLOOD as i64;
        let envelope = event.envelope_mut();
        envelope.cluster = "c".into();
        (envelope.event_time_ms, envelope.observed_time_ms) = (at_ms, at_ms);
        events.push(event);
    }
    events.sort_by_key(Event::event_time_ms);
    events
}

#[test]
fn a_history_beyond_the_limit_that_came_in_order_is_decided_the_same() {
    let events = flooded();
    let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let logs = folders.each_ref().map(|folder| log_of(folder.path(), &events));
    let (whole, expected) = catch_up(&logs[0], crate::DEFAULT_LIMIT_BYTES);
    let (limited, found) = catch_up(&logs[1], LIMIT);
    assert_eq!((whole.memory.early, whole.counts.late), (0, 0));
    assert!(limited.memory.early > FLOOD as u64 / 4, "{limited:?}");
    assert!(limited.memory.held_bytes <= LIMIT as u64, "{limited:?}");
    assert_eq!((limited.memory.refused, limited.memory.evicted_jobs, limited.counts.late), (0, 0, 0));
    assert!(!expected.is_empty());
    assert_eq!(found, expected);
}

#[test]
fn a_report_ahead_of_its_observer_makes_nothing_late() {
    // A user's process reports the end of a step as far ahead as is not refused.
    let mut ahead = input_where(1, &|_| 1.0)[2].remove(0);
    let Event::Step(step) = &mut ahead else { panic!("{ahead:?}") };
    (step.job_id, step.duration_us) = ("other".into(), 86_000_000_000);
    ahead.envelope_mut().event_id.clear();
    let honest = input().concat();
    let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let outputs = [false, true].map(|attacked| {
        let log = log_of(folders[usize::from(attacked)].path(), &[]);
        if attacked {
            append_all(log.as_ref(), "attacker", std::slice::from_ref(&ahead));
        }
        let mut service = SignalService::new(Arc::clone(&log)).unwrap();
        let mut sorted = honest.clone();
        sorted.sort_by_key(Event::event_time_ms);
        let mut late = 0;
        for (number, piece) in sorted.chunks(2_000).enumerate() {
            append_all(log.as_ref(), &format!("honest-{number}"), piece);
            late = service.catch_up(RunMode::Live, NOW_MS).unwrap().counts.late;
        }
        (late, output(log.as_ref()))
    });
    assert_eq!(outputs[1].0, 0, "nothing is late");
    assert_eq!(outputs[0], outputs[1]);
    assert!(!outputs[0].1.is_empty());
}
