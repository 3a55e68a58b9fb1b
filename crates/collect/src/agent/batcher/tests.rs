use std::sync::Arc;

use tidegate_events::v1::gpu_sample_batch::Missing;
use tidegate_events::v1::gpu_sample_batch::process::Kind;
use tidegate_events::{Event, v1::GpuSampleBatch};

use super::*;
use crate::reading::{Metric, MissingReason, RunningProcess, Value};

fn device(index: u32) -> Arc<Device> {
    Arc::new(Device { uuid: format!("GPU-{index}"), index, model: "H100".into(), mig_uuid: None })
}

fn reading(index: u32, tick_ms: i64, power: i64) -> Reading {
    let mut reading = Reading::new(device(index), tick_ms);
    reading.set(Metric::Power, Value::Is(power));
    reading
}

fn ticks(batch: &GpuSampleBatch) -> Vec<i64> {
    let mut at = batch.first_tick_ms;
    let rest = batch.tick_delta_ms.iter().map(|delta| {
        at += delta;
        at
    });
    std::iter::once(batch.first_tick_ms).chain(rest.collect::<Vec<_>>()).collect()
}

fn uuids(batch: &GpuSampleBatch) -> Vec<&str> {
    batch.devices.iter().map(|device| device.uuid.as_str()).collect()
}

/// Checks that the batch is a valid event, by encoding and decoding it.
fn check(mut batch: GpuSampleBatch) -> GpuSampleBatch {
    batch.node = "n1".into();
    batch.envelope.as_mut().unwrap().cluster = "c".into();
    let mut event = Event::GpuSamples(batch);
    let record = event.record().unwrap();
    let Event::GpuSamples(batch) = Event::decode(record.schema, &record.payload).unwrap() else { panic!() };
    batch
}

#[test]
fn a_batch_closes_once_all_devices_moved_on() {
    let mut batcher = Batcher::new(3_000);
    for tick in 0..3 {
        for index in [1, 0] {
            assert!(batcher.add(reading(index, tick * 1_000, 100 + tick), tick * 1_000).is_none());
        }
    }
    assert!(batcher.add(reading(0, 3_000, 7), 3_000).is_none(), "the other is missing");
    let batch = check(batcher.add(reading(1, 3_000, 8), 3_000).unwrap());
    assert_eq!((ticks(&batch), uuids(&batch)), (vec![0, 1_000, 2_000], vec!["GPU-0", "GPU-1"]));
    assert_eq!(batch.columns.len(), 1, "only what was asked for");
    assert_eq!(batch.columns[0].value_delta, [100, 1, 1, 100, 1, 1]);
    let rest = batcher.close_all(3_100);
    assert_eq!((rest.len(), ticks(&rest[0])), (1, vec![3_000]));
}

#[test]
fn a_silent_device_is_stale_and_delays_no_other() {
    let mut batcher = Batcher::new(3_000);
    for tick in 0..3 {
        batcher.add(reading(0, tick * 1_000, 5), tick * 1_000);
        if tick == 0 {
            batcher.add(reading(1, 0, 9), 0);
        }
    }
    assert!(batcher.close_due(9_900).is_none());
    let batch = check(batcher.close_due(10_000).unwrap());
    let stale = MissingReason::Stale.into();
    assert_eq!(batch.columns[0].value_delta, [5, 0, 0, 9, 0, 0]);
    assert_eq!(batch.columns[0].missing, [Missing { first: 4, count: 2, reason: stale }]);
    assert!(batcher.add(reading(1, 1_000, 9), 10_100).is_none());
    assert_eq!(batcher.late, 1, "its tick was reported as stale already");
}

#[test]
fn a_changed_set_of_devices_begins_a_batch() {
    let mut batcher = Batcher::new(10_000);
    batcher.add(reading(0, 0, 1), 0);
    batcher.add(reading(0, 1_000, 1), 1_000);
    assert!(batcher.add(reading(1, 2_000, 2), 2_000).is_none(), "the first may have more to say of before");
    let batch = check(batcher.add(reading(0, 2_000, 1), 2_001).unwrap());
    assert_eq!((ticks(&batch), uuids(&batch)), (vec![0, 1_000], vec!["GPU-0"]));
    let batch = check(batcher.close_all(2_001).remove(0));
    assert_eq!((ticks(&batch), uuids(&batch)), (vec![2_000], vec!["GPU-0", "GPU-1"]));
}

#[test]
fn a_renumbered_device_is_the_same_device() {
    let mut batcher = Batcher::new(10_000);
    batcher.add(reading(0, 0, 1), 0);
    let renamed = Arc::new(Device { index: 4, ..(*device(0)).clone() });
    let batch = check(batcher.add(Reading::new(renamed, 1_000), 1_000).unwrap());
    assert_eq!((ticks(&batch), batch.devices[0].index), (vec![0], 0));
    assert_eq!(batcher.close_all(0)[0].devices[0].index, 4);
}

#[test]
fn a_missing_value_has_a_reason() {
    let mut batcher = Batcher::new(10_000);
    let values = [
        Value::Missing(MissingReason::NoPermission),
        Value::Is(40),
        Value::Missing(MissingReason::DeviceLost),
        Value::Missing(MissingReason::DeviceLost),
        Value::Is(50),
    ];
    for (tick, value) in (0..).zip(values) {
        let mut reading = Reading::new(device(0), tick * 1_000);
        reading.set(Metric::Energy, value);
        batcher.add(reading, 0);
        batcher.add(Reading::new(device(1), tick * 1_000), 0);
    }
    let batch = check(batcher.close_all(0).remove(0));
    let column = &batch.columns[0];
    assert_eq!(column.value_delta, [0, 40, 0, 0, 10, 0, 0, 0, 0, 0]);
    let run = |first, count, reason: MissingReason| Missing { first, count, reason: reason.into() };
    let runs = [
        run(0, 1, MissingReason::NoPermission),
        run(2, 2, MissingReason::DeviceLost),
        run(5, 5, MissingReason::NotSupported),
    ];
    assert_eq!(column.missing, runs);
}

#[test]
fn processes_are_runs_of_ticks() {
    let mut batcher = Batcher::new(10_000);
    let seen = |pid, memory, job: Option<&str>| RunningProcess {
        pid,
        kind: Kind::Compute,
        memory_bytes: Some(memory),
        name: None,
        job_id: job.map(Into::into),
    };
    let at_ticks = [
        vec![seen(7, 10, None), seen(8, 1, None)],
        vec![seen(7, 30, None)],
        vec![],
        vec![seen(7, 20, Some("j"))],
    ];
    for (tick, processes) in (0..).zip(at_ticks) {
        let mut reading = reading(0, tick * 1_000, 1);
        reading.processes = processes;
        batcher.add(reading, 0);
    }
    let batch = check(batcher.close_all(0).remove(0));
    let runs: Vec<_> =
        batch.processes.iter().map(|p| (p.pid, p.first_tick, p.last_tick, p.memory_bytes.unwrap())).collect();
    assert_eq!(runs, [(7, 0, 1, 30), (8, 0, 0, 1), (7, 3, 3, 20)]);
    assert_eq!(batch.processes[2].job_id.as_deref(), Some("j"));
}

#[test]
fn ticks_go_back_only_after_a_step_of_the_clock() {
    let mut batcher = Batcher::new(10_000);
    batcher.add(reading(0, 100_000, 1), 0);
    let back = reading(0, 40_000, 2);
    assert!(batcher.is_backward(&back));
    let before = batcher.close_all(0);
    assert!(!batcher.is_backward(&back));
    batcher.add(back, 0);
    assert_eq!((ticks(&before[0]), ticks(&batcher.close_all(0)[0])), (vec![100_000], vec![40_000]));
}

#[test]
fn counters_have_their_growth_since_the_batch_before() {
    let counted = |index, tick_ms, energy: Option<i64>| {
        let mut reading = reading(index, tick_ms, 7);
        let missing = Value::Missing(MissingReason::Stale);
        reading.set(Metric::Energy, energy.map_or(missing, Value::Is));
        reading
    };
    let mut batcher = Batcher::new(2_000);
    let mut closed = Vec::new();
    let reported = [
        // Continues; is reset; is missing at the end of a batch and at the start of one; appears
        // later.
        [Some(100), Some(900), Some(10), None],
        [Some(130), Some(950), None, None],
        [Some(170), Some(5), Some(60), Some(1_000)],
        [Some(180), Some(6), Some(61), Some(1_001)],
        [Some(200), Some(7), None, Some(1_003)],
    ];
    for (tick, values) in (0..).map(|tick| tick * 1_000).zip(reported) {
        for (index, value) in (0..).zip(values) {
            if index < 3 || value.is_some() {
                closed.extend(batcher.add(counted(index, tick, value), tick));
            }
        }
    }
    closed.extend(batcher.close_all(9_000));
    let growth = |batch: GpuSampleBatch| {
        let batch = check(batch);
        let power = batch.columns.iter().find(|column| column.name == "power_mw").unwrap();
        assert!(power.first_growth.is_empty(), "it is no counter");
        batch.columns.iter().find(|column| column.name == "energy_mj").unwrap().first_growth.clone()
    };
    let growths: Vec<_> = closed.into_iter().map(growth).collect();
    assert_eq!(growths, [vec![-1, -1, -1], vec![40, -1, 50, -1], vec![20, 1, -1, 2]]);
}
