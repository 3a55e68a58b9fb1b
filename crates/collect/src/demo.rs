//! Simulated GPU node, busy by day and quieter by night, for trying Tidegate without a GPU.
//!
//! Readings and events are a function of the seed and the tick times, so equal seeds and ticks give
//! equal output. Time is cut into half hours. In each, the GPUs form groups of one, two, four or
//! all, and each group trains, serves a model, is held idle, or is free.

use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use tidegate_events::Event;
use tidegate_events::v1::gpu_sample_batch::process::Kind;
use tidegate_events::v1::{Envelope, NodeEvent, NodeEventKind};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::reading::{Device, Metric, MissingReason, Reading, RunningProcess, Sink, Value};
use crate::ticker::Clock;
use crate::xid::xid;

const MODEL: &str = "NVIDIA H100 80GB HBM3";
const HALF_HOUR_MS: i64 = 1_800_000;
const DAY_MS: i64 = 86_400_000;
const GIB: i64 = 1 << 30;
/// XIDs that leave the GPU usable, so that the simulation stays consistent.
const XIDS: [u32; 6] = [13, 31, 31, 43, 63, 94];

/// Options of the simulated node.
#[derive(Debug, Clone)]
pub struct DemoOptions {
    /// Seed of everything random.
    pub seed: u64,
    /// Number of GPUs.
    pub devices: u32,
    /// Time between two ticks.
    pub interval: Duration,
    /// Mean time between two XIDs of the node.
    pub xid_every: Duration,
}

impl DemoOptions {
    /// Options with a seed derived from the node's name.
    pub fn for_node(node: &str) -> Self {
        Self { seed: xxhash_rust::xxh3::xxh3_64(node.as_bytes()), ..Self::default() }
    }
}

impl Default for DemoOptions {
    fn default() -> Self {
        let (interval, xid_every) = (Duration::from_secs(1), Duration::from_secs(3600));
        Self { seed: 1, devices: 8, interval, xid_every }
    }
}

/// A running demo. Dropping it stops it.
#[derive(Debug)]
pub struct DemoSource {
    clock: Arc<Clock>,
    thread: Option<JoinHandle<()>>,
}

impl DemoSource {
    /// Stops the demo.
    pub fn stop(self) {
        drop(self);
    }
}

impl Drop for DemoSource {
    fn drop(&mut self) {
        self.clock.stop();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the thread of the demo failed");
        }
    }
}

/// Starts to emit the node's readings and events, at multiples of the interval on the wall clock.
///
/// # Errors
/// The thread cannot be started.
pub fn start(options: DemoOptions, sink: Arc<dyn Sink>) -> std::io::Result<DemoSource> {
    let clock = Arc::new(Clock::default());
    let ticks = Arc::clone(&clock);
    let thread = thread::Builder::new().name("demo".into()).stack_size(256 << 10).spawn(move || {
        let interval = options.interval.max(Duration::from_millis(1));
        let demo = std::cell::RefCell::new(Demo::new(options));
        let last = std::cell::Cell::new(0);
        ticks.run(interval, interval * 4, |_| {
            for tick in ticks.between(last.get(), None) {
                last.set(tick.number);
                let (readings, events) = demo.borrow_mut().tick(tick.ms);
                events.into_iter().for_each(|event| sink.event(Event::Node(event)));
                readings.into_iter().for_each(|reading| sink.reading(reading));
            }
        });
    })?;
    Ok(DemoSource { clock, thread: Some(thread) })
}

/// What a group of GPUs does for half an hour.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Activity {
    Free,
    /// Memory is held and nothing runs.
    Held,
    Serving,
    Training,
}

/// The simulated node without clock or threads.
#[derive(Debug)]
pub struct Demo {
    options: DemoOptions,
    gpus: Vec<Gpu>,
    last_ms: Option<i64>,
}

/// Counters of one GPU since the demo began.
#[derive(Debug)]
struct Gpu {
    device: Arc<Device>,
    energy_mj: i64,
    power_throttled_us: i64,
    pcie_bytes: [i64; 2],
    remapped_rows: i64,
    temperature: f64,
}

impl Demo {
    /// The node before its first tick.
    pub fn new(options: DemoOptions) -> Self {
        let gpu = |index: u32| {
            let id = xxh3_64_with_seed(&index.to_le_bytes(), options.seed);
            let uuid = format!("GPU-{:08x}-{:04x}-4000-8000-{index:012x}", id >> 32, id & 0xffff);
            let device = Device { uuid, index, model: MODEL.into(), mig_uuid: None };
            Gpu {
                device: Arc::new(device),
                energy_mj: 0,
                power_throttled_us: 0,
                pcie_bytes: [0; 2],
                remapped_rows: 0,
                temperature: 35.0,
            }
        };
        Self { gpus: (0..options.devices).map(gpu).collect(), options, last_ms: None }
    }

    /// Readings and events of a tick, ms since the epoch. Ticks must increase.
    pub fn tick(&mut self, tick_ms: i64) -> (Vec<Reading>, Vec<NodeEvent>) {
        let mut events = Vec::new();
        let interval_ms = self.last_ms.map(|last| (tick_ms - last).max(0));
        if self.last_ms.replace(tick_ms).is_none() {
            events.push(self.registered(tick_ms));
        }
        let mut readings = Vec::with_capacity(self.gpus.len());
        for place in 0..self.gpus.len() {
            let (activity, group) = activity_of(&self.options, place as u32, tick_ms);
            let processes = self.processes(activity, group, tick_ms);
            if let Some(interval_ms) = interval_ms
                && let Some(event) = self.xid(place, processes.first(), tick_ms, interval_ms)
            {
                events.push(event);
            }
            readings.push(self.reading(place, activity, processes, tick_ms, interval_ms));
        }
        (readings, events)
    }

    fn registered(&self, tick_ms: i64) -> NodeEvent {
        NodeEvent {
            gpu_model: Some(MODEL.into()),
            gpus_milli: Some(self.gpus.len() as u64 * tidegate_events::GPU_MILLI),
            driver_version: Some("580.95.05".into()),
            ..event(tick_ms, NodeEventKind::NodeRegistered)
        }
    }

    fn processes(&self, activity: Activity, group: u64, tick_ms: i64) -> Vec<RunningProcess> {
        let (name, memory) = match activity {
            Activity::Free => return Vec::new(),
            Activity::Held => ("jupyter-lab", 18 * GIB),
            Activity::Serving => ("vllm", 70 * GIB),
            Activity::Training => ("python3", 64 * GIB),
        };
        let pid =
            10_000 + (group ^ tick_ms.div_euclid(HALF_HOUR_MS) as u64).wrapping_mul(2_654_435_761) % 50_000;
        let seen = RunningProcess {
            pid: pid as u32,
            kind: Kind::Compute,
            memory_bytes: Some(memory as u64),
            name: Some(name.into()),
            job_id: None,
        };
        vec![seen]
    }

    fn xid(
        &mut self,
        place: usize,
        process: Option<&RunningProcess>,
        tick_ms: i64,
        interval_ms: i64,
    ) -> Option<NodeEvent> {
        let chance =
            interval_ms as f64 / self.options.xid_every.as_millis().max(1) as f64 / self.gpus.len() as f64;
        let process = process.filter(|_| draw(self.options.seed, place as u64, tick_ms, 100) < chance)?;
        let code = XIDS[(draw(self.options.seed, place as u64, tick_ms, 101) * XIDS.len() as f64) as usize];
        let (gpu, known) = (&mut self.gpus[place], xid(code));
        gpu.remapped_rows += i64::from(code == 63);
        Some(NodeEvent {
            gpu_uuid: Some(gpu.device.uuid.clone()),
            gpu_index: Some(gpu.device.index),
            gpu_model: Some(MODEL.into()),
            pci_bus_id: Some(format!("0000:{:02x}:00.0", 0x17 + 0x10 * place)),
            xid: Some(code),
            pid: Some(process.pid),
            fault_level: known.map(|x| x.severity.as_str().into()),
            fault_class: known.map(|x| x.name.into()),
            description: known.map(|x| x.meaning.into()),
            ..event(tick_ms, NodeEventKind::Xid)
        })
    }

    fn reading(
        &mut self,
        place: usize,
        activity: Activity,
        processes: Vec<RunningProcess>,
        tick_ms: i64,
        interval_ms: Option<i64>,
    ) -> Reading {
        let noise = |purpose| 2.0 * draw(self.options.seed, place as u64, tick_ms, purpose) - 1.0;
        let load = load(activity, tick_ms, noise(1), noise(2));
        let gpu = &mut self.gpus[place];
        let power_mw =
            ((75.0 + 545.0 * load.sm.max(load.tensor) + 8.0 * noise(3)) * 1e3).clamp(60e3, 700e3) as i64;
        let seconds = interval_ms.unwrap_or(0) as f64 / 1e3;
        gpu.energy_mj += (power_mw as f64 * seconds) as i64;
        let target = 30.0 + 40.0 * power_mw as f64 / 700e3;
        gpu.temperature += (target - gpu.temperature) * (seconds / 30.0).min(1.0);
        let throttled = power_mw > 610_000;
        gpu.power_throttled_us += if throttled { (seconds * 2e5) as i64 } else { 0 };
        let rates = [2e9 * load.sm, 3e9 * load.sm].map(|rate| rate as i64);
        for (counter, rate) in gpu.pcie_bytes.iter_mut().zip(rates) {
            *counter += (rate as f64 * seconds) as i64;
        }
        let mut reading = Reading::new(Arc::clone(&gpu.device), tick_ms);
        let memory = processes.iter().filter_map(|p| p.memory_bytes).sum::<u64>() as i64;
        let ppm = |ratio: f64| (ratio.clamp(0.0, 1.0) * 1e6) as i64;
        let nvlink = (1.2e11 * load.nvlink) as i64;
        for (metric, value) in [
            (Metric::GpuUtil, ppm(if load.sm > 0.02 { 0.9 + 0.1 * load.sm } else { 0.0 }) / 10_000 * 10_000),
            (Metric::MemoryUtil, ppm(load.dram * 0.8) / 10_000 * 10_000),
            (Metric::GraphicsActive, ppm(load.sm * 1.1)),
            (Metric::SmActive, ppm(load.sm)),
            (Metric::SmOccupancy, ppm(load.sm * 0.4)),
            (Metric::TensorActive, ppm(load.tensor)),
            (Metric::TensorHmmaActive, ppm(load.tensor)),
            (Metric::TensorImmaActive, 0),
            (Metric::TensorDfmaActive, 0),
            (Metric::Fp64Active, 0),
            (Metric::Fp32Active, ppm(load.sm * 0.08)),
            (Metric::Fp16Active, ppm(load.sm * 0.03)),
            (Metric::IntActive, ppm(load.sm * 0.1)),
            (Metric::DramActive, ppm(load.dram)),
            (Metric::Power, power_mw),
            (Metric::PowerLimit, 700_000),
            (Metric::Energy, gpu.energy_mj),
            (Metric::GpuTemp, gpu.temperature as i64),
            (Metric::MemoryTemp, gpu.temperature as i64 + 9),
            (
                Metric::SmClock,
                if activity == Activity::Free { 345 } else { 1_980 - i64::from(throttled) * 90 },
            ),
            (Metric::SmClockMax, 1_980),
            (Metric::MemoryClock, 2_619),
            (Metric::MemoryClockMax, 2_619),
            // GPU idle, or software power cap.
            (Metric::ThrottleReasons, if activity == Activity::Free { 1 } else { i64::from(throttled) * 4 }),
            (Metric::PowerThrottled, gpu.power_throttled_us),
            (Metric::ThermalThrottled, 0),
            (Metric::FramebufferUsed, memory),
            (Metric::FramebufferReserved, 660_602_880),
            (Metric::FramebufferTotal, 85_520_809_984),
            (Metric::PcieTx, gpu.pcie_bytes[0]),
            (Metric::PcieRx, gpu.pcie_bytes[1]),
            (Metric::PcieReplay, 0),
            (Metric::NvlinkErrors, 0),
            (Metric::PcieTxRate, rates[0]),
            (Metric::PcieRxRate, rates[1]),
            (Metric::NvlinkTxRate, nvlink),
            (Metric::NvlinkRxRate, nvlink),
            (Metric::EccCorrected, 0),
            (Metric::EccUncorrected, 0),
            (Metric::RemappedRows, gpu.remapped_rows),
            (Metric::RemappedRowsPending, gpu.remapped_rows.min(1)),
            (Metric::RemappedRowsFailed, 0),
            (Metric::RecoveryAction, 0),
            (Metric::Processes, processes.len() as i64),
            (Metric::ProcessMemory, memory),
        ] {
            reading.set(metric, Value::Is(value));
        }
        let interval =
            interval_ms.map_or(Value::Missing(MissingReason::Unspecified), |ms| Value::Is(ms * 1_000));
        reading.set(Metric::Interval, interval);
        reading.processes = processes;
        reading
    }
}

/// How busy the parts of a GPU are, 0 to 1.
struct Load {
    sm: f64,
    tensor: f64,
    dram: f64,
    nvlink: f64,
}

fn load(activity: Activity, tick_ms: i64, noise: f64, other: f64) -> Load {
    let at = |sm: f64, tensor: f64, dram: f64, nvlink: f64| Load { sm, tensor, dram, nvlink };
    match activity {
        Activity::Free => at(0.0, 0.0, 0.0, 0.0),
        Activity::Held => at(0.004 * (1.0 + noise), 0.0, 0.0, 0.0),
        // Requests come in bursts; the prompt is heavy, the answer reads memory.
        Activity::Serving => {
            let burst = 0.5 + 0.5 * (tick_ms as f64 / 23_000.0).sin();
            at(0.25 + 0.3 * burst + 0.05 * noise, 0.05 + 0.15 * burst, 0.5 + 0.2 * burst + 0.05 * other, 0.02)
        }
        // A checkpoint every ten minutes takes twenty seconds in which nothing computes.
        Activity::Training if tick_ms.rem_euclid(600_000) < 20_000 => at(0.01, 0.0, 0.02, 0.0),
        Activity::Training => {
            at(0.86 + 0.04 * noise, 0.52 + 0.04 * noise, 0.48 + 0.04 * other, 0.6 + 0.1 * other)
        }
    }
}

/// What a GPU does at a time, and its group.
fn activity_of(options: &DemoOptions, place: u32, tick_ms: i64) -> (Activity, u64) {
    let period = tick_ms.div_euclid(HALF_HOUR_MS);
    let seed = options.seed;
    // One group of all GPUs is most likely; a group never exceeds the node.
    let size =
        [1, 2, 2, 4, 4, 8, 8, 8][(draw(seed, 0, period, 1) * 8.0) as usize].min(options.devices.max(1));
    let group = u64::from(place / size) + 1;
    let hour = tick_ms.rem_euclid(DAY_MS) as f64 / 3_600_000.0;
    // 15:00 UTC is the busiest hour, 3:00 the quietest.
    let busy = 0.65 + 0.3 * ((hour - 15.0) / 24.0 * std::f64::consts::TAU).cos();
    let kind = draw(seed, group, period, 2);
    let activity = match kind / busy {
        share if share >= 1.0 => Activity::Free,
        share if share >= 0.88 => Activity::Held,
        share if share >= 0.65 => Activity::Serving,
        _ => Activity::Training,
    };
    (activity, group)
}

/// A deterministic pseudo-random number from 0 to 1.
fn draw(seed: u64, subject: u64, at_ms: i64, purpose: u64) -> f64 {
    let mut bytes = [0; 24];
    bytes[..8].copy_from_slice(&subject.to_le_bytes());
    bytes[8..16].copy_from_slice(&at_ms.to_le_bytes());
    bytes[16..].copy_from_slice(&purpose.to_le_bytes());
    (xxh3_64_with_seed(&bytes, seed) >> 11) as f64 / (1u64 << 53) as f64
}

fn event(tick_ms: i64, kind: NodeEventKind) -> NodeEvent {
    let envelope = Envelope { event_time_ms: tick_ms, observed_time_ms: tick_ms, ..Envelope::default() };
    let evidence = Some("demo".into());
    NodeEvent { envelope: Some(envelope), kind: kind.into(), evidence, ..NodeEvent::default() }
}
