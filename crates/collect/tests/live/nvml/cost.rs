//! Cost of reading in counts that are equal on every machine: driver calls, allocations, wake-ups.

use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use stats_alloc::Region;
use tidegate_collect::nvml::{NvmlOptions, start};
use tidegate_collect::{Reading, Sink};
use tidegate_events::Event;

use super::Node;
use crate::ALLOCATIONS;

const DEVICES: u64 = 8;
/// Driver calls for a reading: ten for values, four for GPM.
const CALLS: f64 = 14.0;
/// Answers of GPM and of fields; a real driver names its metrics, and GPM takes 32 more.
const ALLOCATIONS_A_READING: f64 = 28.0;
/// Each device's thread, and the ticking thread.
const WAKE_UPS_A_TICK: f64 = 14.0;

/// Counts and discards.
#[derive(Default)]
struct Counted(AtomicU64);

impl Sink for Counted {
    fn reading(&self, _: Reading) {
        self.0.fetch_add(1, Ordering::AcqRel);
    }

    fn event(&self, _: Event) {}
}

impl Counted {
    fn wait(&self, readings: u64) {
        while self.0.load(Ordering::Acquire) < readings {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// How often the source's threads slept and woke.
fn wake_ups() -> u64 {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let of = |folder: std::path::PathBuf| {
        let name = std::fs::read_to_string(folder.join("comm")).ok()?;
        let status = std::fs::read_to_string(folder.join("status")).ok()?;
        let count = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"))?;
        name.starts_with("gpu-").then(|| count.trim().parse::<u64>().unwrap())
    };
    tasks.filter_map(|task| of(task.unwrap().path())).sum()
}

#[test]
fn eight_devices_cost_so_many_calls_allocations_and_wake_ups() {
    // In a process of its own, because other tests allocate too.
    let this = std::env::current_exe().unwrap();
    let alone = ["--exact", "nvml::cost::alone", "--ignored", "--nocapture"];
    let output = Command::new(this).args(alone).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    assert!(said.contains("1 passed"), "{said}");
    println!("{said}");
}

#[test]
#[ignore = "run by the test above, alone in its process"]
fn alone() {
    let node = Node::new(
        "process * compute 4711 1000000 0 1e12\nfail * nvmlDeviceGetEncoderUtilization 3 0 1e12
fail * nvmlDeviceGetDecoderUtilization 3 0 1e12",
    );
    let options = NvmlOptions {
        // The slower rounds are done once before.
        slow_every: Duration::from_secs(3_600),
        processes_every: Duration::from_secs(3_600),
        stale_after: Duration::from_secs(30),
        ..node.options()
    };
    let sink = Arc::new(Counted::default());
    let _source = start(options, Arc::clone(&sink) as _).unwrap();
    sink.wait(4 * DEVICES);
    let calls = || node.all_calls().into_iter().map(|(_, calls)| calls).sum::<u64>();
    let (begun, calls_before, wakes_before) = (sink.0.load(Ordering::Acquire), calls(), wake_ups());
    let region = Region::new(&ALLOCATIONS);
    sink.wait(begun + 20 * DEVICES);
    let stats = region.change();
    let (calls, wakes) = (calls() - calls_before, wake_ups() - wakes_before);
    let readings = (sink.0.load(Ordering::Acquire) - begun) as f64;
    let (calls, allocations) = (calls as f64 / readings, stats.allocations as f64 / readings);
    let wakes = wakes as f64 / (readings / DEVICES as f64);
    println!("{calls:.2} calls and {allocations:.1} allocations a reading, {wakes:.1} wake-ups a tick");
    // Encoder and decoder are refused here and not asked again, as on compute GPUs: two calls less.
    // Waits for events and readings in progress add a fraction of a call.
    assert!((calls - (CALLS - 2.0)).abs() < 0.5, "{calls} calls a reading");
    assert!(allocations < ALLOCATIONS_A_READING, "{allocations} allocations a reading");
    assert!(wakes < WAKE_UPS_A_TICK, "{wakes} wake-ups a tick");
    // 32 bytes of values per metric, and GPM's answers while they are read.
    let bytes = stats.bytes_allocated as f64 / readings;
    assert!(bytes < 16_384.0, "{bytes} bytes allocated a reading");
}
