use std::collections::BTreeMap;

use tidegate_events::v1;
use tidegate_log::{EmbeddedLog, EmbeddedOptions, TopicConfig};

use super::*;

mod bounds;
mod snapshots;

const HOUR_MS: i64 = 3_600_000;

/// An empty log with every topic in two partitions. Records may be dropped after `retain_ms`.
fn log_with_all_topics(folder: &std::path::Path, retain_ms: Option<u64>) -> EmbeddedLog {
    let log = EmbeddedLog::open(folder, EmbeddedOptions::default()).unwrap();
    for schema in SchemaId::ALL {
        let config = TopicConfig { partitions: 2, retain_ms, retain_bytes: None };
        log.create_topic(schema.topic(), config).unwrap();
    }
    log
}

/// Appends events to their partitions, under a source that has appended nothing before.
fn append_all(log: &dyn EventLog, source: &str, events: &[Event]) {
    let mut batches: BTreeMap<TopicPartition, Vec<Record>> = BTreeMap::new();
    for event in events {
        let (topic, key) = (event.schema().topic().to_owned(), event.key());
        let at = TopicPartition { topic, partition: partition_for(key.as_bytes(), 2) };
        batches.entry(at).or_default().push(Record::from(event.clone().record().unwrap()));
    }
    for (at, records) in batches {
        let producer = Producer { source: source.into(), epoch: 0 };
        log.append(&at, Batch { producer, first_seq: 0, records }).unwrap();
    }
}

fn log_with_jobs(folder: &std::path::Path) -> Arc<dyn EventLog> {
    let log = EmbeddedLog::open(folder, EmbeddedOptions::default()).unwrap();
    for schema in [SchemaId::JobEvent, SchemaId::StragglerSignal, SchemaId::Forecast] {
        let config = TopicConfig { partitions: 2, retain_ms: None, retain_bytes: None };
        log.create_topic(schema.topic(), config).unwrap();
    }
    // Exports come in any order; here the last job comes first.
    for hour in (1..40).rev() {
        let mut event = Event::Job(v1::JobEvent {
            envelope: Some(v1::Envelope {
                cluster: "c".into(),
                event_time_ms: hour * HOUR_MS,
                ..v1::Envelope::default()
            }),
            kind: v1::JobEventKind::Submitted.into(),
            job_id: format!("j{hour}"),
            gpus_milli: Some(1_000),
            ..v1::JobEvent::default()
        });
        let at = TopicPartition { topic: SchemaId::JobEvent.topic().into(), partition: (hour % 2) as u32 };
        let producer = Producer { source: format!("test#{hour}"), epoch: 0 };
        let records = vec![event.record().unwrap().into()];
        log.append(&at, Batch { producer, first_seq: 0, records }).unwrap();
    }
    Arc::new(log)
}

fn records(log: &dyn EventLog) -> u64 {
    let end = |partition| {
        let at = TopicPartition { topic: SchemaId::Forecast.topic().into(), partition };
        log.extent(&at).unwrap().end
    };
    end(0) + end(1)
}

#[test]
fn outputs_are_appended_once_across_runs() {
    let folder = tempfile::tempdir().unwrap();
    let log = log_with_jobs(folder.path());
    let catch_up = |forget: bool| {
        let mut service = SignalService::new(Arc::clone(&log)).unwrap();
        if forget {
            service.known_sources.clear();
        }
        service.catch_up(RunMode::Replay, 100 * HOUR_MS).unwrap()
    };
    let first = catch_up(false);
    // The first hour is 1, and 24 hours are over at 25: the total and the class of one GPU are
    // forecast at 30 and 36.
    assert_eq!((first.written, first.duplicates, first.read), (2 * 2 * 16, 0, 39));
    assert_eq!(records(log.as_ref()), 64);
    let input = catch_up(false);
    assert_eq!((input.written, input.duplicates), (0, 64));
    // Another process appended the same meanwhile; the log drops the duplicates.
    let beside = catch_up(true);
    assert_eq!((beside.written, beside.duplicates), (0, 64));
    assert_eq!(records(log.as_ref()), 64);
}

fn append(log: &dyn EventLog, mut event: Event, source: &str) {
    let at = TopicPartition { topic: event.schema().topic().into(), partition: 0 };
    let producer = Producer { source: source.into(), epoch: 0 };
    let records = vec![event.record().unwrap().into()];
    log.append(&at, Batch { producer, first_seq: 0, records }).unwrap();
}

fn advice(log: &dyn EventLog) -> Vec<v1::SizingAdvice> {
    let read = |partition| {
        let at = TopicPartition { topic: SchemaId::SizingAdvice.topic().into(), partition };
        log.read(&at, 0, 1 << 20).unwrap()
    };
    let events = (0..2)
        .flat_map(read)
        .map(|stored| Event::decode(stored.record.schema, &stored.record.payload).unwrap());
    let advice = events.filter_map(|event| if let Event::Sizing(it) = event { Some(it) } else { None });
    advice.collect()
}

#[test]
fn new_prices_renew_the_advice_once() {
    let folder = tempfile::tempdir().unwrap();
    let log = log_with_jobs(folder.path());
    let config = TopicConfig { partitions: 1, retain_ms: None, retain_bytes: None };
    log.create_topic(SchemaId::CapacityEvent.topic(), config).unwrap();
    let envelope =
        |at_ms| Some(v1::Envelope { cluster: "c".into(), event_time_ms: at_ms, ..v1::Envelope::default() });
    let heartbeat = v1::JobEvent {
        envelope: envelope(50 * HOUR_MS),
        kind: v1::JobEventKind::Submitted.into(),
        job_id: "last".into(),
        ..v1::JobEvent::default()
    };
    append(log.as_ref(), Event::Job(heartbeat), "last");
    let catch_up =
        || SignalService::new(Arc::clone(&log)).unwrap().catch_up(RunMode::Replay, 100 * HOUR_MS).unwrap();
    catch_up();
    // For the total, at the second midnight; at the first only 23 hours were known.
    let output = advice(log.as_ref());
    assert_eq!(output.iter().map(|it| it.term.as_str()).collect::<Vec<_>>(), ["WEEK", "MONTH", "YEAR"]);
    assert!(output.iter().all(|it| it.reason.as_deref() == Some("NO_RESERVED_PRICE")), "{output:?}");
    // Prices of any model and pool, and of one, valid since the first hour and entered now.
    let mut service = SignalService::new(Arc::clone(&log)).unwrap();
    service.catch_up(RunMode::Replay, 100 * HOUR_MS).unwrap();
    let price = |contract: &str, micros, entered_ms, at_ms| {
        Event::Capacity(v1::CapacityEvent {
            envelope: envelope(at_ms),
            kind: v1::CapacityEventKind::PriceSet.into(),
            owner: "total".into(),
            contract: Some(contract.into()),
            price_micros_per_gpu_hour: Some(micros),
            currency: Some("EUR".into()),
            entered_ms: Some(entered_ms),
            ..v1::CapacityEvent::default()
        })
    };
    append(log.as_ref(), price("on_demand", 4_000_000, 1, HOUR_MS), "price#1");
    service.catch_up(RunMode::Replay, 100 * HOUR_MS).unwrap();
    let output = advice(log.as_ref());
    assert_eq!((output.len(), output[3].on_demand_micros_per_gpu_hour), (6, Some(4_000_000)));
    assert_eq!(output[3].envelope.as_ref().unwrap().event_time_ms, 48 * HOUR_MS);
    // A replay derives only the second advice, which the log holds.
    assert_eq!((catch_up().written, advice(log.as_ref()).len()), (0, 6));
}
