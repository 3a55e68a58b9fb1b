//! What is written reads back, what cannot be an event is refused with a reason.

use proptest::prelude::*;
use prost_reflect::DynamicMessage;
use prost_reflect::prost::Message;
use tidegate_events::{DecodeError, Event, InvalidEvent, SchemaId, v1};

use crate::{any_event, schemas};

proptest! {
    #[test]
    fn every_event_reads_back(event in any_event::event()) {
        let payload = event.encode_to_vec();
        prop_assert_eq!(payload.len(), event.encoded_len());
        prop_assert_eq!(Event::decode(event.schema().number(), &payload).unwrap(), event);
    }

    /// Another implementation of Protobuf reads our bytes and writes the same ones.
    #[test]
    fn the_encoding_is_canonical_protobuf(event in any_event::event()) {
        let payload = event.encode_to_vec();
        let theirs = DynamicMessage::decode(schemas::message(event.schema()), payload.as_slice()).unwrap();
        prop_assert_eq!(theirs.unknown_fields().count(), 0);
        prop_assert_eq!(theirs.encode_to_vec(), payload);
    }

    #[test]
    fn a_record_holds_the_sealed_event(mut event in any_event::event()) {
        let record = event.record().unwrap();
        prop_assert_eq!(&event.envelope().unwrap().event_id, &event.content_id());
        prop_assert_eq!(record.event_time_ms, event.event_time_ms());
        prop_assert_eq!(record.key, event.key());
        prop_assert_eq!(Event::decode(record.schema, &record.payload).unwrap(), event);
    }

    #[test]
    fn a_newer_version_reads_without_its_new_fields(event in any_event::event(), value in any::<u64>()) {
        let mut payload = event.encode_to_vec();
        prost_reflect::prost::encoding::uint64::encode(1_999, &value, &mut payload);
        prop_assert_eq!(Event::decode(event.schema().number() + 1, &payload).unwrap(), event);
    }

    #[test]
    fn arbitrary_bytes_never_panic(number in 0..7_u32, bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        if let Ok(event) = Event::decode(number << 16 | 1, &bytes) {
            prop_assert!(event.validate().is_ok());
        }
    }
}

#[test]
fn keys_are_units_of_order() {
    let envelope = Some(v1::Envelope { cluster: "c".into(), ..Default::default() });
    let job = |job_id: &str| v1::JobEvent {
        envelope: envelope.clone(),
        job_id: job_id.into(),
        ..Default::default()
    };
    let letter =
        v1::DeadLetter { envelope: envelope.clone(), origin: "jobs.csv".into(), ..Default::default() };
    let node = v1::NodeEvent { envelope: envelope.clone(), node: "n1".into(), ..Default::default() };
    let batch = v1::GpuSampleBatch { envelope: envelope.clone(), node: "n1".into(), ..Default::default() };
    let capacity =
        v1::CapacityEvent { envelope: envelope.clone(), owner: "total".into(), ..Default::default() };
    let sample = v1::PoolSample { envelope: envelope.clone(), owner: "vc1".into(), ..Default::default() };
    assert_eq!(Event::Job(job("9")).key(), "c/9");
    assert_eq!(Event::Job(job("")).key(), "c/", "a heartbeat is about the cluster");
    assert_eq!(Event::Capacity(capacity).key(), "c/total");
    assert_eq!(Event::PoolSample(sample).key(), "c/vc1");
    assert_eq!(Event::Node(node).key(), "c/n1");
    assert_eq!(Event::GpuSamples(batch).key(), "c/n1");
    assert_eq!(Event::DeadLetter(letter).key(), "jobs.csv");
}

fn job(kind: i32, job_id: &str) -> v1::JobEvent {
    let envelope = v1::Envelope { event_id: vec![0; 16], cluster: "c".into(), ..Default::default() };
    v1::JobEvent { envelope: Some(envelope), kind, job_id: job_id.into(), ..Default::default() }
}

fn refusal(event: Event) -> InvalidEvent {
    match Event::decode(event.schema().number(), &event.encode_to_vec()) {
        Err(DecodeError::Invalid { reason, .. }) => reason,
        other => panic!("expected a refusal, got {other:?}"),
    }
}

#[test]
fn incomplete_jobs_are_refused() {
    let without_envelope = v1::JobEvent { envelope: None, ..job(3, "1") };
    assert_eq!(refusal(Event::Job(without_envelope.clone())), InvalidEvent::MissingEnvelope);
    assert_eq!(Event::Job(without_envelope).record(), Err(InvalidEvent::MissingEnvelope));
    let mut short_id = job(3, "1");
    short_id.envelope.as_mut().unwrap().event_id.truncate(8);
    assert_eq!(refusal(Event::Job(short_id)), InvalidEvent::EventIdLength { len: 8 });
    let mut nowhere = job(3, "1");
    nowhere.envelope.as_mut().unwrap().cluster.clear();
    assert_eq!(refusal(Event::Job(nowhere)), InvalidEvent::MissingField { field: "envelope.cluster" });
    assert_eq!(refusal(Event::Job(job(3, ""))), InvalidEvent::MissingField { field: "job_id" });
    assert_eq!(refusal(Event::Job(job(0, "1"))), InvalidEvent::UnknownKind { kind: 0 });
    assert_eq!(refusal(Event::Job(job(99, "1"))), InvalidEvent::UnknownKind { kind: 99 });
    assert!(
        Event::Job(job(v1::JobEventKind::Observed.into(), "")).validate().is_ok(),
        "a heartbeat has no job"
    );
}

/// Two devices and three ticks, as changed.
fn samples(change: impl FnOnce(&mut v1::GpuSampleBatch)) -> Event {
    let device = |uuid: &str| v1::gpu_sample_batch::DeviceInfo { uuid: uuid.into(), ..Default::default() };
    let mut batch = v1::GpuSampleBatch {
        envelope: job(1, "1").envelope,
        node: "n".into(),
        devices: vec![device("GPU-a"), device("GPU-b")],
        first_tick_ms: 1_763_712_000_500,
        tick_delta_ms: vec![1_000; 2],
        columns: vec![column("power_mw", &[70_000, 1, 0, 0, 0, 0], &[(4, 2)])],
        processes: vec![v1::gpu_sample_batch::Process { device: 1, last_tick: 2, ..Default::default() }],
    };
    change(&mut batch);
    Event::GpuSamples(batch)
}

fn column(name: &str, value_delta: &[i64], missing: &[(u32, u32)]) -> v1::gpu_sample_batch::Column {
    let missing = missing.iter().map(|(first, count)| v1::gpu_sample_batch::Missing {
        first: *first,
        count: *count,
        reason: 1,
    });
    v1::gpu_sample_batch::Column {
        name: name.into(),
        value_delta: value_delta.to_vec(),
        missing: missing.collect(),
        first_growth: Vec::new(),
    }
}

#[test]
fn columns_that_do_not_fit_are_refused() {
    let with = |value_delta: &[i64], missing: &[(u32, u32)]| {
        samples(|batch| batch.columns = vec![column("power_mw", value_delta, missing)])
    };
    let name = "power_mw".to_string();
    assert_eq!(samples(|_| ()).validate(), Ok(()));
    assert_eq!(with(&[], &[]).validate(), Ok(()), "an empty column was not collected");
    assert_eq!(
        refusal(with(&[1; 5], &[])),
        InvalidEvent::ColumnLength { column: name.clone(), values: 5, devices: 2, ticks: 3 }
    );
    assert_eq!(
        refusal(with(&[0; 6], &[(5, 2)])),
        InvalidEvent::MissingOutOfRange { column: name.clone(), first: 5, end: 7, values: 6 }
    );
    assert_eq!(
        refusal(with(&[0; 6], &[(3, 2), (0, 4)])),
        InvalidEvent::MissingTwice { column: name.clone(), at: 3 }
    );
    assert_eq!(
        refusal(with(&[0, 0, 0, 7, 0, 0], &[(2, 2)])),
        InvalidEvent::MissingHasValue { column: name, at: 3 }
    );
}

#[test]
fn samples_that_cannot_be_told_apart_are_refused() {
    let no_devices = samples(|batch| batch.devices.clear());
    assert_eq!(refusal(no_devices), InvalidEvent::MissingField { field: "devices" });
    let nameless = samples(|batch| batch.devices[1].uuid.clear());
    assert_eq!(refusal(nameless), InvalidEvent::MissingField { field: "devices.uuid" });
    let twice = samples(|batch| batch.devices[1].uuid = "GPU-a".into());
    assert_eq!(refusal(twice), InvalidEvent::DeviceTwice { device: "GPU-a".into() });
    let slices = samples(|batch| {
        batch.devices[1].uuid = "GPU-a".into();
        batch.devices.iter_mut().zip(["MIG-1", "MIG-2"]).for_each(|(d, mig)| d.mig_uuid = Some(mig.into()));
    });
    assert_eq!(slices.validate(), Ok(()), "slices of one GPU are devices of their own");
    let growth = samples(|batch| batch.columns[0].first_growth = vec![3]);
    assert_eq!(
        refusal(growth),
        InvalidEvent::GrowthLength { column: "power_mw".into(), values: 1, devices: 2 }
    );
    let columns = samples(|batch| batch.columns.push(batch.columns[0].clone()));
    assert_eq!(refusal(columns), InvalidEvent::ColumnTwice { column: "power_mw".into() });
    for name in ["", "Power (W)", &"x".repeat(65)] {
        let named = samples(|batch| batch.columns[0].name = name.into());
        assert!(matches!(refusal(named), InvalidEvent::ColumnName { .. }), "{name:?}");
    }
}

#[test]
fn a_batch_that_would_be_too_large_as_a_table_is_refused() {
    let far = samples(|batch| batch.tick_delta_ms[1] = i64::MAX);
    assert_eq!(refusal(far), InvalidEvent::TickOutOfRange { tick: 2, at_ms: i64::MAX });
    let long = samples(|batch| {
        batch.tick_delta_ms = vec![1; 40_000];
        batch.columns.clear();
    });
    assert_eq!(refusal(long), InvalidEvent::TooManySamples { devices: 2, ticks: 40_001 });
}

#[test]
fn advice_has_a_regret_for_each_of_its_rules_and_a_term() {
    let advice = |term: &str, rules: &[&str], regret_ppm: &[i64]| {
        let mut event = Event::Sizing(v1::SizingAdvice {
            envelope: Some(v1::Envelope { cluster: "c".into(), ..Default::default() }),
            kind: v1::SeriesKind::Pool.into(),
            name: "p".into(),
            term: term.into(),
            regret_rule: rules.iter().map(|rule| (*rule).to_owned()).collect(),
            regret_ppm: regret_ppm.to_vec(),
            ..Default::default()
        });
        event.record().map(|record| record.key)
    };
    assert_eq!(advice("WEEK", &["LAST"], &[-7]).unwrap(), "c/p");
    assert_eq!(advice("WEEK", &["LAST"], &[]), Err(InvalidEvent::Regrets { rules: 1, values: 0 }));
    assert_eq!(advice("", &[], &[]), Err(InvalidEvent::MissingField { field: "term" }));
}

#[test]
fn a_forecast_has_a_value_for_each_of_its_rising_levels() {
    let forecast = |levels: &[u32], values: &[u64]| {
        let mut event = Event::Forecast(v1::Forecast {
            envelope: Some(v1::Envelope { cluster: "c".into(), ..Default::default() }),
            kind: v1::SeriesKind::Total.into(),
            name: "total".into(),
            level_ppm: levels.to_vec(),
            gpus_milli: values.to_vec(),
            ..Default::default()
        });
        event.record().map(|record| record.key)
    };
    assert_eq!(forecast(&[100_000, 900_000], &[5, 9]).unwrap(), "c/total");
    for (levels, values) in [
        (&[][..], &[][..]),
        (&[500_000], &[1, 2]),
        (&[900_000, 100_000], &[1, 2]),
        (&[0], &[1]),
        (&[1_000_000], &[1]),
    ] {
        let refused = InvalidEvent::ForecastLevels { levels: levels.len(), values: values.len() };
        assert_eq!(forecast(levels, values), Err(refused));
    }
}

#[test]
fn errors_say_what_and_how_to_mend_it() {
    let truncated = &Event::Job(job(3, "1")).encode_to_vec()[..10];
    let error = Event::decode(SchemaId::JobEvent.number(), truncated).unwrap_err().to_string();
    assert!(error.starts_with("job_event payload of 10 bytes is not a protobuf message"), "{error}");
    let error = Event::decode(0xff_0001, &[]).unwrap_err().to_string();
    assert!(error.contains("unknown schema 255") && error.contains("upgrade"), "{error}");
}
