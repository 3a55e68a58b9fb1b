//! MIG instances on the stand-in driver.

use tidegate_collect::nvml::INSTANCE_METRICS;
use tidegate_collect::{Metric, Reading, Value};
use tidegate_events::v1::NodeEventKind::*;

use super::{NOT_SUPPORTED, Node};
use crate::sink::RecordingSink;

fn of<'a>(recorded: &'a RecordingSink, mig: &str) -> Vec<&'a Reading> {
    let is = |r: &&Reading| r.device.mig_uuid.as_deref() == Some(mig);
    recorded.readings.iter().map(|(reading, _)| reading).filter(is).collect()
}

const GIB: u64 = 1 << 30;

#[test]
fn instances_have_values_of_their_own() {
    // Two instances; a process shows the number of the first, nothing that of the second.
    let node = Node::new(&format!(
        "devices 2\nmig 0 MIG-a 3 0 4 {} 1000 0 1e12 61\nmig 0 MIG-b 5 0 3 {} 2000 0 1e12 33
process 0 compute 77 123 0 1e12 3 0",
        40 * GIB,
        20 * GIB
    ));
    let (_source, sink) = node.start();
    let recorded =
        sink.until("both", |recorded| of(recorded, "MIG-a").len() > 5 && of(recorded, "MIG-b").len() > 5);
    let (a, b) = (of(&recorded, "MIG-a"), of(&recorded, "MIG-b"));
    let last = a.last().unwrap();
    assert_eq!(last.device.uuid, "GPU-5742a8c0-0000-4000-8000-000000000000");
    assert_eq!(last.get(Metric::SmActive), Value::Is(610_000));
    assert_eq!(last.get(Metric::FramebufferTotal), Value::Is(40 * GIB as i64));
    assert_eq!(last.get(Metric::FramebufferUsed), Value::Is(1_000));
    assert_eq!(last.get(Metric::MigSlices), Value::Is(4));
    assert_eq!(last.get(Metric::PcieTxRate), NOT_SUPPORTED);
    assert_eq!(last.get(Metric::Processes), Value::Is(1));
    assert_eq!((last.processes[0].pid, last.processes[0].memory_bytes), (77, Some(123)));
    assert_eq!(b.last().unwrap().get(Metric::SmActive), NOT_SUPPORTED, "its number is not known");
    for metric in Metric::ALL {
        let asked = last.get(*metric) != Value::NotAsked;
        assert_eq!(asked, INSTANCE_METRICS.contains(metric), "{metric:?}");
    }
    // The whole GPU has no utilization, but power, and its instances' processes in sum.
    let gpu = recorded.of(0).last().unwrap().0.clone();
    assert_eq!(gpu.get(Metric::GpuUtil), NOT_SUPPORTED);
    assert_eq!(gpu.get(Metric::Power), Value::Is(500_000));
    assert_eq!((gpu.get(Metric::Processes), gpu.processes.len()), (Value::Is(1), 0));
    let changed = recorded.of_kind(MigChanged);
    assert_eq!(changed.len(), 1, "the layout at the start: {:#?}", recorded.events);
    assert!(
        changed[0].description.as_ref().unwrap().starts_with("MIG-a: 4 compute slices, 40.0 GiB; MIG-b: 3")
    );
    // Instances share the ticks of their GPU.
    let ticks = |all: &[&Reading]| all.iter().map(|r| r.tick_ms).collect::<Vec<_>>();
    let gpus: Vec<_> = recorded.of(0).iter().map(|(r, _)| r.tick_ms).collect();
    assert!(ticks(&a).iter().all(|tick| gpus.contains(tick)));
}

#[test]
fn numbers_of_instances_are_in_the_drivers_list() {
    let node = Node::new(&format!(
        "devices 1\nmig 0 MIG-a 2 0 4 {GIB} 1 0 1e12 61\nmig 0 MIG-b 9 0 3 {GIB} 1 0 1e12 33"
    ));
    for place in ["gi2/ci0", "gi9/ci0"] {
        std::fs::create_dir_all(node.path("proc/driver/nvidia/capabilities/gpu0/mig").join(place)).unwrap();
    }
    let (_source, sink) = node.start();
    sink.until("both", |recorded| {
        let last = |mig, value| {
            of(recorded, mig).last().is_some_and(|r| r.get(Metric::SmActive) == Value::Is(value))
        };
        last("MIG-a", 610_000) && last("MIG-b", 330_000)
    });
}

#[test]
fn a_new_layout_is_reported_and_followed() {
    let event = "event 0 256 0 4100"; // The driver reports a change.
    let node = Node::new(&format!(
        "devices 1\nmig 0 MIG-a 3 0 4 {GIB} 1 0 4000\nmig 0 MIG-b 5 0 3 {GIB} 1 0 1e12\nmig 0 MIG-c 6 0 2 {GIB} 1 4000 7000\n{event}"
    ));
    let options = tidegate_collect::nvml::NvmlOptions {
        // Only the event can cause it so soon.
        slow_every: std::time::Duration::from_secs(3600),
        ..node.options()
    };
    let (source, sink) = node.start_with(options);
    sink.until("the first layout", |recorded| recorded.of_kind(MigChanged).len() == 1);
    let recorded = sink.until("the second", |recorded| {
        recorded.of_kind(MigChanged).len() == 2 && !of(recorded, "MIG-c").is_empty()
    });
    let layout = recorded.of_kind(MigChanged)[1].description.clone().unwrap();
    assert!(layout.starts_with("MIG-b: 3 compute slices") && layout.contains("MIG-c: 2"), "{layout}");
    drop(source);
    let recorded = sink.recorded();
    let (a, c) = (of(&recorded, "MIG-a"), of(&recorded, "MIG-c"));
    assert!(a.iter().map(|r| r.tick_ms).max() < c.iter().map(|r| r.tick_ms).min());
    assert!(of(&recorded, "MIG-b").len() > a.len());
}
