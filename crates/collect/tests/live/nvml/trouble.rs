//! Failing devices and drivers.

use std::time::Duration;

use tidegate_collect::nvml::{GPU_METRICS, NvmlOptions};
use tidegate_collect::{Metric, Reading, Value};
use tidegate_events::v1::NodeEventKind::*;

use super::{INTERVAL_MS, LOST, Node, STALE, number};

/// Whether every value of a reading is missing for a reason.
fn all_missing(reading: &Reading, why: Value) -> bool {
    GPU_METRICS.iter().all(|metric| reading.get(*metric) == why)
}

fn uuid(index: u32) -> String {
    format!("GPU-5742a8c0-0000-4000-8000-{index:012}")
}

#[test]
fn a_wedged_device_is_stale_and_blocks_no_other() {
    let node = Node::new("devices 4\nwedge 2 nvmlDeviceGetPowerUsage 4000 9000");
    let (source, sink) = node.start();
    sink.until("the stale device", |recorded| !recorded.of_kind(DeviceStale).is_empty());
    assert_eq!(source.status().stale, 1);
    let recorded = sink.until("its answer", |recorded| {
        !recorded.of_kind(DeviceAnswers).is_empty() && recorded.last_is(2, Metric::Power, Value::Is(502_000))
    });
    assert_eq!(source.status().stale, 0);
    drop(source);
    recorded.each_tick_once(4, INTERVAL_MS);
    let (wedged, freed) = (node.start_ms + 4_000, node.start_ms + 9_000);
    // Ticks within the time, with margins: the call in progress was made slightly after its tick.
    let within = |r: &Reading| r.tick_ms > wedged + INTERVAL_MS && r.tick_ms < freed - INTERVAL_MS;
    let stuck: Vec<_> = recorded.of(2).into_iter().filter(|(r, _)| within(r)).collect();
    assert!(stuck.len() as i64 >= 4_000 / INTERVAL_MS, "{}", stuck.len());
    for (reading, arrived) in stuck {
        assert!(all_missing(reading, STALE), "{reading:?}");
        // The thread itself emits those of the last second once it is back.
        let waited = *arrived >= reading.tick_ms + 900 || reading.tick_ms > freed - 1_500;
        assert!(waited, "it is waited for before it is called stale");
    }
    // The other devices keep their pace, emitted soon after their ticks, while device 2 was stuck
    // for five seconds.
    for index in [0, 1, 3] {
        let read: Vec<_> = recorded.of(index).into_iter().filter(|(r, _)| within(r)).collect();
        let in_time =
            read.iter().filter(|(r, at)| r.get(Metric::Power) != STALE && at - r.tick_ms < 1_000).count();
        assert!(in_time * 2 > read.len(), "device {index}: {in_time} of {} were read in time", read.len());
    }
    let stale = recorded.of_kind(DeviceStale);
    assert_eq!(stale.len(), 1, "{:#?}", recorded.events);
    assert_eq!(stale[0].gpu_uuid, Some(uuid(2)));
    assert!(stale[0].description.as_ref().unwrap().contains("Power"), "{stale:?}");
    let began = stale[0].envelope.as_ref().unwrap().event_time_ms;
    assert!((wedged - INTERVAL_MS..wedged + 2 * INTERVAL_MS).contains(&began), "{}", began - node.start_ms);
    let answers = recorded.of_kind(DeviceAnswers);
    assert_eq!((answers.len(), answers[0].gpu_index), (1, Some(2)));
    assert!(answers[0].amount_ms.unwrap() >= 4_000, "{answers:?}");
}

#[test]
fn gpm_averages_include_the_stale_time() {
    let node = Node::new("devices 1\nwedge 0 nvmlDeviceGetUtilizationRates 3000 6000");
    let (_source, sink) = node.start();
    let recorded = sink.until("values after it", |recorded| {
        let after = recorded.of_kind(DeviceAnswers).len() == 1;
        after && recorded.last_is(0, Metric::SmActive, Value::Is(800_000))
    });
    // The hanging reading came too late. Its time is part of the next average.
    let readings = recorded.of(0);
    let averaged = |r: &&&(Reading, i64)| r.0.get(Metric::SmActive) == Value::Is(800_000);
    let intervals: Vec<_> = readings
        .iter()
        .filter(averaged)
        .map(|(r, _)| (number(r.get(Metric::Interval), Metric::Interval), r.tick_ms))
        .collect();
    let (longest, _) = *intervals.iter().max().unwrap();
    assert!(longest > 2_500_000, "{intervals:?}");
    // All intervals together span the first to the last reading.
    let (first, last) = (readings[0].0.tick_ms, intervals.last().unwrap().1);
    let sum_ms = intervals.iter().map(|(us, _)| us).sum::<i64>() / 1_000;
    let late = readings
        .iter()
        .filter(|(r, _)| r.get(Metric::Power) != STALE)
        .map(|(r, at)| at - r.tick_ms)
        .max()
        .unwrap();
    assert!((sum_ms - (last - first)).abs() <= late + 1_000, "{sum_ms} of {}", last - first);
    recorded.each_tick_once(1, INTERVAL_MS);
}

#[test]
fn a_device_falls_off_the_bus_and_comes_back() {
    let node = Node::new("devices 3\nlost 1 4000 6000");
    let (source, sink) = node.start();
    sink.until("a healthy device", |recorded| recorded.last_is(1, Metric::Power, Value::Is(501_000)));
    sink.until("its loss", |recorded| recorded.of_kind(DeviceLost).len() == 1);
    sink.until("readings that say so", |recorded| recorded.last_is(1, Metric::Power, LOST));
    assert_eq!(source.status().lost, 1);
    let recorded = sink.until("its return", |recorded| {
        recorded.of_kind(DeviceFound).len() == 1 && recorded.last_is(1, Metric::Power, Value::Is(501_000))
    });
    assert_eq!(source.status().lost, 0);
    drop(source);
    recorded.each_tick_once(3, INTERVAL_MS);
    let lost = recorded.of_kind(DeviceLost)[0];
    assert_eq!((lost.gpu_uuid.clone(), lost.gpu_index), (Some(uuid(1)), Some(1)));
    assert_eq!(lost.pci_bus_id.as_deref(), Some("0000:27:00.0"));
    assert!(lost.description.as_ref().unwrap().contains("fell off the bus"));
    for (reading, _) in recorded.of(1) {
        let at = reading.tick_ms - node.start_ms;
        if (4_300..5_800).contains(&at) && reading.get(Metric::Power) != STALE {
            assert!(all_missing(reading, LOST), "at {at}: {reading:?}");
        }
    }
    assert!(recorded.of(0).iter().all(|(r, _)| r.get(Metric::Power) != LOST));
    assert_eq!(recorded.events.len(), 3, "registered, lost, found: {:#?}", recorded.events);
}

#[test]
fn an_unplugged_device_is_noticed_by_restarting_the_library() {
    let node = Node::new("devices 3\nunplug 1 4000 9000");
    let options = NvmlOptions { reopen_after: Duration::from_millis(1_500), ..node.options() };
    let (source, sink) = node.start_with(options);
    // The driver lists two now, so the node is registered again.
    let recorded = sink.until("the smaller node", |recorded| recorded.of_kind(NodeRegistered).len() == 2);
    assert_eq!(recorded.of_kind(NodeRegistered)[1].gpus_milli, Some(2_000));
    assert_eq!(recorded.of_kind(DeviceLost).len(), 1);
    let recorded = sink.until("its return", |recorded| {
        recorded.of_kind(DeviceFound).len() == 1 && recorded.last_is(1, Metric::Power, Value::Is(501_000))
    });
    drop(source);
    assert_eq!(recorded.of_kind(DeviceFound)[0].gpu_uuid, Some(uuid(1)));
    assert_eq!(recorded.of_kind(NodeRegistered)[2].gpus_milli, Some(3_000));
    assert_eq!(recorded.of_kind(DeviceLost).len(), 1, "reported once: {:#?}", recorded.events);
    // While unlisted, it had no readings. Device numbers are the driver's at the time.
    let uuids = |recorded: &crate::sink::RecordingSink, uuid: &str| {
        recorded.readings.iter().filter(|(r, _)| r.device.uuid == uuid).count()
    };
    assert!(uuids(&recorded, &uuid(1)) < uuids(&recorded, &uuid(0)));
    let mut once = std::collections::HashSet::new();
    for (reading, _) in &recorded.readings {
        assert!(once.insert((reading.device.uuid.clone(), reading.tick_ms)), "reported twice: {reading:?}");
    }
}

#[test]
fn a_device_that_is_plugged_in_is_found_by_the_kernels_list() {
    let node = Node::new("devices 2\nunplug 1 0 3000");
    let list = node.path("proc/driver/nvidia/gpus");
    std::fs::create_dir_all(list.join("0000:17:00.0")).unwrap();
    let (_source, sink) = node.start();
    let recorded = sink.until("the first device", |recorded| {
        recorded.of(0).iter().any(|(r, _)| r.tick_ms > node.start_ms + 3_000)
    });
    assert_eq!(recorded.of_kind(NodeRegistered)[0].gpus_milli, Some(1_000));
    std::fs::create_dir(list.join("0000:27:00.0")).unwrap();
    let recorded =
        sink.until("the second", |recorded| recorded.last_is(1, Metric::Power, Value::Is(501_000)));
    assert_eq!(recorded.of_kind(DeviceFound)[0].gpu_uuid, Some(uuid(1)));
    assert_eq!(recorded.of_kind(NodeRegistered)[1].gpus_milli, Some(2_000));
}

#[test]
fn a_driver_that_is_upgraded_under_us() {
    let node = Node::new("devices 2\nset * hw_therm_ns 6000000\ndriver_change 4000 6000 580.95.05");
    let (source, sink) = node.start();
    sink.until("the old driver's values", |recorded| {
        recorded.last_is(0, Metric::HwThermalThrottled, Value::Is(6_000))
    });
    let recorded = sink.until("the refusal", |recorded| recorded.of_kind(DriverChanged).len() == 1);
    assert_eq!(recorded.of_kind(DriverChanged)[0].driver_version.as_deref(), Some("570.86.15"));
    let recorded = sink.until("the new driver's values", |recorded| {
        let changed = recorded.of_kind(DriverChanged).len() == 2;
        changed && recorded.last_is(0, Metric::HwThermalThrottled, Value::Is(6_000))
    });
    assert_eq!(source.status().driver_version.as_deref(), Some("580.95.05"));
    drop(source);
    assert_eq!(recorded.of_kind(DriverChanged)[1].driver_version.as_deref(), Some("580.95.05"));
    recorded.each_tick_once(2, INTERVAL_MS);
    for (reading, _) in &recorded.readings {
        let at = reading.tick_ms - node.start_ms;
        if (4_000..6_000).contains(&at) {
            assert!(all_missing(reading, STALE), "at {at}: {reading:?}");
        }
    }
    // The devices are unchanged: none was lost or found.
    let kinds: Vec<_> = recorded.events.iter().map(tidegate_events::v1::NodeEvent::kind).collect();
    assert_eq!(kinds, [NodeRegistered, DriverChanged, DriverChanged]);
}
